"""The executors under a Spark session: one port for all cluster managers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from springtide.errors import SetupError
from springtide.model.executor import Executor
from springtide.spark import internals

log = logging.getLogger("springtide.spark")


class LocalCluster:
    """One process: what a plan limits is how many tasks run at once. There is nothing to ask for and nothing to report."""

    def executors(self) -> tuple[Executor, ...]:
        return ()

    def ask(self, total: int) -> None:
        """Nothing comes."""

    def release(self, names: Sequence[str]) -> None:
        """Nothing goes."""


class SparkCluster:
    """Standalone, YARN and Kubernetes, through the driver. What is asked of them is carried out by a thread of its own.

    A cluster manager may take two minutes to answer. Only the newest number that was asked for matters, so one that is
    overtaken while it waits is dropped.
    """

    def __init__(self, session: Any) -> None:
        check(session)
        self._backend = internals.ExecutorBackend(session)
        self._hands = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-cluster")
        self._lock = threading.Lock()
        self._wanted: int | None = None

    def executors(self) -> tuple[Executor, ...]:
        return self._backend.executors()

    def ask(self, total: int) -> None:
        with self._lock:
            self._wanted = total
        self._later(self._ask_newest)

    def release(self, names: Sequence[str]) -> None:
        self._later(lambda: self._backend.release(list(names)))

    def close(self) -> None:
        self._hands.shutdown(wait=False, cancel_futures=True)

    def _ask_newest(self) -> None:
        with self._lock:
            total, self._wanted = self._wanted, None
        if total is not None:
            self._backend.request_total(total)

    def _later(self, action: Callable[[], object]) -> None:
        def carried_out() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001  the JVM may be gone, the cluster manager away: the run goes on
                log.warning("the cluster did not do what it was asked: %r", error)

        self._hands.submit(carried_out)


def is_local(session: Any) -> bool:
    """Whether tasks run in the driver's own process. ``local-cluster`` has executors of its own."""
    master = str(session.sparkContext.master)
    return master == "local" or master.startswith("local[")


def cores_each(session: Any) -> int:
    """How many tasks an executor runs at once."""
    conf = session.sparkContext.getConf()
    per_task = int(conf.get("spark.task.cpus", "1") or 1)
    cores = conf.get("spark.executor.cores")
    if cores is None:
        raise SetupError(
            "spark.executor.cores is not set, so an executor takes all the cores of a machine, and nothing can be asked for"
            " or released by steps; set it, such as spark.executor.cores=1"
        )
    return max(1, int(cores) // per_task)


def check(session: Any) -> None:
    """Refuse a session whose executors Spark itself adds and removes."""
    if session.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise SetupError(
            "spark.dynamicAllocation.enabled is true: Spark adds and removes executors by itself, and refuses to let anybody"
            " else do it. Set spark.dynamicAllocation.enabled=false"
        )
