"""Encodes records for staging: the bytes of key and value, so that the driver only produces them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.connectors.kafka.clients import needed
from springtide.connectors.kafka.sink.layout import OutLayout
from springtide.connectors.kafka.sink.values import encoder_of
from springtide.errors import RecordError
from springtide.model import schema as schemas
from springtide.model.publisher import Refusal

OVERHEAD = 128
"""Bytes of a batch's header (61) and a record's own fields (at most 25) around key, value and headers, and some to spare."""
DEFAULT_LIMIT = 1_000_000
"""librdkafka's own limit of a message, which is just below Kafka's of a topic (1,048,588)."""

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
Failures = dict[int, Exception]


@dataclass(frozen=True)
class Terms:
    """What the topic takes: the bytes of a record, the number of partitions, milliseconds that a timestamp may be ahead, and
    whether every record needs a key, as in a compacted topic. None is not known."""

    limit: int = DEFAULT_LIMIT
    partitions: int | None = None
    ahead_ms: int | None = None
    keyed: bool = False


class Encoder:
    """Encodes batches of one schema. A record that fails stops no other."""

    def __init__(self, layout: OutLayout, schema: pa.Schema, terms: Terms) -> None:
        self._layout, self._terms = layout, terms
        self._values = layout.values(schema)
        self._readers = schemas.plain_readers(schema)
        self._encode = encoder_of(layout, self._values)

    def stage(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        failed: Failures = {}
        columns = {"key": self._keys(batch, failed), "value": self._encoded(batch, failed)}
        for part, make in (("headers", self._headers), ("partition", self._partitions), ("timestamp", self._times)):
            name = self._layout.of(part)
            if name is not None:
                columns[part] = make(batch.column(name), failed)
        self._measure(columns, failed)
        made = pa.RecordBatch.from_pydict(columns)
        if not failed:
            return made, ()
        good = np.ones(batch.num_rows, np.bool_)
        good[list(failed)] = False
        return made.filter(pa.array(good)), [Refusal(index, error) for index, error in sorted(failed.items())]

    def _lists(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[list[Any]]:
        """Columns as Python values."""
        found = []
        for name in names:
            values, read = batch.column(name).to_pylist(), self._readers.get(name)
            found.append(values if read is None else [None if value is None else read(value) for value in values])
        return found

    def _encoded(self, batch: pa.RecordBatch, failed: Failures) -> pa.Array:
        if self._layout.format in ("bytes", "text"):
            return batch.column(self._values[0]).cast(pa.binary())
        try:
            rows = zip(*self._lists(batch, self._values), strict=True)
            return pa.array([self._encode(*row) for row in rows], pa.binary())
        except Exception:  # noqa: BLE001  whatever an encoder raises: find out for which record
            single = [batch.slice(index, 1) for index in range(batch.num_rows)]
            return pa.array([_tried(self._alone, one, i, failed) for i, one in enumerate(single)], pa.binary())

    def _alone(self, one: pa.RecordBatch) -> bytes | None:
        return self._encode(*(values[0] for values in self._lists(one, self._values)))

    def _keys(self, batch: pa.RecordBatch, failed: Failures) -> pa.Array:
        names = self._layout.keys
        if not names:
            return pa.nulls(batch.num_rows, pa.binary())
        if len(names) == 1:
            column = batch.column(names[0])
            keys = (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(pa.binary())
        else:
            encode = needed("msgspec").json.encode
            keys = pa.array([encode(row) for row in zip(*self._lists(batch, names), strict=True)], pa.binary())
        if self._terms.keyed:
            for index in np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)):
                failed.setdefault(int(index), RecordError("the record has no key, and the topic is compacted by keys"))
        return keys

    def _headers(self, column: pa.Array, failed: Failures) -> pa.Array:
        return pa.array([_tried(_pairs, given, i, failed) for i, given in enumerate(column.to_pylist())], HEADERS)

    def _partitions(self, column: pa.Array, failed: Failures) -> pa.Array:
        count = self._terms.partitions
        for index, number in enumerate(column.to_pylist()):
            if number is not None and not 0 <= number < (count or 1 << 31):
                failed.setdefault(index, RecordError(f"there is no partition {number}; the topic has {count}, counted from 0"))
        return _without(column.cast(pa.int64()), failed).cast(pa.int32())

    def _times(self, column: pa.Array, failed: Failures) -> pa.Array:
        times = column.cast(pa.timestamp("ms", column.type.tz), safe=False) if pa.types.is_timestamp(column.type) else column
        times = times.cast(pa.int64())
        latest = None if self._terms.ahead_ms is None else int(time.time() * 1000) + self._terms.ahead_ms
        for index, at in enumerate(times.to_pylist()):
            if at is not None and at < 0:
                failed.setdefault(index, RecordError(f"its timestamp is {at} ms, and Kafka has none before 1970"))
            elif at is not None and latest is not None and at > latest:
                ahead = "message.timestamp.after.max.ms"
                failed.setdefault(index, RecordError(f"its timestamp is {at} ms, further ahead than the topic takes ({ahead})"))
        return times

    def _measure(self, columns: dict[str, pa.Array], failed: Failures) -> None:
        """Refuse records that the topic would refuse for their size."""
        sizes = _lengths(columns["key"]) + _lengths(columns["value"]) + OVERHEAD
        if "headers" in columns:
            sizes = sizes + np.fromiter(map(_header_bytes, columns["headers"].to_pylist()), np.int64, len(sizes))
        for index in np.flatnonzero(sizes > self._terms.limit):
            failed.setdefault(
                int(index),
                RecordError(f"it has {sizes[index]:,} bytes with key and headers, and the topic takes {self._terms.limit:,}"),
            )


def _header_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(len(each["name"].encode()) + len(each["value"] or b"") + 10 for each in headers or ())


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _without(column: pa.Array, failed: Failures) -> pa.Array:
    """A column without the values of records that failed, which may not fit another type."""
    mask = np.zeros(len(column), np.bool_)
    mask[list(failed)] = True
    return pc.if_else(pa.array(mask), pa.nulls(len(column), column.type), column)


def _pairs(given: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value.encode() if isinstance(value, str) else value} for name, value in given or ()]


def _tried(make: Callable[[Any], Any], given: Any, index: int, failed: Failures) -> Any:
    try:
        return make(given)
    except Exception as error:  # noqa: BLE001  it becomes a dead letter
        failed.setdefault(index, error)
        return None
