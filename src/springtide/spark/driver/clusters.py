"""The executors under a Spark session: one port for all cluster managers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from springtide.errors import SetupError
from springtide.model.executor import Executor
from springtide.once import Once
from springtide.spark.private import executors
from springtide.spark.private.properties import is_on

log = logging.getLogger("springtide.spark")

WATCH_INTERVAL_S = 0.02
"""Interval between two looks for new executors while some are expected. A stage that starts in between may use a cold one."""
PREPARED_WARM_UPS = 8
"""Warm-ups to prepare before their executors start, whose numbers are known in advance."""
IDLE_WATCH_INTERVAL_S = 1.0
"""The same interval while none is expected: the cluster manager may replace a lost executor."""
EXPECTATION_S = 60.0
"""Expect executors for this long after a request."""
RETRY_AFTER_S = 10.0
"""Repeat a failed request after this time. A cluster manager may be away for a minute, for example during a failover."""
MAX_TRIES = 10
"""Give up a request after this number of attempts."""
MAX_WARM_UP_S = 60.0
"""Count an executor as ready after this time, even if its warm-up has not ended."""

DYNAMIC = "spark.dynamicAllocation.enabled"


class LocalCluster:
    """One process. A plan only limits the number of parallel tasks, so no executors are requested, released or reported."""

    def executors(self) -> tuple[Executor, ...]:
        return ()

    def ask(self, total: int) -> None:
        """Does nothing."""

    def release(self, names: Sequence[str]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class SparkCluster:
    """Standalone, YARN and Kubernetes, through the driver. A thread of its own sends the requests.

    A cluster manager may take two minutes to answer. Only the latest requested number matters, so a later request replaces
    one that still waits. A failure is logged once, and the request is repeated up to ``MAX_TRIES`` times, because the caller
    may not repeat it. With ``warm`` a new executor starts Python before it counts as ready. ``task_cpus``: the cores that a
    task takes; executors are reported with the number of tasks that they run at once. ``close`` it after use.
    """

    def __init__(self, session: Any, warm: bool = False, task_cpus: int = 1) -> None:
        self._backend = executors.ExecutorBackend(session)
        self._task_cpus = task_cpus
        self._requested: int | None = None
        self._pending_total: int | None = None  # the latest requested number, until the cluster manager has taken it
        self._to_release: tuple[str, ...] = ()
        self._tries = 0  # attempts left for the pending requests
        self._changed = threading.Condition()
        self._busy = False  # whether the thread runs; it ends when nothing is pending
        self._failing = Once()
        self._warm_up: WarmUp | None = WarmUp(self._backend) if warm else None

    def executors(self) -> tuple[Executor, ...]:
        return tuple(
            replace(
                executor,
                cores=max(1, executor.cores // self._task_cpus),
                starting=bool(self._warm_up and not self._warm_up.ready(executor)),
            )
            for executor in self._backend.executors()
        )

    def ask(self, total: int) -> None:
        if self._warm_up is not None and total != self._requested:  # the executors of a repeated request may never come
            self._warm_up.expect()
        self._requested = total
        with self._changed:
            self._pending_total = total
            self._wake()

    def release(self, names: Sequence[str]) -> None:
        with self._changed:
            self._to_release = tuple(dict.fromkeys((*self._to_release, *names)))
            self._wake()

    def close(self) -> None:
        """End the threads after one more attempt at the pending requests. Returns at once; the executors stay."""
        if self._warm_up is not None:
            self._warm_up.close()
        with self._changed:
            self._tries = min(self._tries, 1)
            self._changed.notify()

    def _wake(self) -> None:
        self._tries = MAX_TRIES
        self._changed.notify()
        if not self._busy:
            threading.Thread(target=self._carry_out, name="springtide-cluster", daemon=True).start()
            self._busy = True

    def _carry_out(self) -> None:
        while True:
            with self._changed:
                total, names = self._pending_total, self._to_release
                if not self._tries or (total is None and not names):
                    self._pending_total, self._to_release, self._busy = None, (), False
                    return
                self._tries = left = self._tries - 1
            errors = [self._error(self._backend.request_total, total), self._error(self._backend.release, list(names))]
            with self._changed:
                if errors[0] is None and self._pending_total == total:
                    self._pending_total = None
                if errors[1] is None:
                    self._to_release = tuple(name for name in self._to_release if name not in names)
                self._log_failure(errors[0] or errors[1])
                if any(errors) and 0 < left == self._tries:  # else there is a newer request
                    self._changed.wait(RETRY_AFTER_S)

    def _error(self, send: Callable[[Any], None], request: int | list[str] | None) -> Exception | None:
        """Send a request unless it is empty; returns the error if it fails."""
        try:
            if request:
                send(request)
        except Exception as error:  # noqa: BLE001  the JVM or the cluster manager may be away: the run goes on
            return error
        return None

    def _log_failure(self, error: Exception | None) -> None:
        if error is None:
            self._failing.end()
        elif self._failing.begins():
            log.warning("the cluster manager did not carry out a request: %r", error)


class WarmUp:
    """Looks for new executors, and has each start Python at once. The warm-up takes the slot, so that no batch waits for it.

    After a failure, or after ``close``, executors count as ready, as they do without a warm-up.
    """

    def __init__(self, backend: executors.ExecutorBackend) -> None:
        self._backend = backend
        self._started: dict[str, tuple[float, Any]] = {}
        self._expecting_until = 0.0
        self._closed = threading.Event()
        self.expect()
        threading.Thread(target=self._watch, name="springtide-warm-up", daemon=True).start()

    def expect(self) -> None:
        """Executors were requested: look often for a while, to see them before a batch uses them."""
        self._expecting_until = time.monotonic() + EXPECTATION_S

    def ready(self, executor: Executor) -> bool:
        if self._closed.is_set():
            return True
        begun, warming = self._started.get(executor.name, (None, None))
        if begun is None:
            return False
        return warming is None or time.monotonic() - begun > MAX_WARM_UP_S or bool(warming.isCompleted())

    def close(self) -> None:
        """Stop warming up executors."""
        self._closed.set()

    def _watch(self) -> None:
        try:
            while not self._closed.is_set():
                for name in self._backend.names():
                    if name not in self._started:
                        self._started[name] = (time.monotonic(), self._warm(name))
                expected = time.monotonic() < self._expecting_until
                if expected:
                    self._prepare()
                self._closed.wait(WATCH_INTERVAL_S if expected else IDLE_WATCH_INTERVAL_S)
        except Exception as error:  # noqa: BLE001  the JVM is gone, and its executors with it
            log.debug("no executor is warmed up any more: %r", error)
            self._closed.set()

    def _prepare(self) -> None:
        last = max((int(name) for name in self._started if name.isdigit()), default=-1)
        for number in range(last + 1, last + 1 + PREPARED_WARM_UPS):
            self._backend.prepare_warm(str(number))

    def _warm(self, name: str) -> Any:
        try:
            return self._backend.warm(name)
        except Exception as error:  # noqa: BLE001  the executor may have ended again; if not, its first batch is slow
            log.warning("executor %s is not warmed up: %r", name, error)
            return None


def cluster_of(session: Any, warm: bool) -> LocalCluster | SparkCluster:
    """The cluster under a session; with ``warm`` new executors start Python before they count as ready."""
    return LocalCluster() if is_local(session) else SparkCluster(session, warm, _task_cpus(session))


def is_local(session: Any) -> bool:
    """Whether tasks run in the driver's own process. ``local-cluster`` has executors of its own."""
    master = str(session.sparkContext.master)
    return master == "local" or master.startswith("local[")


def cores_each(session: Any) -> int:
    """The number of tasks that an executor runs at once."""
    conf, master = session.sparkContext.getConf(), str(session.sparkContext.master)
    cores = master.split(",")[1] if master.startswith("local-cluster[") else conf.get("spark.executor.cores")
    if cores is None:
        raise SetupError(
            "spark.executor.cores is not set, so an executor takes all the cores of a machine, and Springtide cannot request"
            " or release executors in steps; set it, for example spark.executor.cores=1"
        )
    return max(1, int(cores) // _task_cpus(session))


def _task_cpus(session: Any) -> int:
    return int(session.sparkContext.getConf().get("spark.task.cpus", "1"))


def check(session: Any, instead: str = "") -> None:
    """Refuse a session whose executors Spark itself adds and removes; ``instead``: an alternative, for the error message."""
    if is_on(session.conf.get(DYNAMIC, "false")):
        raise SetupError(
            f"{DYNAMIC} is true: Spark adds and removes executors by itself, against the plan, and refuses requests of others."
            f" Set {DYNAMIC}=false{instead}"
        )
