"""The JVM that PySpark talks to: starting it, seeing that it is alive, and letting go of it when it is dead.

Why: PySpark starts a JVM with its settings in the list of processes, and cannot start a second one after the first died.
Seen to work on: Spark 4.2 and 4.3.
Without it (``SparkContext._gateway``, ``_jvm``, ``_ensure_initialized``, ``launch_gateway``): no session starts, or none
after the death of a JVM, so that a run ends where it would have started again. ``pythonExec`` decides which Python
executors start; without it they start the driver's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from springtide.errors import CheckpointError
from springtide.spark.private import properties


def launch_jvm(settings: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM with settings that nobody else can see.

    What it and its workers print goes to a file that only this user can read, so that a terminal stays readable; without one,
    to where this process prints its errors.
    """
    if SparkContext._gateway is not None:
        return
    with contextlib.ExitStack() as stack:
        printed = {}
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            stack.callback(os.close, file)
            printed["stderr"] = file
        stack.enter_context(properties.in_file(settings))
        SparkContext._ensure_initialized(gateway=launch_gateway(popen_kwargs=printed))


def forget_dead_jvm() -> None:
    """Make room for a new JVM in this process after the old one died."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # it is dead; whatever it says does not matter
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            with contextlib.suppress(OSError):  # one that only lost its context lives until then
                process.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def is_alive(session: Any) -> bool:
    """Whether the session's JVM still answers, and its context has not been stopped."""
    try:
        return not session._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001  every failure means the same here
        return False


def hold_jvm_lock(session: SparkSession, path: Path, wait_s: float = 30.0) -> Any:
    """Have the JVM lock a file for as long as it lives, so that a new driver waits for an orphaned JVM to die.

    A JVM whose Python driver was killed may still write to the checkpoint until it notices.
    """
    jvm = session._jvm
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    end = time.monotonic() + wait_s
    while True:
        lock = channel.tryLock()
        if lock is not None:
            return channel
        if time.monotonic() > end:
            raise CheckpointError(
                f"the JVM of an earlier driver still holds {path} after {wait_s:.0f} s; stop that process and start again"
            )
        time.sleep(0.1)


def use_executors_python(session: SparkSession, python: str) -> None:
    """The interpreter for whatever is wrapped from now on, which may be in an archive that only executors have."""
    session.sparkContext.pythonExec = python


@contextlib.contextmanager
def drivers_python(session: SparkSession) -> Iterator[None]:
    """What is wrapped here runs beside the driver too, as the planning of a Python data source does."""
    executors = session.sparkContext.pythonExec
    session.sparkContext.pythonExec = sys.executable
    try:
        yield
    finally:
        session.sparkContext.pythonExec = executors
