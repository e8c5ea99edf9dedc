"""The JVM of PySpark: starts it, checks whether it is alive, and forgets it after its death.

Why: PySpark starts a JVM with its settings in the list of processes, and cannot start a second JVM after the first died.
Seen to work on: Spark 4.2 and 4.3.
Without it (``SparkContext._gateway``, ``_jvm``, ``_ensure_initialized``, ``launch_gateway``): no session starts, or none
after the death of a JVM, so that a run ends instead of restarting. ``pythonExec`` selects the Python of executors; without
it they start the driver's.
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
    """Start the JVM with settings that no other user can see.

    The output of the JVM and its workers goes to ``log``, which only this user can read; without ``log`` to this process's
    stderr.
    """
    if SparkContext._gateway is not None:
        return
    with contextlib.ExitStack() as stack:
        output = {}
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            stack.callback(os.close, file)
            output["stderr"] = file
        stack.enter_context(properties.in_file(settings))
        SparkContext._ensure_initialized(gateway=launch_gateway(popen_kwargs=output))


def forget_dead_jvm() -> None:
    """Allow PySpark to start a new JVM in this process after the old one died."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # the JVM is dead, so errors do not matter
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            with contextlib.suppress(OSError):  # ends a JVM that has only lost its context
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
    """Have the JVM lock a file until it ends, so that a new driver waits for the end of an orphaned JVM.

    A JVM whose Python driver was killed may write to the checkpoint until it notices.
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
    """Set the interpreter for functions that are wrapped from now on. It may be in an archive that only executors have."""
    session.sparkContext.pythonExec = python


@contextlib.contextmanager
def drivers_python(session: SparkSession) -> Iterator[None]:
    """Use the driver's interpreter for functions that also run beside the driver, such as planning a Python data source."""
    executors = session.sparkContext.pythonExec
    session.sparkContext.pythonExec = sys.executable
    try:
        yield
    finally:
        session.sparkContext.pythonExec = executors
