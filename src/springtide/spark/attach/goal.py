"""The goal of an attachment, and the query as an attachment sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from springtide.control.fleet import Limits
from springtide.spark.attach.batches import QueryBatch


class WatchedQuery(Protocol):
    """A query as an attachment sees it."""

    name: str

    def ended(self) -> str | None:
        """The reason why it is no longer active; None while it is active."""

    def new_batches(self) -> list[QueryBatch]:
        """The batches that ended since the last call, the oldest first; the last batch at the first call."""

    def idle(self) -> bool:
        """Whether, at the last call of ``new_batches``, it had nothing to read and no batch was running or unreported."""


@dataclass(frozen=True)
class Goal:
    """The goal of an attachment. ``before``: the application's own executors; ``slots``: the tasks that they run at a time.

    ``grows``: the maximum was not given, so it is the number of the application's own executors.
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
        """The goal after more of the application's own executors have started."""
        limits = replace(self.limits, most=max(self.limits.most, before)) if self.grows else self.limits
        return replace(self, limits=limits, before=before, slots=before * limits.cores)
