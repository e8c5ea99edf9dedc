"""When a run is to end, and why it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Ending:
    """When a run ends by itself: after so many seconds or batches, or with what is there now."""

    duration_s: float | None = None
    batches: int | None = None
    available_now: bool = False


class Ended(StrEnum):
    """Why a run ended. A query that ends for any other reason has failed, and is started again."""

    AVAILABLE = "available"  # all that was there when it began is processed
    EXHAUSTED = "exhausted"  # its sources have come to their end
    DURATION = "duration"
    BATCHES = "batches"
    STOPPED = "stopped"  # by a signal, or by the event that was handed in

    @property
    def is_complete(self) -> bool:
        """Whether no record is left that the run was to process."""
        return self in (Ended.AVAILABLE, Ended.EXHAUSTED)
