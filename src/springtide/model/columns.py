"""Lossless conversion of Python values into an Arrow column of a declared type."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import numbers
import operator
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

_WHOLE = frozenset({int, type(None)})
_DATES = frozenset({datetime.date, type(None)})


def column(values: list[Any], field: pa.Field, strict: bool = False) -> pa.Array:
    """Convert values, which may be dataclasses, into a column of exactly this type. ``strict``: refuse datetimes without a time
    zone, and datetimes in a column of dates."""
    kind = field.type
    nested = pa.types.is_nested(kind)
    if nested and _has_struct(kind):
        values = list(map(_plain, values))
    made = pa.array(values, type=kind)
    if nested or strict or pa.types.is_integer(kind):
        _check_whole(field.name, values, kind, strict)
    check_nulls(field.name, made, field)
    return made


def _check_whole(name: str, values: list[Any], kind: pa.DataType, strict: bool) -> None:
    """Refuse values that Arrow truncates without an error: fractions, and, if ``strict``, zones and times of day."""
    if pa.types.is_integer(kind):
        if not (classes := set(map(type, values))) <= _WHOLE:
            numeric = (each for each in classes if issubclass(each, numbers.Number))
            _refuse(name, kind, [each for each in numeric if not issubclass(each, numbers.Integral)])
    elif not pa.types.is_nested(kind):
        if strict and pa.types.is_timestamp(kind) and kind.tz is not None:
            naive = next((at for at in values if isinstance(at, datetime.datetime) and at.tzinfo is None), None)
            if naive is not None:
                raise ValueError(f"field {name!r} is {kind}, and {naive} has no time zone; give one, such as datetime.UTC")
        elif strict and pa.types.is_date(kind) and not (classes := set(map(type, values))) <= _DATES:
            _refuse(name, kind, [each for each in classes if issubclass(each, datetime.datetime)])
    elif _may_truncate(kind, strict):
        present = [value for value in values if value is not None]
        for inner, part, inside in _inside(present, kind):
            _check_whole(f"{name}{inner}", inside, part, strict)


def _refuse(name: str, kind: pa.DataType, others: list[type]) -> None:
    if others:
        raise TypeError(f"field {name!r} is {kind}, got a {others[0].__name__}")


def _inside(values: list[Any], kind: pa.DataType) -> list[tuple[str, pa.DataType, list[Any]]]:
    """The parts of nested values: for each its name, its type, and its values."""
    if pa.types.is_struct(kind):
        return [
            (f".{field.name}", field.type, [row.get(field.name) if isinstance(row, Mapping) else row[i] for row in values])
            for i, field in enumerate(kind)
        ]
    if pa.types.is_map(kind):
        pairs = list(chain.from_iterable(value.items() if isinstance(value, Mapping) else value for value in values))
        return [("[]", kind.key_type, [key for key, _ in pairs]), ("[]", kind.item_type, [value for _, value in pairs])]
    return [("[]", kind.value_type, list(chain.from_iterable(values)))] if _is_list(kind) else []


@functools.lru_cache(maxsize=256)
def _may_truncate(kind: pa.DataType, strict: bool) -> bool:
    """Whether Arrow might truncate a value of this type, or a part of it."""
    if pa.types.is_nested(kind):
        return any(_may_truncate(kind.field(i).type, strict) for i in range(kind.num_fields))
    return pa.types.is_integer(kind) or (strict and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)))


@functools.lru_cache(maxsize=256)
def _has_struct(kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return False
    return pa.types.is_struct(kind) or any(_has_struct(kind.field(i).type) for i in range(kind.num_fields))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain(value: Any) -> Any:
    """A value with its dataclasses as dicts, because Arrow does not accept dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    return value


def check_nulls(name: str, made: pa.Array, field: pa.Field) -> None:
    """Refuse a null in a field that is declared not null. Arrow accepts it, and the next reader or writer would fail."""
    if not field.nullable and made.null_count:
        raise ValueError(f"field {name!r} is None, but {field.type} not null is declared")
    if pa.types.is_struct(field.type):
        for part, inner in zip(made.drop_null().flatten(), field.type, strict=True):
            check_nulls(f"{name}.{inner.name}", part, inner)
    elif pa.types.is_list(field.type):
        check_nulls(f"{name}[]", made.flatten(), field.type.value_field)
    elif pa.types.is_map(field.type):
        check_nulls(f"{name}[]", made.items, field.type.item_field)


def to_batch(records: Sequence[Any], schema: pa.Schema, strict: bool = False) -> pa.RecordBatch:
    """Dataclass instances or mappings as an Arrow batch of exactly this schema. ``strict``: see ``column``."""
    columns = [column(_values_of(records, field.name), field, strict) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values_of(records: Sequence[Any], name: str) -> list[Any]:
    """One field of all records, which usually have one class."""
    kinds = set(map(type, records))
    reads = {kind: (operator.itemgetter if issubclass(kind, Mapping) else operator.attrgetter)(name) for kind in kinds}
    read = reads[kinds.pop()] if len(kinds) == 1 else lambda record: reads[type(record)](record)
    return list(map(read, records))
