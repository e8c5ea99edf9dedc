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

LOOK_S = 0.02
"""How often new executors are looked for while some are expected. A stage that starts in between may have a task on one."""
AHEAD = 8
"""Executors whose warm-up is prepared before they come: they are numbered."""
SELDOM_S = 1.0
"""And else: one may come in the place of one that was lost."""
EXPECTED_S = 60.0
AGAIN_S = 10.0
"""After so long what failed is asked again: a cluster manager may be away for a minute, as when another takes its place."""
TRIES = 10
"""Then it is given up."""
LONGEST_WARM_UP_S = 60.0

DYNAMIC = "spark.dynamicAllocation.enabled"


class LocalCluster:
    """One process: what a plan limits is how many tasks run at once. There is nothing to ask for and nothing to report."""

    def executors(self) -> tuple[Executor, ...]:
        return ()

    def ask(self, total: int) -> None:
        """Nothing comes."""

    def release(self, names: Sequence[str]) -> None:
        """Nothing goes."""

    def close(self) -> None:
        """Nothing runs."""


class SparkCluster:
    """Standalone, YARN and Kubernetes, through the driver. What is asked of them is carried out by a thread of its own.

    A cluster manager may take two minutes to answer. Only the newest number that was asked for matters, so one that is
    overtaken while it waits is dropped. What fails is told once, and tried again for a while: nobody may be left to ask again.
    With ``warm`` a new executor starts Python before it counts as ready. ``task_cpus``: what a task takes of an executor's
    cores, of which as many count as run tasks. ``close`` when nobody needs it any more.
    """

    def __init__(self, session: Any, warm: bool = False, task_cpus: int = 1) -> None:
        self._backend = executors.ExecutorBackend(session)
        self._task_cpus = task_cpus
        self._asked: int | None = None
        self._wanted: int | None = None  # what was asked last, until it is done
        self._going: tuple[str, ...] = ()  # and who is to go
        self._tries = 0  # left for what is not done
        self._news = threading.Condition()
        self._busy = False  # whether there is a thread, which there is only while there is something to do
        self._failing = Once()
        self._cold: WarmUp | None = WarmUp(self._backend) if warm else None

    def executors(self) -> tuple[Executor, ...]:
        return tuple(
            replace(one, cores=max(1, one.cores // self._task_cpus), starting=bool(self._cold and not self._cold.ready(one)))
            for one in self._backend.executors()
        )

    def ask(self, total: int) -> None:
        if self._cold is not None and total != self._asked:  # one that is repeated may never come: look for it as for any
            self._cold.expect()
        self._asked = total
        with self._news:
            self._wanted = total
            self._wake()

    def release(self, names: Sequence[str]) -> None:
        with self._news:
            self._going = tuple(dict.fromkeys((*self._going, *names)))
            self._wake()

    def close(self) -> None:
        """End its threads, after what was asked before; returns at once, and may be repeated. The executors stay."""
        if self._cold is not None:
            self._cold.close()
        with self._news:
            self._tries = min(self._tries, 1)
            self._news.notify()

    def _wake(self) -> None:
        self._tries = TRIES
        self._news.notify()
        if not self._busy:
            threading.Thread(target=self._run_errands, name="springtide-cluster", daemon=True).start()
            self._busy = True

    def _run_errands(self) -> None:
        while True:
            with self._news:
                total, going = self._wanted, self._going
                if not self._tries or (total is None and not going):
                    self._wanted, self._going, self._busy = None, (), False
                    return
                self._tries = left = self._tries - 1
            errors = [self._error(self._backend.request_total, total), self._error(self._backend.release, list(going))]
            with self._news:
                if errors[0] is None and self._wanted == total:
                    self._wanted = None
                if errors[1] is None:
                    self._going = tuple(name for name in self._going if name not in going)
                self._tell(errors[0] or errors[1])
                if any(errors) and 0 < left == self._tries:  # else there is something newer
                    self._news.wait(AGAIN_S)

    def _error(self, errand: Callable[[Any], None], what: int | list[str] | None) -> Exception | None:
        """Do it if there is something to do."""
        try:
            if what:
                errand(what)
        except Exception as error:  # noqa: BLE001  the JVM may be gone, the cluster manager away: the run goes on
            return error
        return None

    def _tell(self, error: Exception | None) -> None:
        if error is None:
            self._failing.end()
        elif self._failing.begins():
            log.warning("the cluster did not do what it was asked: %r", error)


class WarmUp:
    """Looks for new executors, and has each start Python at once: until then its only slot is taken, and no batch waits for it.

    When something fails, or after ``close``, executors count as ready, as they would without this.
    """

    def __init__(self, backend: executors.ExecutorBackend) -> None:
        self._backend = backend
        self._started: dict[str, tuple[float, Any]] = {}
        self._until = 0.0  # up to then some are expected
        self._over = threading.Event()
        self.expect()
        threading.Thread(target=self._watch, name="springtide-warm-up", daemon=True).start()

    def expect(self) -> None:
        """Executors were asked for: look often for a while, that they are seen before a batch reaches them."""
        self._until = time.monotonic() + EXPECTED_S

    def ready(self, executor: Executor) -> bool:
        if self._over.is_set():
            return True
        begun, warming = self._started.get(executor.name, (None, None))
        if begun is None:
            return False
        return warming is None or time.monotonic() - begun > LONGEST_WARM_UP_S or bool(warming.isCompleted())

    def close(self) -> None:
        """Warm up no more."""
        self._over.set()

    def _watch(self) -> None:
        try:
            while not self._over.is_set():
                for name in self._backend.names():
                    if name not in self._started:
                        self._started[name] = (time.monotonic(), self._warmed(name))
                expected = time.monotonic() < self._until
                if expected:
                    self._prepare()
                self._over.wait(LOOK_S if expected else SELDOM_S)
        except Exception as error:  # noqa: BLE001  the JVM is gone, and its executors with it
            log.debug("no executor is warmed up any more: %r", error)
            self._over.set()

    def _prepare(self) -> None:
        last = max((int(name) for name in self._started if name.isdigit()), default=-1)
        for number in range(last + 1, last + 1 + AHEAD):
            self._backend.prepare_warm(str(number))

    def _warmed(self, name: str) -> Any:
        try:
            return self._backend.warm(name)
        except Exception as error:  # noqa: BLE001  it may have gone again; if not, its first batch is slow
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
    """How many tasks an executor runs at once."""
    conf, master = session.sparkContext.getConf(), str(session.sparkContext.master)
    cores = master.split(",")[1] if master.startswith("local-cluster[") else conf.get("spark.executor.cores")
    if cores is None:
        raise SetupError(
            "spark.executor.cores is not set, so an executor takes all the cores of a machine, and nothing can be asked for"
            " or released by steps; set it, such as spark.executor.cores=1"
        )
    return max(1, int(cores) // _task_cpus(session))


def _task_cpus(session: Any) -> int:
    return int(session.sparkContext.getConf().get("spark.task.cpus", "1"))


def check(session: Any, instead: str = "") -> None:
    """Refuse a session whose executors Spark itself adds and removes; ``instead``: what else could be done."""
    if is_on(session.conf.get(DYNAMIC, "false")):
        raise SetupError(
            f"{DYNAMIC} is true: Spark adds and removes executors by itself, against the plan, and refuses to let anybody else"
            f" do it. Set {DYNAMIC}=false{instead}"
        )
