"""The Spark session: settings for small, frequent batches, and checks of a session that the user passes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from springtide.errors import RunError, SetupError
from springtide.spark.driver import java
from springtide.spark.private.properties import is_on

SETTINGS: Mapping[str, str] = {
    # 57–67 ms instead of 100–127 for a job with one stage of Python tasks
    "spark.python.unix.domain.socket.enabled": "true",
    # 20 ms less per Python stage: workers with everything imported, and no long garbage collections
    "spark.python.daemon.module": "springtide.spark.private.daemon",
    # offset and commit logs in 33–38 ms instead of 108–124; sound on file: paths, the only ones a checkpoint may have
    "spark.sql.streaming.checkpointFileManagerClass":
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.adaptive.enabled": "false",  # would re-plan stages whose widths the plan has set
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.locality.wait": "0",
    # a task with a preferred executor, such as a warm-up, waits for it; tasks of a batch prefer no executor
    "spark.locality.wait.process": "10s",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.io.maxRetries": "1",  # a lost executor stalls a batch for 1 s, not 15
    "spark.shuffle.io.retryWait": "1s",
    "spark.ui.enabled": "false",  # Spark's pages would be accessible from the network
    "spark.ui.showConsoleProgress": "false",
    # else SQL tasks, such as those of sources, have their own daemon and workers: twice the memory, and another Python start
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}  # fmt: skip

PYTHON = "spark.sql.execution.pyspark.python"
"""The interpreter of Python tasks; without it, tasks of a data source would use the interpreter that plans the source."""

GRACEFUL: Mapping[str, str] = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    # an executor ends one interval after its last shuffle file has moved: within 3 s, not 30 to 37
    "spark.storage.decommission.replicationReattemptInterval": "1s",
}
"""A released executor takes no more tasks, completes its running tasks, and migrates blocks that later stages read."""

EXECUTORS: Mapping[str, str] = {**GRACEFUL, "spark.executor.cores": "1"}  # scale in steps of one slot
"""For masters with executors of their own."""

FRUGAL: Mapping[str, str] = {
    # Spark limits the address space of a Python worker, used or not. Arrow's allocator reserves 1 GB at once, and the allocator
    # of the C library 64 MB for each thread: 1,414 MB of addresses for 128 MB of memory. With these settings it is 286 MB
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
}
"""For Python workers whose memory is limited, by ``spark.executor.pyspark.memory``."""

LOOPBACK: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""No port is accessible from other hosts."""

LOCAL: Mapping[str, str] = {
    **LOOPBACK,
    # In 1 GB of memory a block of half a megabyte is too large for Java's usual regions, and each begins a search through all
    # of it: 176 in 100 s of batches of 2 MB, 15 % of what the JVM computes. Other collectors do not look at this
    "spark.driver.defaultJavaOptions": "-XX:G1HeapRegionSize=8m",
}
"""For masters on this machine, whose tasks run in the driver."""


def local_master(max_slots: int) -> str:
    """A master with all slots in this process; a task has four attempts, as on a cluster."""
    return f"local[{max_slots},4]"


def create(
    master: str, app: str, *, conf: Mapping[str, str] | None = None, py_files: Sequence[str] = (),
    archives: Sequence[str] = (), log: Path | None = None, dynamic: bool = False,
) -> object:  # fmt: skip
    """A new session with Springtide's settings, which ``conf`` overrides. ``log`` gets the output of Spark and its workers.

    ``dynamic``: whether Spark may add and remove executors by itself.
    """
    check_settings(conf or {}, (*py_files, *archives), dynamic)
    java.use(java.find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from springtide.spark.private import jvm, local_files

    if SparkSession.getActiveSession() is not None:
        raise SetupError("there is a Spark session already; pass it as spark=, or stop it first")
    builder = SparkSession.builder.master(master).appName(app)
    limited = "spark.executor.pyspark.memory" in (conf or {})
    place = LOCAL if master.startswith("local") else EXECUTORS
    settings = {**SETTINGS, **place, **(FRUGAL if limited else {}), **(conf or {})}
    python = settings.get("spark.pyspark.python", os.environ["PYSPARK_PYTHON"])
    settings[PYTHON] = python
    if py_files:
        settings["spark.submit.pyFiles"] = ",".join(py_files)
    if archives:
        settings["spark.archives"] = ",".join(archives)
    for name, value in settings.items():
        builder = builder.config(name, value)
    jvm.launch_jvm({"spark.master": master, "spark.app.name": app, **settings}, log)
    with _own_interrupt():
        session = builder.getOrCreate()
    jvm.use_executors_python(session, python)
    local_files.write_logs_quickly(session)
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    for file in py_files:
        session.sparkContext.addPyFile(file)
    try:
        check(session, dynamic)
    except SetupError:
        session.stop()
        raise
    return session


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Restore the handler of Ctrl-C: a starting Spark context installs its own, which would cancel the batch."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def adopt(session: object, dynamic: bool = False) -> object:
    """Check a user's session; returns a child session with those of our settings that can still be changed."""
    from springtide.spark.private import jvm

    if not jvm.is_alive(session):
        raise RunError("the Spark session that was passed has ended; make a new one, and resume from the checkpoint")
    check(session, dynamic)
    own = session.newSession()  # type: ignore[attr-defined]
    for name, value in SETTINGS.items():
        if name.startswith("spark.sql.") and own.conf.isModifiable(name):
            own.conf.set(name, value)
    own.conf.set(PYTHON, session.sparkContext.pythonExec)  # type: ignore[attr-defined]
    return own


def check_settings(conf: Mapping[str, str], shipped: Sequence[str], dynamic: bool = False) -> None:
    """Refuse settings with which a new session could not work, before anything starts."""
    _refuse(dict(os.environ), conf, dynamic)
    for file in shipped:
        if not os.path.exists(file.split("#")[0]):
            raise SetupError(f"there is no file {file!r} to ship to the executors")


def check(session: object, dynamic: bool = False) -> None:
    """Refuse a session that cannot work: Spark Connect, an old Spark, dynamic allocation without ``dynamic``."""
    if "connect" in type(session).__module__:
        raise SetupError(
            "this is a Spark Connect session; Springtide builds stages inside the driver, which Connect does not allow."
            " Use a classic session: unset SPARK_REMOTE and spark.remote, and start with a master such as local[8]"
        )
    version = tuple(int(part) for part in session.version.split(".")[:2])  # type: ignore[attr-defined]
    if version < (4, 2):
        raise SetupError(f"Spark {session.version} is too old; Springtide needs 4.2 or later")  # type: ignore[attr-defined]
    if not dynamic:
        from springtide.spark.driver import clusters

        clusters.check(session, ", or leave the executors to it with executors='spark'")


def _refuse(environ: Mapping[str, str], conf: Mapping[str, str], dynamic: bool) -> None:
    named = [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if environ.get(name)]
    named += [name for name in ("spark.remote",) if conf.get(name)]
    if conf.get("spark.api.mode") == "connect":
        named.append("spark.api.mode")
    if named:
        raise SetupError(f"{named[0]} asks for Spark Connect, on which Springtide cannot run; unset it")
    if environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        raise SetupError("PYSPARK_PIN_THREAD=false: tasks would not know to which batch they belong; unset it")
    if is_on(conf.get("spark.dynamicAllocation.enabled")) and not dynamic:
        raise SetupError(
            "spark.dynamicAllocation.enabled=true: Spark would work against the plan; set it to false, or leave the executors"
            " to it with executors='spark'"
        )
