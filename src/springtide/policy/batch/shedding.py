"""Load shedding: leave out records that are too old to be of use, or too many, as PSPS does. Off unless asked for.

One rule, for batches here and record by record in the simulator's kernels: the oldest are shed first. A record that has waited
long is the one whose result is worth least, and those behind it gain by its leaving. PSPS's t_out removes "events that have
been queued for a long time". Of its queue limit the paper says only that incoming events are dropped while a queue is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from springtide.errors import OptionError

STEADY = 0.1
"""An age that would keep so much more or less than the limit stays: rates are never twice the same, and each new age is a new
plan, to be recorded."""


@dataclass(frozen=True)
class Shedding:
    """PSPS's t_out and queue limit, for micro-batches: the maximum age of a record when its batch starts.

    ``timeout_s``: older ones are shed. ``queue_limit``: when more than this wait, the oldest are shed; by the rate at which
    records arrive, that is an age too. The rate at which they are read would not do: under too high a load it is less, and what
    the batches of an interval read may have arrived over minutes.

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
        """The age beyond which records are left out, when so many wait and so many come in a second; None: none are.

        ``before``: the age that was allowed last.
        """
        if self.queue_limit is None or not waiting or not rate or waiting <= self.queue_limit:
            return self.timeout_s
        newest = self.queue_limit / rate
        if self.timeout_s is not None and newest >= self.timeout_s:
            return self.timeout_s
        return before if before and abs(newest - before) <= STEADY * newest else newest
