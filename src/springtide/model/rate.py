"""How many records a generated stream has brought at any time, and when each of them was created.

Every rate is a row of steps of constant rate. Its integral C(t) is the number of records that came by time t; record i
(from 0) is created when C reaches i + 1. Both directions are plain interpolation, so a record's creation time is a pure
function of its number, and is the same after a restart.
"""

from __future__ import annotations

import csv
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError, TraceError

_SAMPLE_S = 0.1
_HORIZON_S = 86_400.0


@dataclass(frozen=True)
class Rate:
    """Steps of constant rate: from ``starts[i]`` seconds on, ``values[i]`` records/s; none after ``end``."""

    starts: tuple[float, ...]
    values: tuple[float, ...]
    end: float = math.inf
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.values):
            raise OptionError("a rate needs at least one step, and as many starts as values")
        if any(not math.isfinite(v) or v < 0 for v in self.values):
            raise OptionError(f"a rate is finite and not negative; got {min(self.values)}")
        if any(b <= a for a, b in zip(self.starts, (*self.starts[1:], self.end), strict=True)):
            raise OptionError("the steps of a rate come in the order of time, each longer than nothing")

    def __str__(self) -> str:
        return self.label or f"{len(self.starts)} steps"

    @cached_property
    def _edges(self) -> npt.NDArray[np.float64]:
        end = self.end if math.isfinite(self.end) else self.starts[-1] + 1.0
        return np.array([*self.starts, end])

    @cached_property
    def _counts(self) -> npt.NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(np.diff(self._edges) * np.array(self.values))])

    @property
    def total(self) -> int | None:
        """How many records come in all; None when they never end."""
        return int(self._counts[-1] + 1e-9) if math.isfinite(self.end) else None

    def count(self, t: float) -> int:
        """How many records were created by ``t`` seconds.

        >>> Rate((0.0,), (10.0,)).count(2.55)
        25
        """
        t = max(0.0, min(t, self.end))
        whole = float(np.interp(t, self._edges, self._counts))
        beyond = max(0.0, t - float(self._edges[-1])) * self.values[-1]
        return int(whole + beyond + 1e-9)

    def created(self, first: int, last: int) -> npt.NDArray[np.float64]:
        """The creation times, in seconds, of the records ``first`` to ``last - 1``.

        >>> Rate((0.0,), (10.0,)).created(0, 3).tolist()
        [0.1, 0.2, 0.3]
        """
        wanted = np.arange(first + 1, last + 1, dtype=np.float64)
        rising = np.concatenate([[True], np.diff(self._counts) > 0])  # a step of rate 0 creates nothing
        times = np.interp(wanted, self._counts[rising], self._edges[rising])
        beyond = wanted > self._counts[-1]
        if beyond.any():
            if math.isfinite(self.end) or self.values[-1] <= 0:
                raise OptionError(f"record {last - 1} never comes: the rate brings {self.total} in all")
            times[beyond] = self._edges[-1] + (wanted[beyond] - self._counts[-1]) / self.values[-1]
        return times


def constant(value: float) -> Rate:
    """So many records a second, for ever."""
    return Rate((0.0,), (float(value),), label=f"{value:g}/s")


def sampled(function: Callable[[float], float], duration: float = _HORIZON_S) -> Rate:
    """A function of the time in seconds, sampled in the middle of steps of 0.1 s; the last value holds afterwards."""
    steps = max(1, round(duration / _SAMPLE_S))
    values = tuple(max(0.0, float(function((i + 0.5) * _SAMPLE_S))) for i in range(steps))
    return Rate(tuple(i * _SAMPLE_S for i in range(steps)), values, label=getattr(function, "__name__", "function"))


def trace(path: str | Path, *, speed: float = 1.0, scale: float = 1.0) -> Rate:
    """A CSV file of ``time,value`` lines: seconds or timestamps, and records/s from then until the next line.

    ``speed`` 10 plays an hour in six minutes at ten times the rate, so that as many records come; ``scale`` multiplies
    the rate. The last line holds as long as the one before it; then the stream ends.
    """
    file = Path(path)
    if not file.is_file():
        raise TraceError(f"no trace at {str(path)!r}; a trace is a CSV file with lines of time,value")
    if not (speed > 0 and scale > 0):
        raise OptionError(f"speed={speed} and scale={scale} of a trace must be above 0")
    times: list[float] = []
    values: list[float] = []
    with file.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), start=1):
            if not row or (number == 1 and _is_header(row)):
                continue
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


def _is_header(row: list[str]) -> bool:
    return len(row) == 2 and not any(c.isdigit() for c in "".join(row))


def _point(file: Path, number: int, row: list[str]) -> tuple[float, float]:
    try:
        time, value = row
        try:
            seconds = float(time)
        except ValueError:
            moment = datetime.datetime.fromisoformat(time)
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
    """What a user passed as ``rate=``: a number, a Rate, or a function of the time in seconds."""
    if isinstance(given, Rate):
        return given
    if isinstance(given, bool) or given is None:
        raise OptionError(f"rate={given!r}: give records/s, springtide.trace(...), or a function of the seconds")
    if isinstance(given, (int, float)):
        return constant(given)
    if callable(given):
        return sampled(given)
    raise OptionError(f"rate={given!r}: give records/s, springtide.trace(...), or a function of the seconds")
