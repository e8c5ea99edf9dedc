"""Dead letters: what is kept of a record that failed."""

from __future__ import annotations

import json
import math
import traceback
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from springtide.spark.shared.report import Letter
from springtide.spark.task.chunk import Refused

LETTER = pa.schema(
    [("topology", pa.string()), ("batch", pa.int64())]
    + [(name, pa.string()) for name in ("operator", "error", "traceback", "record")]
)
"""The schema of dead letters; the record is JSON."""


def dead_letter(operator: str, record: Any, error: BaseException) -> Letter:
    """What is kept of a record that failed. Whatever was raised, and whatever the record holds, can be written."""
    texts = _told(error), "".join(traceback.format_exception(error)), _as_json(record)
    return Letter(operator, *(text.encode("utf-8", "backslashreplace").decode() for text in texts))


def readable_row(table: pa.Table) -> dict[str, Any]:
    """The one row of a table. A value that Python has no form for, such as a date after the year 9999, is its text in Arrow."""
    return {name: _readable(column[0]) for name, column in zip(table.column_names, table.columns, strict=True)}


def _readable(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
            return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
        if pa.types.is_temporal(value.type):
            return f"{value.cast(pa.int64() if value.type.bit_width == 64 else pa.int32()).as_py()} as {value.type}"
        return f"a {value.type} that cannot be read"


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  an error's own text may raise anything
        return f"{type(error).__name__} (whose text cannot be told)"


def _as_json(record: Any) -> str:
    try:
        return json.dumps(_plain(record), default=str)
    except BaseException:  # noqa: BLE001  a record may hold anything, and its str() may do anything
        return json.dumps(f"a {type(record).__name__} that cannot be written")


def _plain(value: Any) -> Any:
    """A value in what JSON has a form for, as far as it has one."""
    if isinstance(value, Refused):
        return _plain(value.row)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
