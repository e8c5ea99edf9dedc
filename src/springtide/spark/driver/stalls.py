"""Warns of records at which a batch is stuck, and measures the time without progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

from springtide.once import Once
from springtide.spark.driver.crashes import where
from springtide.spark.driver.workers import Worker, Workers
from springtide.spark.shared.program import Program

log = logging.getLogger("springtide.spark")

LOOK_EVERY_S = 1.0
"""Interval between two readings of the workers' pages, which take 10 µs each."""

Running = Callable[[], int | None]
"""Returns the running batch; None between two batches."""
Stages = Callable[[], tuple[str, ...]]
"""Returns a description of each running stage, which changes whenever a task ends."""


class Stalls:
    """Watches a run for workers that stay at the same record."""

    def __init__(
        self, program: Program, workers: Workers, after_s: float, running: Running, stages: Stages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._program, self._workers, self._after_s = program, workers, after_s
        self._running, self._stages, self._clock = running, stages, clock
        self._looked = -LOOK_EVERY_S
        self._since: dict[Worker, float] = {}  # when each worker reached its present place
        self._seen: Hashable = None  # the batch and its workers at the last look
        self._stages_seen: tuple[str, ...] = ()
        self._last_progress = clock()
        self._stuck = Once()

    @property
    def still_s(self) -> float:
        """The seconds without progress, as of the last look."""
        return max(0.0, self._looked - self._last_progress)

    def look(self) -> None:
        """Look at the workers, at most once a second, and warn of those that are stuck."""
        now = self._clock()
        if now - self._looked < min(LOOK_EVERY_S, self._after_s / 2):
            return
        self._looked = now
        batch = self._running()
        if batch is None:
            self._last_progress, self._seen = now, None
            return
        busy = self._workers.busy(batch)
        self._since = {worker: self._since.get(worker, now) for worker in busy}
        before, self._seen = self._seen, (batch, frozenset(busy))
        stages = self._stages() if before == self._seen else ()  # calls Spark, so only for a batch without visible progress
        if before != self._seen or (stages != self._stages_seen and self._stages_seen):
            self._last_progress = now
        self._stages_seen = stages
        self._warn(batch, busy, now)

    def _warn(self, batch: int, busy: list[Worker], now: float) -> None:
        for worker in busy:
            if now - self._since[worker] >= self._after_s:
                self._once((batch, worker.place), f"{self._still(worker, now)}; {_advice(worker)}")
        if not busy and now - self._last_progress >= self._after_s:
            at = (
                f"its tasks: {', '.join(self._stages_seen)}"
                if self._stages_seen
                else "no task runs, so a sink or the driver is at work"
            )
            self._once(
                batch,
                f"batch {batch} has made no progress for {now - self._last_progress:.0f} s, outside of any operator; {at}",
            )

    def _still(self, worker: Worker, now: float) -> str:
        return f"no progress for {now - self._since[worker]:.0f} s {where(self._program, worker.batch, worker.place)}"

    def _once(self, about: Hashable, warning: str) -> None:
        if self._stuck.begins(about):
            log.warning("%s", warning)


def _advice(worker: Worker) -> str:
    return (
        f"process {worker.pid} on {worker.host} works on it, `py-spy dump --pid {worker.pid}` shows where. To end the run is"
        " safe: the next start processes the batch again"
    )
