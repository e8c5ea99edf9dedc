"""Schemas of records: from frozen dataclasses to Arrow and back.

A record is an instance of a dataclass; between tasks it is a row of an Arrow record batch. ``schema_of`` gives the
Arrow schema of a dataclass, ``record_class`` a dataclass for a schema that came without one.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import keyword
import types
import typing
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from springtide.errors import TopologyError

_PLAIN: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
    datetime.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),
}
_ALLOWED = "bool, int, float, str, bytes, datetime, date, Decimal, list[T], dict[K, V], T | None, or a dataclass of these"


def is_record_class(candidate: object) -> bool:
    """Whether this is a dataclass, so that its instances can be records."""
    return isinstance(candidate, type) and dataclasses.is_dataclass(candidate)


def schema_of(record: type) -> pa.Schema:
    """The Arrow schema of a dataclass.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Trip:
    ...     route: str
    ...     fare: float | None
    >>> schema_of(Trip)
    route: string not null
    fare: double
    """
    if not is_record_class(record):
        raise TopologyError(f"{record!r} is not a dataclass; a record's schema comes from a frozen dataclass")
    try:
        return pa.schema(_fields_of(record))
    except RecursionError:
        raise TopologyError(
            f"{record.__name__} contains itself, so that a row would be infinite; store a key instead"
        ) from None


def _fields_of(record: type) -> list[pa.Field]:
    try:
        hints = typing.get_type_hints(record)
    except NameError as error:
        raise TopologyError(
            f"{record.__name__}: {error}, as seen from module {record.__module__}; define the types of its fields there"
        ) from None
    return [_field(record, field.name, hints[field.name]) for field in dataclasses.fields(record)]


def _field(record: type, name: str, hint: Any) -> pa.Field:
    inner, nullable = _without_none(hint)
    return pa.field(name, _arrow_type(f"{record.__name__}.{name}", inner), nullable=nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(rest) == 1 and len(rest) < len(typing.get_args(hint)):
            return rest[0], True
    return hint, False


def _arrow_type(where: str, hint: Any) -> pa.DataType:
    if isinstance(hint, pa.DataType):
        return hint
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_record_class(hint):
        return pa.struct(_fields_of(hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and len(args) == 1:
        inner, nullable = _without_none(args[0])
        return pa.list_(pa.field("element", _arrow_type(where, inner), nullable=nullable))
    if origin is dict and len(args) == 2:
        value, nullable = _without_none(args[1])
        return pa.map_(_arrow_type(where, args[0]), pa.field("value", _arrow_type(where, value), nullable=nullable))
    raise TopologyError(f"{where}: {hint!r} is not allowed as the type of a record's field; allowed: {_ALLOWED}")


def as_schema(given: object, where: str) -> tuple[pa.Schema, type | None]:
    """The schema in a user's ``schema=``: a dataclass, an Arrow schema, or a mapping of names to Python types."""
    if isinstance(given, pa.Schema):
        return given, None
    if is_record_class(given):
        assert isinstance(given, type)
        return schema_of(given), given
    if isinstance(given, dict):
        for name in given:
            _check_name(name)
        made = dataclasses.make_dataclass("Record", list(given.items()), frozen=True)
        return schema_of(made), None
    raise TopologyError(f"{where}: schema={given!r} is neither a dataclass, nor a pyarrow.Schema, nor a dict of types")


def record_class(schema: pa.Schema) -> type:
    """A frozen dataclass with the fields of a schema, for sources that were given a schema without a class."""
    for name in schema.names:
        _check_name(name)
    return dataclasses.make_dataclass("Record", schema.names, frozen=True)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise TopologyError(f"column {name!r} is not a Python identifier; rename it, or read it with map_batches or sql")


def misfits(offered: pa.Schema, wanted: pa.Schema) -> list[str]:
    """The reasons why records of one schema cannot be read as another; extra columns do no harm.

    >>> misfits(pa.schema({"a": pa.int64()}), pa.schema({"a": pa.string(), "b": pa.int64()}))
    ["'a' is int64, wanted string", "'b' is missing (there are: a)"]
    """
    faults = []
    for field in wanted:
        position = offered.get_field_index(field.name)
        if position < 0:
            faults.append(f"{field.name!r} is missing (there are: {', '.join(offered.names)})")
        elif offered.field(position).type != field.type:
            faults.append(f"{field.name!r} is {offered.field(position).type}, wanted {field.type}")
        elif offered.field(position).nullable and not field.nullable:
            faults.append(f"{field.name!r} may be null, wanted {field.type} not null")
    return faults


def described(schema: pa.Schema | None) -> list[list[str]]:
    """A schema as JSON, for fingerprints and messages."""
    return [] if schema is None else [[f.name, str(f.type), "null" if f.nullable else "not null"] for f in schema]


Reader = Callable[[Any], Any]


def readers(record: type, schema: pa.Schema) -> dict[str, Reader]:
    """Functions that convert Arrow's values into those of a record, for the fields that need it.

    They are made on the driver, because a worker cannot resolve the annotations of a class that was pickled by value.
    """
    return plain_readers(schema) | field_readers(record)


def plain_readers(schema: pa.Schema) -> dict[str, Reader]:
    """The same without a record class. They leave a value that is converted already as it is: a dict stays a dict."""
    plain = {field.name: _arrow_reader(field.type) for field in schema}
    return {name: reader for name, reader in plain.items() if reader is not None}


def microseconds(column: pa.Array) -> pa.Array:
    """Times as microseconds since 1970, from a column of datetimes or of such integers."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return column


def as_python(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as Python values: a map becomes a dict."""
    known = plain_readers(batch.schema)
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row.update({name: reader(row[name]) for name, reader in known.items() if row[name] is not None})
    return rows


def _arrow_reader(kind: pa.DataType) -> Reader | None:
    """The reader of an Arrow type: a map at any depth becomes a dict."""
    if pa.types.is_map(kind):
        value = _arrow_reader(kind.item_type) or _unchanged
        return lambda pairs: {k: None if v is None else value(v) for k, v in dict(pairs).items()}
    if pa.types.is_list(kind):
        element = _arrow_reader(kind.value_type)
        return None if element is None else lambda values: [None if v is None else element(v) for v in values]
    if pa.types.is_struct(kind):
        inner = {field.name: reader for field in kind if (reader := _arrow_reader(field.type)) is not None}
        return (lambda row: {k: inner[k](v) if k in inner and v is not None else v for k, v in row.items()}) if inner else None
    return None


@functools.lru_cache(maxsize=256)
def field_readers(record: type) -> dict[str, Reader]:
    """The readers of a dataclass, from its annotations."""
    try:
        hints = typing.get_type_hints(record)
    except NameError:  # a class from within a function: its module cannot resolve the names, so rows stay as they are
        return {}
    readers = {name: _reader(hint) for name, hint in hints.items()}
    return {name: reader for name, reader in readers.items() if reader is not None}


def _reader(hint: Any) -> Reader | None:
    hint, _ = _without_none(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if is_record_class(hint):
        inner = field_readers(hint)
        return lambda row: hint(**{k: inner[k](v) if k in inner and v is not None else v for k, v in row.items()})
    if origin is list:
        element = _reader(args[0])
        return None if element is None else lambda values: [None if v is None else element(v) for v in values]
    if origin is dict:
        value = _reader(args[1]) or _unchanged
        return lambda pairs: {k: None if v is None else value(v) for k, v in dict(pairs).items()}
    return None


def _unchanged(value: Any) -> Any:
    return value
