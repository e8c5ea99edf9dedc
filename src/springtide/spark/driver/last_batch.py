"""The batch that runs when a query has to end: it may complete, and is given up if it makes no progress."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.crashes import where
from springtide.spark.driver.stalls import Stalls
from springtide.spark.driver.workers import Workers
from springtide.spark.shared.program import Program

log = logging.getLogger("springtide.spark")

END_PATIENCE_S = 10.0
"""Give up a batch without progress for this long, when the run has to end. Ten seconds is a third of the time that Kubernetes
leaves a process between SIGTERM and SIGKILL; the next start processes the batch again."""
CANCEL_S = 10.0
"""Limits the wait for a cancelled batch; Spark interrupts its tasks within milliseconds."""


class LastBatch:
    """Waits for the running batch. ``is_over``: whether the run has to end now, even if records wait."""

    def __init__(
        self, checkpoint: Checkpoint, program: Program, workers: Workers, stalls: Stalls, patience_s: float,
        is_over: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._checkpoint, self._program, self._workers, self._stalls = checkpoint, program, workers, stalls
        self._patience_s, self._is_over = min(END_PATIENCE_S, patience_s), is_over
        self.given_up: int | None = None

    def outwait(self, runner: BatchRunner, is_running: Callable[[], bool], cancel: Callable[[], object], patient: bool) -> bool:
        """Wait for the running batch. Once the run has to end, cancel the batch as soon as it makes no progress.
        Returns whether the batch completed. ``patient``: the run does not have to end yet."""
        since = None if patient else time.monotonic()
        while is_running():
            self._stalls.look()
            since = since or (time.monotonic() if self._is_over() else None)
            if since is not None and min(self._stalls.still_s, time.monotonic() - since) >= self._patience_s:
                self._give_up(runner, cancel)
                return False
        return True

    def retire(self, runner: BatchRunner) -> None:
        """Refuse further batches of a runner, and wait for the running one: otherwise it would commit files that the next epoch
        removes."""
        runner.retire()
        since = None
        while not runner.is_idle(1.0):  # also when the JVM died: its batch may be in a commit
            since = since or (time.monotonic() if self._is_over() else None)
            if since is not None and time.monotonic() - since > self._patience_s:
                self._checkpoint.next_epoch()  # the batch hangs: prevent its commit
                break

    def _give_up(self, runner: BatchRunner, cancel: Callable[[], object]) -> None:
        """Cancel the running batch, and kill the workers that do not react."""
        batch, done = runner.running, runner.batches
        runner.given_up = True
        cancelling = threading.Thread(target=_suppressed, args=(cancel,), name="springtide-stop", daemon=True)
        cancelling.start()
        cancelling.join(CANCEL_S)
        killed = self._workers.kill()
        if not runner.is_idle(0.0):  # a function of a sink or a sql operator hangs in this process, where nothing can end it
            self._checkpoint.next_epoch()  # prevent its commit
        if batch is None or runner.batches > done:
            return
        self.given_up, runner.failure = batch, None  # earlier failures are in the log
        ended = "".join(f"; ended process {w.pid} {where(self._program, w.batch, w.place)}" for w in killed)
        left = "Nothing of it is committed; the next start processes it again"
        if self._checkpoint.manifest(batch) is not None:
            left = "It is committed; the next start publishes what readers cannot see yet"
        log.warning(
            "batch %d made no progress for %.0f s and was given up, so that the run can end%s. %s",
            batch, self._patience_s, ended, left,
        )  # fmt: skip


def _suppressed(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the JVM may be dead, and the query with it
        call()
