"""The batch that runs when a query is to end: it may go to its end, and is given up where it makes no progress."""

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
"""A batch that makes no progress for this long is given up when the run has to end. Ten seconds is a third of what Kubernetes
gives a process between SIGTERM and SIGKILL; a batch that is given up is processed again by the next start."""
CANCEL_S = 10.0
"""How long a cancelled batch may take to end; Spark interrupts its tasks within milliseconds."""


class LastBatch:
    """Waits for the batch that runs. ``is_over``: whether the run has to end now, whatever waits."""

    def __init__(
        self, checkpoint: Checkpoint, program: Program, workers: Workers, stalls: Stalls, patience_s: float,
        is_over: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._checkpoint, self._program, self._workers, self._stalls = checkpoint, program, workers, stalls
        self._patience_s, self._is_over = min(END_PATIENCE_S, patience_s), is_over
        self.given_up: int | None = None

    def outwait(self, runner: BatchRunner, is_running: Callable[[], bool], cancel: Callable[[], object], patient: bool) -> bool:
        """Wait for the running batch; once the run is to be over, as long as the batch makes progress, and then cancel it.
        Returns whether it came to its end. ``patient``: the run is not to be over yet."""
        since = None if patient else time.monotonic()
        while is_running():
            self._stalls.look()
            since = since or (time.monotonic() if self._is_over() else None)
            if since is not None and min(self._stalls.still_s, time.monotonic() - since) >= self._patience_s:
                self._give_up(runner, cancel)
                return False
        return True

    def retire(self, runner: BatchRunner) -> None:
        """Let no batch of a runner start any more, and wait for the one that runs: it would commit what the next epoch
        sweeps away."""
        runner.retire()
        since = None
        while not runner.is_idle(1.0):  # also when the JVM died: its batch may be in a commit
            since = since or (time.monotonic() if self._is_over() else None)
            if since is not None and time.monotonic() - since > self._patience_s:
                self._checkpoint.next_epoch()  # it hangs, and the run has to end; so that it cannot commit any more
                break

    def _give_up(self, runner: BatchRunner, cancel: Callable[[], object]) -> None:
        """Cancel the running batch, and end the workers that do not notice it."""
        batch, done = runner.running, runner.batches
        runner.given_up = True
        cancelling = threading.Thread(target=_suppressed, args=(cancel,), name="springtide-stop", daemon=True)
        cancelling.start()
        cancelling.join(CANCEL_S)  # it waits for the batch
        killed = self._workers.kill()
        if not runner.is_idle(0.0):  # a sink's or a sql operator's function hangs in this process, where nothing can end it
            self._checkpoint.next_epoch()  # so that it cannot commit any more
        if batch is None or runner.batches > done:
            return
        self.given_up, runner.failure = batch, None  # it hangs, and whatever failed before it got there has been logged
        ended = "".join(f"; ended process {w.pid} {where(self._program, w.batch, w.place)}" for w in killed)
        log.warning(
            "batch %d made no progress for %.0f s and was given up, so that the run can end%s. Nothing of it is committed; the"
            " next start processes it again", batch, self._patience_s, ended,
        )  # fmt: skip


def _suppressed(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the JVM may be dead, and the query with it
        call()
