"""A real Spark cluster on this machine: a standalone master and a worker, from the pip package, on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from springtide.errors import RunError

WAIT_S = 60.0
"""The longest wait for a master or a worker. A start takes 3 s, and longer on a busy machine."""

NICE = 5
"""The nice value of the cluster's processes. An executor's start takes seconds of a core, which on a cluster are another
machine's; here the driver comes first."""

EXECUTOR_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # for JVMs that live for minutes on few cores: a start takes half the time
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings of an application on the cluster: executors with a core each."""


@contextlib.contextmanager
def standalone(folder: Path, cores: int = 6, memory: str = "6g") -> Iterator[str]:
    """Run a cluster whose worker offers ``cores`` cores, and yield the master's address. Its log is in ``folder``."""
    import pyspark

    from springtide.spark.driver import java

    java.use(java.find_java())
    home = Path(pyspark.__file__).parent
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environ.pop("PYTHONPATH", None)
    launcher, deploy = str(home / "bin" / "spark-class"), "org.apache.spark.deploy"
    commands = (
        [launcher, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [launcher, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", str(cores), "--memory", memory,
         "--webui-port", "0", "--work-dir", str(folder / "work"), url],
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    log = folder / "cluster.log"
    with log.open("wb") as file:
        try:
            for command, sign in zip(commands, ("I have been elected leader", "Successfully registered"), strict=True):
                started = subprocess.Popen(  # noqa: S603  Spark's own launcher
                    command, env=environ, cwd=folder, stdout=file, stderr=file, start_new_session=True
                )
                os.setpriority(os.PRIO_PGRP, started.pid, NICE)
                processes.append(started)
                _wait_for(sign, log)
            yield url
        finally:
            for process in reversed(processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def with_archive(folder: Path) -> dict[str, str]:
    """Settings of an application whose executors start from an archive of their classes. A first application makes the archive.

    A start then takes 1.6 s of a core instead of 3.1. On a cluster that is another machine's time; here the starts of six
    executors on two cores would disturb the measurement. If the JVM cannot make an archive, executors start without it.
    """
    from springtide.spark.driver import session as sessions

    archive, options = folder / "classes.jsa", "spark.executor.extraJavaOptions"
    with standalone(folder, cores=1) as master:
        dumping = {options: f"{EXECUTOR_CONF[options]} -XX:ArchiveClassesAtExit={archive}"}
        session: Any = sessions.create(master, "classes", conf={**EXECUTOR_CONF, **dumping}, log=folder / "spark.log")
        session.sparkContext.parallelize([1], 1).map(_same).collect()
        session.stop()
        end, size = time.monotonic() + WAIT_S, -1
        while size != (size := archive.stat().st_size if archive.exists() else 0) or (not size and time.monotonic() < end):
            time.sleep(1.0)  # until the archive exists and has stopped growing
    if not archive.exists():
        return dict(EXECUTOR_CONF)
    return {**EXECUTOR_CONF, options: f"{EXECUTOR_CONF[options]} -XX:SharedArchiveFile={archive}"}


def _same(value: int) -> int:
    return value


def _wait_for(sign: str, log: Path) -> None:
    end = time.monotonic() + WAIT_S
    while sign not in log.read_text(errors="replace"):
        if time.monotonic() > end:
            raise RunError(f"the cluster did not come up within {WAIT_S:.0f} s: {log} has no {sign!r}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
