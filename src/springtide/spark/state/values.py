"""Converts values of state to JSON and text, and back, by their Arrow type and without loss.

Times and dates are ISO 8601, decimals text, bytes base64, and numbers without a JSON form their names. A map is an object if
its keys are strings, else a list of pairs.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from springtide.errors import OptionError

Coder = Callable[[Any], Any]
_is = pa.types


class Misfit(ValueError):
    """A value does not have the wanted type."""

    def __init__(self, value: Any, kind: pa.DataType, hint: str = "") -> None:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:80] + "…"
        super().__init__(f"{shown} came, wanted {kind}{hint}")


def encoder(kind: pa.DataType) -> Coder:
    """Converts Arrow's Python values of this type to JSON values; null stays null."""
    some = _encoder(kind)
    return lambda value: None if value is None else some(value)


def _encoder(kind: pa.DataType) -> Coder:
    if _is.is_boolean(kind) or _is.is_integer(kind) or is_text(kind):
        return lambda value: value
    if _is.is_floating(kind):
        return lambda value: value if math.isfinite(value) else str(value)
    if _is_time(kind) or _is.is_date32(kind):
        return lambda value: value.isoformat()
    if _is.is_decimal(kind):
        return str
    if is_bytes(kind):
        return lambda value: base64.b64encode(value).decode()
    if _is_list(kind):
        element = encoder(kind.value_type)
        return lambda values: [element(value) for value in values]
    if _is.is_struct(kind):
        parts = {field.name: encoder(field.type) for field in kind}
        return lambda row: {name: part(row[name]) for name, part in parts.items()}
    if _is.is_map(kind):
        key, item = encoder(kind.key_type), encoder(kind.item_type)
        if is_text(kind.key_type):
            return lambda pairs: {key(k): item(v) for k, v in pairs}
        return lambda pairs: [[key(k), item(v)] for k, v in pairs]
    raise OptionError(f"the type {kind} has no form in JSON here; export to a .parquet file")


def decoder(kind: pa.DataType) -> Coder:
    """The inverse of ``encoder``. A value of another type raises Misfit; forbidden nulls are found elsewhere."""
    some = _decoder(kind)
    return lambda value: None if value is None else some(value)


def _decoder(kind: pa.DataType) -> Coder:
    if _is.is_boolean(kind):
        return _checked(kind, bool)
    if _is.is_integer(kind):
        return _checked(kind, int)
    if is_text(kind):
        return _checked(kind, str)
    if _is.is_floating(kind):
        return lambda value: _float(value, kind)
    if _is_time(kind):
        return lambda value: _time(value, kind)
    if _is.is_date32(kind):
        return _read(kind, datetime.date.fromisoformat)
    if _is.is_decimal(kind):
        return _read(kind, decimal.Decimal)
    if is_bytes(kind):
        return _read(kind, lambda text: base64.b64decode(text, validate=True))
    if _is_list(kind):
        element = decoder(kind.value_type)
        return lambda values: [element(value) for value in _of(values, list, kind)]
    if _is.is_struct(kind):
        return _struct_decoder(kind)
    if _is.is_map(kind):
        return _map_decoder(kind)
    raise OptionError(f"the type {kind} has no form in JSON here; import a .parquet file")


def _struct_decoder(kind: pa.DataType) -> Coder:
    parts = {field.name: decoder(field.type) for field in kind}

    def read(row: Any) -> dict[str, Any]:
        if _of(row, dict, kind).keys() != parts.keys():
            raise Misfit(row, kind)
        return {name: part(row[name]) for name, part in parts.items()}

    return read


def _map_decoder(kind: pa.DataType) -> Coder:
    key, item = decoder(kind.key_type), decoder(kind.item_type)

    def read(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, dict) and is_text(kind.key_type):
            value = list(value.items())
        for pair in _of(value, list, kind):
            if len(_of(pair, list | tuple, kind)) != 2 or pair[0] is None:
                raise Misfit(value, kind)
        return [(key(k), item(v)) for k, v in value]

    return read


def parsed(text: str, kind: pa.DataType) -> pa.Array:
    """A value from the command line, as a column with one row. ``null`` is null; text may be quoted as in JSON, and must be if
    it is "null". Nested values are JSON."""
    if text == "null":
        return pa.nulls(1, kind)
    if is_text(kind) or is_bytes(kind):
        return pa.array([_unquoted(text)], pa.string()).cast(kind)
    try:
        if _is.is_nested(kind):
            return pa.array([decoder(kind)(json.loads(text))], kind)
        return pa.array([text]).cast(kind)
    except (pa.ArrowException, ValueError, OverflowError):
        hint = "; write it as 2024-12-31T23:59:59Z" if _is_time(kind) else "; write it as JSON" if _is.is_nested(kind) else ""
        raise Misfit(text, kind, hint) from None


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def is_text(kind: pa.DataType) -> bool:
    return bool(_is.is_string(kind) or _is.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(_is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(_is.is_list(kind) or _is.is_large_list(kind) or _is.is_fixed_size_list(kind))


def _is_time(kind: pa.DataType) -> bool:
    """Python's datetime cannot represent nanoseconds."""
    return bool(_is.is_timestamp(kind)) and kind.unit != "ns"


def _of(value: Any, wanted: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise Misfit(value, kind)
    return value


def _checked(kind: pa.DataType, wanted: type) -> Coder:
    return lambda value: _of(value, wanted, kind)


def _read(kind: pa.DataType, read: Callable[[str], Any]) -> Coder:
    def checked(value: Any) -> Any:
        try:
            return read(_of(value, str, kind))
        except (ValueError, decimal.InvalidOperation):
            raise Misfit(value, kind) from None

    return checked


def _float(value: Any, kind: pa.DataType) -> float:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(_of(value, int | float, kind))


def _time(value: Any, kind: pa.DataType) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(_of(value, str, kind))
    except ValueError:
        raise Misfit(value, kind, "; write it as 2024-12-31T23:59:59Z") from None
    if (time.tzinfo is None) != (kind.tz is None):
        raise Misfit(value, kind, f", {'with' if kind.tz else 'without'} a time zone")
    return time
