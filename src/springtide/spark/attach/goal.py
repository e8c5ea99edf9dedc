"""The goal of an attachment, and the query as an attachment sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from springtide.control.fleet import Limits
from springtide.spark.attach.batches import QueryBatch


class WatchedQuery(Protocol):
    """What is seen of a query."""

    name: str

    def ended(self) -> str | None:
        """Why it is no longer active; None while it is."""
        ...

    def new_batches(self) -> list[QueryBatch]:
        """Those that ended since the last time, the oldest first; when asked first, the last one."""
        ...

    def idle(self) -> bool:
        """Whether, when new batches were last asked for, it had found nothing to read, and none ran or was yet to be told."""
        ...


@dataclass(frozen=True)
class Goal:
    """What is wanted of an attachment. ``before``: the executors of the application; ``slots``: the tasks they run.

    ``grows``: nobody said how many executors there may be, so there may be as many as the application has by itself.
    """

    policy: str
    target_s: float
    trigger_s: float
    interval_s: float
    limits: Limits
    dry_run: bool
    before: int
    slots: int
    grows: bool = False

    def with_executors(self, before: int) -> Goal:
        """When more of the application's own executors have come than were there when it was attached to."""
        limits = replace(self.limits, most=max(self.limits.most, before)) if self.grows else self.limits
        return replace(self, limits=limits, before=before, slots=before * limits.cores)
