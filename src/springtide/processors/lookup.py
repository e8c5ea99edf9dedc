"""Joins records with rows of a table outside: caching, waiting, and one query for the missing keys of a chunk."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from springtide.model.columns import column
from springtide.model.lookup import Key, KeyRefused, Lookup, LookupUnavailable, Row, Rows
from springtide.processors.selecting import Failures, Selecting

log = logging.getLogger("springtide.lookup")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""The pauses between two attempts: each is twice the one before."""

Found = Row | Exception | None
"""The row of a key; None if there is none, or why the records of the key fail."""
Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The values that were used last, at most ``most`` of them and none older than ``ttl_s``.

    >>> cache = Cache[str](most=2, ttl_s=10.0)
    >>> cache.put({1: "a", 2: "b"}, now=0.0)
    >>> cache.get([1], now=5.0)
    {1: 'a'}
    >>> cache.put({3: "c"}, now=6.0)  # 2 was not used for the longest time
    >>> cache.get([1, 2, 3], now=7.0)
    {1: 'a', 3: 'c'}
    >>> cache.get([1, 2, 3], now=10.0)
    {3: 'c'}
    """

    def __init__(self, most: int, ttl_s: float) -> None:
        self._most, self._ttl_s = most, ttl_s
        self._values: OrderedDict[Any, tuple[float, Value]] = OrderedDict()

    def get(self, keys: Iterable[Any], now: float) -> dict[Any, Value]:
        """Those of the values that are here."""
        found, values = {}, self._values
        for key in keys:
            entry = values.get(key)
            if entry is None:
                continue
            if entry[0] <= now:
                del values[key]
                continue
            values.move_to_end(key)
            found[key] = entry[1]
        return found

    def put(self, values: Mapping[Any, Value], now: float) -> None:
        if self._ttl_s <= 0:
            return
        for key, value in values.items():
            self._values[key] = now + self._ttl_s, value
            self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True)
class LookupJoin(Selecting):
    """Adds the columns of a looked-up row to each record.

    ``schema``: of the output. A field that the records have is theirs, the others are the row's. ``required``: a record without
    a row fails; otherwise these fields are None. ``ttl_s`` and ``most``: the lifetime of a cached row, and how many a worker
    keeps. ``patience_s``: how long a task waits for a table that is away.
    """

    lookup: Lookup
    schema: pa.Schema
    own: frozenset[str]
    required: bool = False
    ttl_s: float = 60.0
    most: int = 100_000
    patience_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _held: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}  # connections and rows stay in their process

    @property
    def looked_up(self) -> list[str]:
        """The fields of the output that rows have to have."""
        return [name for name in self.schema.names if name not in self.own]

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        keys = _keys(records, self.lookup.key)
        rows = self._rows({key for key in keys if key is not None})
        found = [None if key is None else rows[key] for key in keys]
        failures: Failures = [
            (index, row if isinstance(row, Exception) else self._missing(keys[index]))
            for index, row in enumerate(found)
            if isinstance(row, Exception) or (row is None and self.required)
        ]
        failures += self._misfits(found, {index for index, _ in failures})
        failed = {index for index, _ in failures}
        passing = [index for index in range(len(found)) if index not in failed]
        chosen = records if not failed else records.take(pa.array(passing, pa.int64()))
        return self._joined(chosen, [_plain(found[index]) for index in passing]), sorted(failures, key=lambda each: each[0])

    def _joined(self, records: pa.RecordBatch, rows: Sequence[Row | None]) -> pa.RecordBatch:
        made = [
            records.column(field.name) if field.name in self.own else column(_values(rows, field.name), field)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(made, schema=self.schema)

    def _misfits(self, found: Sequence[Found], failed: set[int]) -> Failures:
        """The records whose rows do not fit the schema: each different row is looked at only if all together do not fit."""
        rows = {id(row): row for index, row in enumerate(found) if index not in failed and not isinstance(row, Exception)}
        fields = [field for field in self.schema if field.name not in self.own]
        try:
            for each in fields:
                column(_values(list(rows.values()), each.name), each)
            return []
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            faults = {number: error for number, row in rows.items() if (error := _fault(row, fields)) is not None}
        return [(i, faults[id(row)]) for i, row in enumerate(found) if i not in failed and id(row) in faults]

    def _missing(self, key: Key | None) -> Exception:
        return LookupError(f"{self.lookup.describe()} has no row for {_shown(self.lookup.key, key)}")

    # Rows

    def _rows(self, keys: set[Key]) -> dict[Key, Found]:
        """What is found for each key, from the cache or the table."""
        cache: Cache[Found] = self._once("cache", lambda: Cache(self.most, self.ttl_s))
        found = cache.get(keys, self.clock())
        missing = [key for key in keys if key not in found]
        if missing:
            fetched = self._fetched(missing)
            cache.put(fetched, self.clock())
            found.update(fetched)
        return found

    def _fetched(self, keys: Sequence[Key]) -> dict[Key, Found]:
        try:
            rows = self._waiting(keys)
        except KeyRefused as error:
            if len(keys) == 1:
                return {keys[0]: error}
            half = len(keys) // 2
            return {**self._fetched(keys[:half]), **self._fetched(keys[half:])}
        return {key: self._single(key, rows.get(key, ())) for key in keys}

    def _single(self, key: Key, rows: Sequence[Row]) -> Found:
        if len(rows) > 1:
            return LookupError(
                f"{self.lookup.describe()} has {len(rows)} rows for {_shown(self.lookup.key, key)}; it may have one"
            )
        return rows[0] if rows else None

    def _waiting(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """Fetch rows; wait for a table that is away, up to the limit."""
        rows: Rows = self._once("rows", self.lookup.open)
        until, pause, attempts = self.clock() + self.patience_s, FIRST_PAUSE_S, 0
        while True:
            try:
                fetched = rows.fetch(keys)
                break
            except LookupUnavailable as error:
                attempts += 1
                if self.clock() + pause > until:
                    raise LookupUnavailable(f"{error}; {attempts} attempts in {self.patience_s:g} s") from None
                if attempts == 1:
                    log.warning("%s is away (%s); the task waits for it", self.lookup.describe(), error)
            self.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        if attempts:
            log.warning("%s is there again, after %d attempts", self.lookup.describe(), attempts)
        return fetched

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that this process makes once."""
        if name not in self._held:
            self._held[name] = make()
        return self._held[name]

    def close(self) -> None:
        if "rows" in self._held:
            self._held.pop("rows").close()


def _keys(records: pa.RecordBatch, columns: Sequence[str]) -> list[Key | None]:
    """The key of each record; None if a part of it is null."""
    found = zip(*(records.column(name).to_pylist() for name in columns), strict=True)
    return [None if None in key else key for key in found]


def _values(rows: Sequence[Row | None], name: str) -> list[Any]:
    return [None if row is None else row[name] for row in rows]


def _plain(found: Found) -> Row | None:
    assert not isinstance(found, Exception)
    return found


def _fault(row: Row | None, fields: Sequence[pa.Field]) -> Exception | None:
    for each in fields:
        try:
            column(_values([row], each.name), each)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return ValueError(f"the looked-up {each.name!r} does not fit {each.type}: {error}")
    return None


def _shown(names: Sequence[str], key: Key | None) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, key or (None,) * len(names), strict=True))
