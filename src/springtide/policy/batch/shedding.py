"""Load shedding: leave out records that come too late to be of use, or too many, as PSPS does. Off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.errors import OptionError
from springtide.model.snapshot import Snapshot


@dataclass(frozen=True)
class Shedding:
    """PSPS's t_out and queue limit, for micro-batches: how old a record may be when its batch starts.

    ``timeout_s``: older ones are left out. ``queue_limit``: when more than this wait, only as many of the newest are kept; with
    the rate at which records come, that is an age too.

    >>> Shedding(timeout_s=30.0, queue_limit=1_000).allowed(backlog=5_000, rate=100.0)
    10.0
    """

    timeout_s: float | None = None
    queue_limit: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise OptionError(f"shed_after={self.timeout_s:g} s is not allowed; it is above 0")
        if self.queue_limit is not None and self.queue_limit < 1:
            raise OptionError(f"queue_limit={self.queue_limit} is not allowed; it is at least 1")

    def after(self, snapshot: Snapshot | None) -> float | None:
        """The age beyond which records are left out now; None: none are."""
        return self.timeout_s if snapshot is None else self.allowed(snapshot.backlog, snapshot.rate)

    def allowed(self, backlog: float | None, rate: float | None) -> float | None:
        if self.queue_limit is None or not backlog or not rate or backlog <= self.queue_limit:
            return self.timeout_s
        newest = self.queue_limit / rate
        return newest if self.timeout_s is None else min(newest, self.timeout_s)
