"""The job of ``springtide bench kafka``, the same for all engines: its records, its functions and its right results.

This file needs nothing but the standard library, because Bytewax loads it into an environment of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

PARTITIONS = 4
KEYS = 100
WINDOW_S = 10
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""The event time of the first record; each later record is a millisecond younger."""
CLOSING = timedelta(days=1)
"""A last record in each partition is this much younger than all others, so that every engine ends its windows."""


@dataclass(frozen=True)
class Measured:
    """A record of the topic, as JSON."""

    id: int
    key: str
    at: datetime
    celsius: float


@dataclass(frozen=True)
class Converted:
    """The result of the Python map."""

    id: int
    key: str
    at: datetime
    fahrenheit: float


def convert(record: Measured) -> Converted:
    return Converted(record.id, record.key, record.at, record.celsius * 1.8 + 32)


def is_warm(record: Converted) -> bool:
    return record.fahrenheit >= 50


def value(number: int) -> bytes:
    """The JSON of a record."""
    return _json(number, BEGIN + timedelta(milliseconds=number), _celsius(number))


def closing(number: int) -> bytes:
    """The JSON of a last record, which passes the filter."""
    return _json(number, BEGIN + CLOSING, 20.0)


def _json(number: int, at: datetime, celsius: float) -> bytes:
    return b'{"id":%d,"key":"k%02d","at":"%s","celsius":%.1f}' % (number, number * 7 % KEYS, at.isoformat().encode(), celsius)


def _celsius(number: int) -> float:
    return number * 13 % 400 / 10


def kept(records: int) -> int:
    """The number of records that pass the filter."""
    return sum(_passes(number) for number in range(records))


def windows(records: int) -> Counter[tuple[str, int]]:
    """The number of records that pass the filter, by key and number of the window, without the last records."""
    return Counter((f"k{number * 7 % KEYS:02d}", number // (1000 * WINDOW_S)) for number in range(records) if _passes(number))


def window_of(at: datetime) -> int:
    return int((at - BEGIN).total_seconds()) // WINDOW_S


def _passes(number: int) -> bool:
    return _celsius(number) * 1.8 + 32 >= 50
