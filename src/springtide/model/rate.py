"""The rate of a generated stream: the number of its records at any time, and the creation time of each.

A rate is a sequence of steps of constant rate. Its integral C(t) is the number of records that came by time t;
record i (from 0) is created when C reaches i + 1. Within a step C and its inverse are straight lines, so a
record's creation time is a pure function of its number, and is the same after a restart.
"""

from __future__ import annotations

import csv
import datetime
import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError, TraceError

_SAMPLE_S = 0.1
_HORIZON_S = 86_400.0
_DECIMALS = 6  # counts are rounded to a millionth of a record, so that ten tenths of a record make exactly 1


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a rate, and the number of records by each edge: together they give the creation times.

    A part of the steps gives the same creation times as the whole, so a task gets only the steps of its records.
    """

    edges: npt.NDArray[np.float64]  # seconds; the number of steps plus 1; inf means an open end
    counts: npt.NDArray[np.float64]  # the number of records by each edge
    values: npt.NDArray[np.float64]  # records/s between two edges

    def created(self, first: int, last: int) -> npt.NDArray[np.float64]:
        """The creation times, in seconds, of the records ``first`` to ``last - 1``."""
        wanted = np.arange(first + 1, last + 1, dtype=np.float64)
        ends = np.searchsorted(self.counts, wanted, side="left")  # the first edge by which a record is there
        if last > first and ends[-1] == len(self.counts):
            raise OptionError(f"record {last - 1} never comes: the rate brings {int(self.counts[-1])} in all")
        begins = ends - 1  # the count rises in the step before that edge, so its rate is not zero
        times = self.edges[begins] + (wanted - self.counts[begins]) / self.values[begins]
        return np.minimum(times, self.edges[ends])

    def part(self, first: int, last: int) -> Steps:
        """The steps of the records ``first`` to ``last - 1``."""
        low, high = np.searchsorted(self.counts, (first + 1, last), side="left")
        edges = slice(low - 1, high + 1)
        return Steps(self.edges[edges], self.counts[edges], self.values[low - 1 : high])


@dataclass(frozen=True)
class Rate:
    """Steps of constant rate: from ``starts[i]`` seconds on, ``values[i]`` records/s; none after ``end``."""

    starts: tuple[float, ...]
    values: tuple[float, ...]
    end: float = math.inf
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.values):
            steps = f"{len(self.starts)} starts and {len(self.values)} values"
            raise OptionError(f"a rate of {steps} is not allowed; give at least one step, and as many starts as values")
        values = np.array(self.values)
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if wrong.size:
            raise OptionError(f"a rate of {wrong[0]} records/s is not allowed; give finite values of 0 or more")
        edges = np.array([*self.starts, self.end])
        if not (edges[0] >= 0 and np.isfinite(edges[:-1]).all() and (np.diff(edges) > 0).all()):
            starts = ", ".join(f"{start:g}" for start in self.starts)
            raise OptionError(
                f"steps of a rate that start at {starts} and end at {self.end:g} s are not allowed; give rising starts, from 0"
                " s on, before the end"
            )

    def __str__(self) -> str:
        return self.label or f"{len(self.starts)} steps"

    def __reduce__(self) -> tuple[Any, ...]:
        return Rate, (self.starts, self.values, self.end, self.label)  # derived values are computed again

    @cached_property
    def steps(self) -> Steps:
        """The steps with their counts."""
        edges, values = np.array([*self.starts, self.end]), np.array(self.values)
        if values[-1] == 0.0:  # no record comes in this step, so its end does not matter; 0 × inf would be NaN
            edges[-1] = min(edges[-1], edges[-2] + 1.0)
        counts = np.concatenate([[0.0], np.cumsum(np.diff(edges) * values)])
        return Steps(edges, np.round(counts, _DECIMALS), values)

    @property
    def total(self) -> int | None:
        """The number of records in all; None if the stream never ends."""
        last = self.steps.counts[-1]
        return int(last) if math.isfinite(last) else None

    def count(self, t: float) -> int:
        """The number of records by ``t`` seconds: record i is counted from its creation time on.

        >>> Rate((0.0,), (10.0,)).count(2.55)
        25
        """
        steps, total = self.steps, self.total
        if t < steps.edges[0]:
            return 0
        if total is not None and t >= steps.edges[-1]:
            return total
        step = int(np.searchsorted(steps.edges, t, side="right")) - 1
        guess = steps.counts[step] + steps.values[step] * (t - steps.edges[step])
        count = int(min(guess, steps.counts[step + 1]))
        while count > 0 and self._created(count - 1) > t:  # rounding, at most once or twice
            count -= 1
        while (total is None or count < total) and self._created(count) <= t:
            count += 1
        return count

    def created(self, first: int, last: int) -> npt.NDArray[np.float64]:
        """The creation times, in seconds, of the records ``first`` to ``last - 1``.

        >>> Rate((0.0,), (10.0,)).created(0, 3).tolist()
        [0.1, 0.2, 0.3]
        """
        return self.steps.created(first, last)

    def _created(self, index: int) -> float:
        return float(self.steps.created(index, index + 1)[0])


def constant(value: float) -> Rate:
    """A constant number of records a second, for ever."""
    return Rate((0.0,), (float(value),), label=f"{value:g}/s")


def sampled(function: Callable[[float], float], duration: float = _HORIZON_S) -> Rate:
    """A function of the time in seconds, sampled in the middle of steps of 0.1 s. After ``duration`` the last value stays.

    A value below 0 means no records; a value that is not finite is refused.
    """
    steps = max(1, round(duration / _SAMPLE_S))
    values = tuple(_sample(function, (i + 0.5) * _SAMPLE_S) for i in range(steps))
    label = getattr(function, "__name__", "function")
    return Rate(tuple(i * _SAMPLE_S for i in range(steps)), values, label=label)


def _sample(function: Callable[[float], float], t: float) -> float:
    value = float(function(t))
    if not math.isfinite(value):
        name = getattr(function, "__name__", repr(function))
        raise OptionError(f"rate={name}: at {t:g} s it returns {value}; return a finite number of records/s")
    return max(0.0, value)


def trace(path: str | Path, *, speed: float = 1.0, scale: float = 1.0) -> Rate:
    """A CSV file of ``time,value`` lines: seconds or timestamps, and records/s from then until the next line.

    ``speed`` 10 plays an hour in six minutes at ten times the rate, so that the number of records stays the same; ``scale``
    multiplies the rate. The last line lasts as long as the line before it; then the stream ends.
    """
    file = Path(path)
    if not file.is_file():
        raise TraceError(f"no trace at {str(path)!r}; a trace is a CSV file with lines of time,value")
    if not (0 < speed < math.inf and 0 < scale < math.inf):
        raise OptionError(f"speed={speed} and scale={scale} of a trace must be above 0")
    times: list[float] = []
    values: list[float] = []
    for number, row in _rows(file):
        time, value = _point(file, number, row)
        if times and time <= times[-1]:
            raise TraceError(f"{file}, line {number}: {','.join(row)!r} is not later than the line before it")
        times.append(time)
        values.append(value)
    if not times:
        raise TraceError(f"{file} has no lines of time,value")
    last = times[-1] - times[-2] if len(times) > 1 else 1.0
    starts = tuple((t - times[0]) / speed for t in times)
    return Rate(starts, tuple(v * scale * speed for v in values), starts[-1] + last / speed, label=file.name)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines with a time and a value, and their numbers. utf-8-sig: spreadsheets begin a file with a byte order mark."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines)
            for row in reader:
                if any(cell.strip() for cell in row) and not (reader.line_num == 1 and _is_header(row)):
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise TraceError(f"{file} cannot be read as a CSV file with lines of time,value: {fault}") from fault


def _is_header(row: list[str]) -> bool:
    return len(row) == 2 and not any(c.isdigit() for c in "".join(row))


def _point(file: Path, number: int, row: list[str]) -> tuple[float, float]:
    try:
        time, value = row
        try:
            seconds = float(time)
        except ValueError:
            moment = datetime.datetime.fromisoformat(time.strip())
            seconds = (moment.replace(tzinfo=moment.tzinfo or datetime.UTC)).timestamp()
        rate = float(value)
        if not (math.isfinite(seconds) and math.isfinite(rate) and rate >= 0):
            raise ValueError
    except ValueError:
        raise TraceError(
            f"{file}, line {number}: {','.join(row)!r} is not time,value: seconds or a timestamp, and a rate of 0 or more"
        ) from None
    return seconds, rate


def as_rate(given: object) -> Rate:
    """The rate in a user's ``rate=``: a number, a Rate, or a function of the time in seconds."""
    if isinstance(given, Rate):
        return given
    if isinstance(given, numbers.Real) and not isinstance(given, bool):  # numpy's numbers too
        return constant(float(given))
    if callable(given):
        return sampled(given)
    raise OptionError(f"rate={given!r}: give records/s, springtide.trace(...), or a function of the seconds")
