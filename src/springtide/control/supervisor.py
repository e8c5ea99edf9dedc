"""Restarts a data plane after failures, with pauses, until it fails too often."""

from __future__ import annotations

import logging
import threading

from springtide.control.ports import DataPlane, Failure
from springtide.errors import RunError
from springtide.model.ending import Ended, Ending

log = logging.getLogger("springtide.control")

GIVE_UP_AFTER = 3
"""Give up a run after more failures in a row than this, without a commit in between."""
BACKOFF_S = (1.0, 2.0, 4.0)
"""Pauses before a restart, after the first, the second and every later failure in a row."""


class Supervisor:
    """Restarts the data plane of a run."""

    def __init__(self, plane: DataPlane, stop: threading.Event) -> None:
        self._plane, self._stop = plane, stop
        self.restarts = 0

    def run(self, ending: Ending) -> Ended:
        """Run until the end, and return why it ended."""
        ended: Ended | None = None
        failures = 0
        while ended is None and not self._stop.is_set():
            try:
                ended = self._plane.carry(ending)
            except Failure as failure:
                failures = 0 if failure.mended else 1 if failure.progressed else failures + 1
                if failures:
                    self._pause(failure, failures)
                self.restarts += 1
        return ended or Ended.STOPPED

    def _pause(self, failure: Failure, failures: int) -> None:
        if failures > GIVE_UP_AFTER:
            way_out = f"; {failure.way_out}" if failure.way_out else ""
            raise RunError(
                f"the query failed {failures} times in a row, the last time with {failure.cause}{way_out}"
            ) from failure.__cause__
        wait_s = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
        log.warning("the %s failed (%s); starting again in %.0f s", failure.part, failure.cause, wait_s)
        self._stop.wait(wait_s)
