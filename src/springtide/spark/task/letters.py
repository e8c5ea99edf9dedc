"""Dead letters of records that failed."""

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
    """The dead letter of a failed record; any error and any record can be written."""
    texts = _text(error), "".join(traceback.format_exception(error)), _as_json(record)
    return Letter(operator, *(text.encode("utf-8", "backslashreplace").decode() for text in texts))


def readable_row(table: pa.Table) -> dict[str, Any]:
    """The row of a table with one row. A value that Python cannot represent, such as a date after 9999, becomes text."""
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


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  an error's own text may raise anything
        return f"{type(error).__name__} (whose text cannot be read)"


def _as_json(record: Any) -> str:
    try:
        return json.dumps(_plain(record), default=str)
    except BaseException:  # noqa: BLE001  str() of a user's object may raise anything
        return json.dumps(f"a {type(record).__name__} that cannot be written")


def _plain(value: Any) -> Any:
    """A value with its parts as JSON types where possible."""
    if isinstance(value, Refused):
        return _plain(value.row)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
