"""Times at which nothing changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from springtide.errors import OptionError
from springtide.model.duration import seconds
from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.registry import parameter

DAYS = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
_DAY_S, _WEEK_S = 86_400.0, 7 * 86_400.0

Spans = tuple[tuple[float, float], ...]
"""(begin, end) in seconds; the end is excluded."""


@dataclass(frozen=True)
class Excluded(GuardPlugin):
    """No request passes in the given periods.

    ``periods`` count from the start of the run. ``daily`` are times of the day, with the days on which they begin; a period
    that ends before it begins ends on the next day. A policy has no clock, so ``started`` is the time of the run's start; the
    daily times are in its time zone at that moment: a later change to daylight saving time has no effect.

    >>> guard = Excluded(daily="08:00-09:30 Mo-Fr; 23:00-01:00 Sa", started="2026-03-02T07:00:00")  # a Monday
    >>> [guard.excludes(at) for at in (3599, 3600, 8999, 9000)]
    [False, True, True, False]
    """

    name = "excluded"
    source = "Flink autoscaler"
    summary = "periods in which nothing changes"

    periods: str = parameter("", help="since the run's start, such as 0-60s; 10m-15m (up to, not including, the end)")
    daily: str = parameter("", help="times of the day, such as 08:00-09:30 Mo-Fr; 23:00-01:00 Sa,Su; needs started")
    started: str = parameter("", help="when the run started, such as 2026-03-02T07:00:00+01:00")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._since_start, self._weekly, self._offset  # a wrong text fails here, not in the first interval
        if self.daily.strip() and not self.started.strip():
            raise OptionError(f"'excluded': daily={self.daily!r} needs started, such as started='2026-03-02T07:00:00'")

    @cached_property
    def _since_start(self) -> Spans:
        found = []
        for part in _parts(self.periods):
            begin, _, end = part.partition("-")
            try:
                span = seconds(begin.strip()), seconds(end.strip())
            except OptionError:
                span = (0.0, 0.0)
            if span[0] >= span[1]:
                raise OptionError(f"'excluded': periods={self.periods!r}: {part!r} is not begin-end, such as 10m-15m")
            found.append(span)
        return tuple(found)

    @cached_property
    def _weekly(self) -> Spans:
        """The daily periods by the second of the week, from Monday on; a period into the next day may end after the week."""
        found = []
        for part in _parts(self.daily):
            times, _, days = part.partition(" ")
            begin, end = (_time(word) for word in (times.split("-") if times.count("-") == 1 else ("", "")))
            chosen = _days(days)
            if begin is None or end is None or begin == end or not chosen:
                wanted = f"HH:MM-HH:MM and days, such as 08:00-09:30 Mo-Fr; the days are {', '.join(DAYS)}"
                raise OptionError(f"'excluded': daily={self.daily!r}: {part!r} is not {wanted}")
            long = end - begin if end > begin else end - begin + _DAY_S
            found += [(day * _DAY_S + begin, day * _DAY_S + begin + long) for day in sorted(chosen)]
        return tuple(found)

    @cached_property
    def _offset(self) -> float:
        """The second of the week in which the run started."""
        if not self.started.strip():
            return 0.0
        try:
            start = datetime.fromisoformat(self.started.strip())
        except ValueError:
            raise OptionError(f"'excluded': started={self.started!r} is no time; write such as 2026-03-02T07:00:00") from None
        return start.weekday() * _DAY_S + start.hour * 3600 + start.minute * 60 + start.second + start.microsecond / 1e6

    def excludes(self, at: float) -> bool:
        """Whether nothing may change ``at`` seconds after the start."""
        if not math.isfinite(at):
            return False
        week = (self._offset + at) % _WEEK_S
        return any(begin <= at < end for begin, end in self._since_start) or any(
            begin <= moment < end for begin, end in self._weekly for moment in (week, week + _WEEK_S)
        )

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        return state, () if self.excludes(snapshot.at) else requests

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        periods = "; ".join(filter(None, (self.periods.strip(), self.daily.strip())))
        return f"{snapshot.at:g} s after the start is in a period in which nothing changes: {periods}"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _time(word: str) -> float | None:
    """The second of the day; 24:00 is its end. None for an invalid time."""
    hour, _, minute = word.strip().partition(":")
    if not (hour.isdecimal() and minute.isdecimal() and len(minute) == 2):
        return None
    total = int(hour) * 3600.0 + int(minute) * 60.0
    return total if int(minute) < 60 and total <= _DAY_S else None


def _days(text: str) -> set[int]:
    """The numbers of days such as Mo-Fr,Su; all days for empty text, and none for an invalid day."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(",") if text.strip() else ["Mo-Su"]:
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            return set()
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, begin + (end - begin) % 7 + 1)}
    return found
