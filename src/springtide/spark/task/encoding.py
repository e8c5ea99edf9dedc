"""Encodes the records of staged files as Parquet, CSV or JSON lines, in memory.

All records are encoded at once. If that fails, halves are tried, down to the records that cannot be encoded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from springtide.model.as_json import as_json
from springtide.spark.task.letters import readable_row

FORMATS = ("csv", "json", "parquet")
CSV_DAYS = (-719_162, 2_932_896)
"""The days since 1970 of 0001-01-01 and 9999-12-31. Arrow writes days far beyond as "<value out of range: …>", and, with a time
zone, as a day of another year."""
_UNITS_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


@dataclass(frozen=True)
class Refusal:
    """A record that a format cannot represent, and the error."""

    record: dict[str, Any]
    error: Exception


@dataclass(frozen=True)
class Encoded:
    """The content of a file, the number of its records, and the records that could not be written."""

    content: bytes | pa.Buffer
    rows: int
    refused: tuple[Refusal, ...] = ()


def encoded(table: pa.Table, format: str) -> Encoded:
    """Encode the records that the format can represent, and refuse the others."""
    try:
        return Encoded(encode(table, format), table.num_rows)
    except Exception:  # noqa: BLE001  any error of an encoder; raised again below if no record fails alone
        faults = dict(_faults(table, format))
    good = table.take(pa.array([row for row in range(table.num_rows) if row not in faults], pa.int64()))
    refused = tuple(Refusal(readable_row(table.slice(row, 1)), error) for row, error in faults.items())
    return Encoded(encode(good, format) if good.num_rows else b"", good.num_rows, refused)


def _faults(table: pa.Table, format: str, first: int = 0) -> Iterator[tuple[int, Exception]]:
    """The rows that cannot be encoded, with their errors: k of n are found in about k·log₂(n) attempts."""
    try:
        encode(table, format)
    except MemoryError:  # no record's fault
        raise
    except Exception as error:  # noqa: BLE001
        if table.num_rows == 1:
            yield first, error
            return
        half = table.num_rows // 2
        yield from _faults(table.slice(0, half), format, first)
        yield from _faults(table.slice(half), format, first + half)


def encode(table: pa.Table, format: str) -> bytes | pa.Buffer:
    """A table as the content of a file."""
    if format == "json":
        return _json_lines(table)
    stream = pa.BufferOutputStream()
    if format == "parquet":
        pa.parquet.write_table(table, stream)
    else:
        _check_csv(table)
        pa.csv.write_csv(table, stream)
    return stream.getvalue()


def _check_csv(table: pa.Table) -> None:
    """Refuse values that Arrow would write wrongly: text that is not UTF-8, and times outside of the years 1 to 9999."""
    table.validate(full=True)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            _check_years(name, column)


def _check_years(name: str, column: pa.ChunkedArray) -> None:
    by_day = pa.types.is_date32(column.type)
    per_day = 1 if by_day else _UNITS_PER_DAY[getattr(column.type, "unit", "ms")]  # date64 counts milliseconds
    least, most = CSV_DAYS[0] * per_day, (CSV_DAYS[1] + 1) * per_day - 1
    found = pc.min_max(pc.cast(column, pa.int32() if by_day else pa.int64())).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not least <= value <= most:
            raise ValueError(f"column {name!r}: CSV holds the years 1 to 9999, got {value} as {column.type}")


def _json_lines(table: pa.Table) -> bytes:
    kind = pa.struct(list(table.schema))
    lines = io.BytesIO()
    for row in table.to_pylist():
        lines.write(json.dumps(as_json(row, kind), allow_nan=False, ensure_ascii=False).encode() + b"\n")
    return lines.getvalue()
