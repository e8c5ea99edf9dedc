"""Rates by name, for comparisons: recorded traces and generated ones.

Recorded traces are in the folder that ``--data-dir`` or the environment variable SPRINGTIDE_DATA names. A generated trace is a
name and a seed, such as ``bursts:7``, and is the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError, TraceError, nearest
from springtide.model.rate import Rate
from springtide.model.rate import trace as read_csv

Floats = npt.NDArray[np.float64]

VARIABLE = "SPRINGTIDE_DATA"
MEAN = 2_000.0
"""Mean records/s of traces that have other units."""
LENGTH_S = 3_600
"""Length of a generated trace."""

S1 = ((400, 4), (800, 10), (1300, 20), (2500, 50), (5000, 200), (2500, 50), (1500, 20), (1000, 4))
S2 = (
    (400, 4), (400, 10), (2000, 200), (2000, 20), (2000, 200), (400, 10), (1000, 200), (500, 4), (5000, 50), (800, 20),
    (500, 4),
)  # fmt: skip
"""DABS-Storm's streams: (records, records/s)."""


def named(name: str, data: str | Path | None = None) -> Rate:
    """A trace by its name, or the CSV file of that name."""
    kind, _, seed = name.partition(":")
    if kind in GENERATED:
        if seed and not seed.isdecimal():
            raise OptionError(f"trace {name!r}: its seed is a whole number of 0 or more, such as {kind}:1")
        return _by_second(GENERATED[kind](np.random.default_rng([int(seed or 0), *kind.encode()])), name)
    if name in STREAMS:
        return _stream(STREAMS[name], name)
    if name in RECORDED:
        return RECORDED[name](_folder(data))
    if Path(name).is_file() or name.endswith(".csv"):
        return read_csv(name)
    known = [*RECORDED, *STREAMS, *(f"{kind}:SEED" for kind in GENERATED)]
    raise TraceError(f"no trace {name!r}: {nearest(name, known)}; or give a CSV file with lines of time,value")


def _folder(data: str | Path | None) -> Path:
    found = data or os.environ.get(VARIABLE)
    if not found:
        raise OptionError(f"recorded traces are not part of Springtide: name their folder with --data-dir or {VARIABLE}")
    return Path(found)


def _by_second(values: Floats, label: str) -> Rate:
    rates = np.round(np.maximum(values, 0.0), 6)
    return Rate(tuple(np.arange(len(rates), dtype=np.float64).tolist()), tuple(rates.tolist()), float(len(rates)), label)


def _stream(parts: Iterable[tuple[int, int]], label: str) -> Rate:
    starts, at = [], 0.0
    for records, rate in parts:
        starts.append(at)
        at += records / rate
    return Rate(tuple(starts), tuple(float(rate) for _, rate in parts), at, label)


def _first_hours(file: str, hours: float) -> Callable[[Path], Rate]:
    def read(folder: Path) -> Rate:
        rate = read_csv(folder / file)
        count = sum(start < hours * 3600 for start in rate.starts)
        end = min(rate.end, hours * 3600)
        return Rate(rate.starts[:count], rate.values[:count], end, file)

    return read


def _interpolated(file: str) -> Callable[[Path], Rate]:
    """A point every 30 s, straight lines between them, scaled to the usual mean."""

    def read(folder: Path) -> Rate:
        points = np.array(read_csv(folder / file).values)
        seconds = np.interp(np.arange((len(points) - 1) * 30) + 0.5, np.arange(len(points)) * 30.0, points)
        return _by_second(seconds * MEAN / seconds.mean(), file)

    return read


def _taxi(folder: Path) -> Rate:
    """As EDF plays it: five days in 12 hours, a minute's trips every 6 s, times 50/60."""
    file = folder / "edf_nyc_taxi_per_minute.dat"
    if not file.is_file():
        raise TraceError(f"no trace at {str(file)!r}")
    with file.open() as lines:
        counts = [float(line) for _, line in zip(range(7_200), lines, strict=False)]
    starts = tuple(6.0 * i for i in range(len(counts)))
    return Rate(starts, tuple(count * 50 / 60 for count in counts), 6.0 * len(counts), file.name)


def _diurnal(rng: np.random.Generator) -> Floats:
    """Two days in an hour, with some noise."""
    time = np.arange(LENGTH_S)
    waves = 1 + rng.uniform(0.5, 0.8) * np.sin(2 * np.pi * (time / 1800 + rng.random()))
    waves += rng.uniform(0.1, 0.3) * np.sin(2 * np.pi * (time / 450 + rng.random()))
    return MEAN * waves * np.exp(rng.normal(0, 0.03, LENGTH_S))


def _bursts(rng: np.random.Generator) -> Floats:
    """A steady rate with bursts that rise in seconds and fade in minutes."""
    rate = np.full(LENGTH_S, 0.6 * MEAN)
    for start in rng.integers(0, LENGTH_S, rng.integers(6, 12)):
        age = np.arange(LENGTH_S - start)
        rate[start:] += (
            MEAN * rng.uniform(0.5, 3.0) * np.minimum(age / rng.uniform(5, 60), 1) * np.exp(-age / rng.uniform(60, 240))
        )
    return rate


def _steps(rng: np.random.Generator) -> Floats:
    """Levels that hold for minutes."""
    rate: list[float] = []
    while len(rate) < LENGTH_S:
        rate += [MEAN * float(rng.uniform(0.2, 2.5))] * int(rng.integers(120, 600))
    return np.array(rate[:LENGTH_S])


def _drift(rng: np.random.Generator) -> Floats:
    """A slow rise or fall, with a change of mind in the middle."""
    turn = int(rng.integers(LENGTH_S // 3, 2 * LENGTH_S // 3))
    ends = MEAN * rng.uniform(0.3, 2.5, 3)
    return np.interp(np.arange(LENGTH_S), [0, turn, LENGTH_S], ends) * np.exp(rng.normal(0, 0.02, LENGTH_S))


def _walk(rng: np.random.Generator) -> Floats:
    """A random walk of the logarithm, drawn back to the mean."""
    level, rate = 0.0, []
    for step in rng.normal(0, 0.03, LENGTH_S):
        level += step - 0.002 * level
        rate.append(MEAN * np.exp(level))
    return np.array(rate)


GENERATED: dict[str, Callable[[np.random.Generator], Floats]] = {
    "diurnal": _diurnal, "bursts": _bursts, "steps": _steps, "drift": _drift, "walk": _walk,
}  # fmt: skip
STREAMS = {"s1": S1, "s2": S2}
RECORDED: dict[str, Callable[[Path], Rate]] = {
    "psps_sbac": lambda folder: read_csv(folder / "psps_sbac.csv"),
    "psps_twitter": lambda folder: read_csv(folder / "psps_twitter.csv"),
    "psps_twitter_raw": lambda folder: read_csv(folder / "psps_twitter_raw.csv"),
    "psps_dns": _first_hours("psps_dns.csv", 3),
    "taxi": _taxi,
    "nab_taxi": _interpolated("nab_nyc_taxi.csv"),
    "nab_tweets": _interpolated("nab_twitter_volume_aapl.csv"),
}
