"""Encodes records as lines of COPY's text format, by whole columns.

Tasks do this, so that the driver only passes bytes on. Records that no column of PostgreSQL can hold are found here, before
the batch is committed, and become dead letters of the sink.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from springtide.connectors.postgres.types import column_type, is_bytes, is_text
from springtide.model.as_json import as_json
from springtide.model.publisher import Refusal

LINE = "line"
STAGED = pa.schema([pa.field(LINE, pa.large_binary(), nullable=False)])
"""The schema of staged files: a line of COPY for each record, with its line break."""

NULL = r"\N"
TAB, NOTHING, END = (pa.scalar(text, pa.large_string()) for text in ("\t", "", "\n"))
ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""The backslash first, as the others bring backslashes."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The days since 1970 of 0001-01-01 and 9999-12-31: Arrow writes others in a form that PostgreSQL does not read."""
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
_NUL_IN_JSON = re.compile(r"(?<!\\)(\\\\)*\\u0000")

Faults = dict[int, Exception]
"""By its index, why a record cannot be written."""


def encoded(records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
    """The lines of the records that can be written, and the others."""
    faults: Faults = {}
    for field, column in zip(records.schema, records.columns, strict=True):
        for index, error in _faults(field, column):
            faults.setdefault(index, error)
    if faults:
        records = records.take(pa.array([i for i in range(records.num_rows) if i not in faults], pa.int64()))
    lines = pa.RecordBatch.from_arrays([_lines(records)], schema=STAGED)
    return lines, [Refusal(index, error) for index, error in sorted(faults.items())]


def _lines(records: pa.RecordBatch) -> pa.Array:
    columns = [_text(column) for column in records.columns]
    joined = pc.binary_join_element_wise(*columns, TAB, null_handling="replace", null_replacement=NULL)
    return pc.binary_join_element_wise(joined, NOTHING, END).cast(pa.large_binary())


def values(line: bytes) -> list[str | None]:
    r"""The columns of a line.

    >>> values(b"1\ta\\tb\t\\N\n")
    ['1', 'a\tb', None]
    """
    parts = line.decode().removesuffix("\n").split("\t")
    return [None if part == NULL else _ESCAPED.sub(lambda found: _PLAIN[found[0]], part) for part in parts]


_PLAIN = {escaped: plain for plain, escaped in ESCAPES}
_ESCAPED = re.compile("|".join(map(re.escape, _PLAIN)))


def _text(column: pa.Array) -> pa.Array:
    """A column as COPY reads it; null stays null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _text(column.dictionary_decode())
    if is_bytes(kind):
        return _of(column, lambda value: "\\\\x" + value.hex())
    if pa.types.is_nested(kind):
        return _escaped(_of(column, lambda value: _json(value, kind)))
    if is_text(kind):
        return _escaped(column.cast(pa.large_string()))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    if pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    return column.cast(pa.large_string())


def _of(column: pa.Array, encode: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else encode(value) for value in column.to_pylist()], pa.large_string())


def _json(value: object, kind: pa.DataType) -> str:
    return json.dumps(as_json(value, kind), allow_nan=False, ensure_ascii=False)


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in ESCAPES:
        column = pc.replace_substring(column, plain, escaped)
    return column


def _faults(field: pa.Field, column: pa.Array) -> Iterator[tuple[int, Exception]]:
    """The records whose value of a column cannot be written."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if is_text(kind):
        yield from _unreadable(field, column)
    elif pa.types.is_nested(kind):
        yield from _not_json(field, column)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        yield from _beyond(field, column)
    if not field.nullable and column.null_count:
        yield from (
            (i, ValueError(f"column {field.name!r} is null, and is declared not null")) for i in _where(pc.is_null(column))
        )


def _unreadable(field: pa.Field, column: pa.Array) -> Iterator[tuple[int, Exception]]:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index, value in enumerate(column):
            if value.is_valid and not _is_utf8(value.as_buffer().to_pybytes()):
                yield index, ValueError(f"column {field.name!r} has text that is not UTF-8")
    for index in _where(pc.match_substring(column, "\0")):
        yield index, ValueError(f"column {field.name!r} has a NUL character, which PostgreSQL's text does not hold")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
        return True
    except UnicodeDecodeError:
        return False


def _not_json(field: pa.Field, column: pa.Array) -> Iterator[tuple[int, Exception]]:
    for index, scalar in enumerate(column):
        try:
            if scalar.is_valid and _NUL_IN_JSON.search(_json(scalar.as_py(), column.type).replace("\0", r"\u0000")):
                raise ValueError("a NUL character, which PostgreSQL's jsonb does not hold")
        except (ValueError, OverflowError, TypeError) as error:
            yield index, ValueError(f"column {field.name!r} has {error}")


def _beyond(field: pa.Field, column: pa.Array) -> Iterator[tuple[int, Exception]]:
    by_day = pa.types.is_date32(column.type)
    numbers, per_day = column.cast(pa.int32() if by_day else pa.int64()), 1 if by_day else _PER_DAY[column.type.unit]
    outside = pc.or_(pc.less(numbers, FIRST_DAY * per_day), pc.greater_equal(numbers, (LAST_DAY + 1) * per_day))
    for index in _where(outside):
        yield index, ValueError(f"column {field.name!r} is {numbers[index]} as {column.type}, outside of the years 1 to 9999")


def _where(condition: pa.Array) -> list[int]:
    """The indices at which a condition is true; null is not."""
    found: list[int] = pc.indices_nonzero(pc.fill_null(condition, False)).to_pylist()
    return found


def check(schema: pa.Schema) -> None:
    """TopologyError for columns that PostgreSQL cannot hold."""
    for field in schema:
        column_type(field)
