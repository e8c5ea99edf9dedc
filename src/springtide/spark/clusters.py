"""The executors under a Spark session: one port for all cluster managers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from springtide.errors import SetupError
from springtide.model.executor import Executor
from springtide.spark import internals

log = logging.getLogger("springtide.spark")

LOOK_S = 0.02
"""How often new executors are looked for while some are expected. A stage that starts in between may have a task on one."""
AHEAD = 8
"""Executors whose warm-up is prepared before they come: they are numbered."""
SELDOM_S = 1.0
"""And else: one may come in the place of one that was lost."""
EXPECTED_S = 60.0
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
    overtaken while it waits is dropped. What fails is told once, and not tried again: who asked sees that nothing came of it.
    With ``warm`` a new executor starts Python before it counts as ready. ``close`` when nobody needs it any more.
    """

    def __init__(self, session: Any, warm: bool = False) -> None:
        self._backend = internals.ExecutorBackend(session)
        self._asked: int | None = None
        self._wanted: int | None = None  # what was asked last, until the errand for it runs
        self._errands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # None: that was all
        self._cold: WarmUp | None = WarmUp(self._backend) if warm else None
        threading.Thread(target=self._run_errands, name="springtide-cluster", daemon=True).start()

    def executors(self) -> tuple[Executor, ...]:
        there = self._backend.executors()
        return there if self._cold is None else tuple(replace(one, starting=not self._cold.ready(one)) for one in there)

    def ask(self, total: int) -> None:
        if self._cold is not None and total != self._asked:  # one that is repeated may never come: look for it as for any
            self._cold.expect()
        self._wanted = self._asked = total
        self._errands.put(self._ask_newest)

    def release(self, names: Sequence[str]) -> None:
        self._errands.put(lambda: self._backend.release(list(names)))

    def close(self) -> None:
        """End its threads, after what was asked before; returns at once, and may be repeated. The executors stay."""
        if self._cold is not None:
            self._cold.close()
        self._errands.put(None)

    def _ask_newest(self) -> None:
        total, self._wanted = self._wanted, None
        if total is not None:
            self._backend.request_total(total)

    def _run_errands(self) -> None:
        failing = False
        while (errand := self._errands.get()) is not None:
            try:
                errand()
                failing = False
            except Exception as error:  # noqa: BLE001  the JVM may be gone, the cluster manager away: the run goes on
                if not failing:  # once: it will be asked again and again
                    log.warning("the cluster did not do what it was asked: %r", error)
                failing = True


class WarmUp:
    """Looks for new executors, and has each start Python at once: until then its only slot is taken, and no batch waits for it.

    When something fails, or after ``close``, executors count as ready, as they would without this.
    """

    def __init__(self, backend: internals.ExecutorBackend) -> None:
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
    return LocalCluster() if is_local(session) else SparkCluster(session, warm)


def is_local(session: Any) -> bool:
    """Whether tasks run in the driver's own process. ``local-cluster`` has executors of its own."""
    master = str(session.sparkContext.master)
    return master == "local" or master.startswith("local[")


def cores_each(session: Any) -> int:
    """How many tasks an executor runs at once."""
    conf, master = session.sparkContext.getConf(), str(session.sparkContext.master)
    per_task = int(conf.get("spark.task.cpus", "1") or 1)
    cores = master.split(",")[1] if master.startswith("local-cluster[") else conf.get("spark.executor.cores")
    if cores is None:
        raise SetupError(
            "spark.executor.cores is not set, so an executor takes all the cores of a machine, and nothing can be asked for"
            " or released by steps; set it, such as spark.executor.cores=1"
        )
    return max(1, int(cores) // per_task)


def check(session: Any, instead: str = "") -> None:
    """Refuse a session whose executors Spark itself adds and removes; ``instead``: what else could be done."""
    if session.conf.get(DYNAMIC, "false") == "true":
        raise SetupError(
            f"{DYNAMIC} is true: Spark adds and removes executors by itself, against the plan, and refuses to let anybody else"
            f" do it. Set {DYNAMIC}=false{instead}"
        )
