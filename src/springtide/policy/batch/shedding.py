"""Load shedding, as in PSPS: leave out records that are too old, or too many. It is off by default.

One rule, for batches here and record by record in the simulator's kernels: the oldest are shed first. The result of a record
that has waited long is worth least, and those behind it gain by its leaving. PSPS's t_out removes "events that have been queued
for a long time"; of its queue limit the paper says only that incoming events are dropped while a queue is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from springtide.errors import OptionError

MIN_RELATIVE_CHANGE = 0.1
"""A new age limit that differs by less than this share is not used. Measured rates always vary, and every new limit is a new
plan, which is recorded."""


@dataclass(frozen=True)
class Shedding:
    """PSPS's t_out and queue limit, for micro-batches: the greatest age of a record when its batch starts.

    ``timeout_s``: older records are left out. ``queue_limit``: if more records wait, only the newest are processed, up to this
    number; divided by the arrival rate, that is an age too. The read rate would not do: it is lower under overload, when the
    batches of an interval may read the arrivals of minutes.

    >>> Shedding(timeout_s=30.0, queue_limit=1_000).allowed(waiting=5_000, rate=100.0)
    10.0
    """

    timeout_s: float | None = None
    queue_limit: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise OptionError(f"shed_after={self.timeout_s:g} s is not allowed; it is above 0")
        if self.queue_limit is not None and self.queue_limit < 1:
            raise OptionError(f"queue_limit={self.queue_limit} is not allowed; it is at least 1")

    def allowed(self, waiting: float | None, rate: float | None, before: float | None = None) -> float | None:
        """The age above which records are left out, for a backlog and an arrival rate; None if none are left out.

        ``before``: the present limit of the age.
        """
        if self.queue_limit is None or not waiting or not rate or waiting <= self.queue_limit:
            return self.timeout_s
        newest = self.queue_limit / rate
        if self.timeout_s is not None and newest >= self.timeout_s:
            return self.timeout_s
        return before if before and abs(newest - before) <= MIN_RELATIVE_CHANGE * newest else newest
