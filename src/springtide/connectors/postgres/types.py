"""Which type of PostgreSQL holds which type of Arrow without loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from springtide.errors import TopologyError

UNLIMITED = -1
"""The modifier of a type without a length or precision."""


@dataclass(frozen=True)
class Kind:
    """A type of a column: ``name`` as in ``pg_type``, its category there, and its modifier."""

    name: str
    category: str = ""
    modifier: int = UNLIMITED


_INTEGERS = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
_HOLD: dict[str, tuple[str, ...]] = {
    "smallint": ("int2", "int4", "int8"),
    "integer": ("int4", "int8"),
    "bigint": ("int8",),
    "numeric(20,0)": (),
    "boolean": ("bool",),
    "real": ("float4", "float8"),
    "double precision": ("float8",),
    "bytea": ("bytea",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamp",),
    "timestamptz": ("timestamptz",),
    "jsonb": ("jsonb", "json"),
}
"""By the type that is made, those that hold its values too; numeric and text have rules of their own."""
_WIDE = ("smallint", "integer", "bigint", "numeric(20,0)", "real", "double precision")
"""Types whose values fit a numeric of unlimited precision."""
_WITH_FRACTION = ("time", "timestamp", "timestamptz")
_TEXT_LIKE = "SUEI"
"""The categories of types that are written as text: strings, user-defined types such as uuid and jsonb, enums, addresses."""


def column_type(field: pa.Field) -> str:
    """The type that is made for a field. TopologyError for types that PostgreSQL does not hold without loss.

    >>> column_type(pa.field("at", pa.timestamp("us", tz="UTC"))), column_type(pa.field("tags", pa.list_(pa.string())))
    ('timestamptz', 'jsonb')
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    for fits, made in _RULES:
        if fits(kind):
            return made(kind)
    advice = "; PostgreSQL has microseconds, so cast it to 'us'" if getattr(kind, "unit", "") == "ns" else ""
    raise TopologyError(
        f"postgres: column {field.name!r} is {field.type}, which PostgreSQL does not hold{advice}; allowed: booleans, integers,"
        " floats, decimals, text, bytes, dates, times, timestamps, and lists, maps and records of them, which become jsonb"
    )


def _integer(kind: pa.DataType) -> str:
    if pa.types.is_signed_integer(kind):
        return _INTEGERS[kind.bit_width]
    return _INTEGERS.get(kind.bit_width * 2, "numeric(20,0)")  # without a sign it needs one bit more


def _is_time(kind: pa.DataType) -> bool:
    return bool((pa.types.is_time(kind) or pa.types.is_timestamp(kind)) and kind.unit != "ns")


def _time(kind: pa.DataType) -> str:
    return "time" if pa.types.is_time(kind) else "timestamp" if kind.tz is None else "timestamptz"


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind))


_RULES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]], ...] = (
    (pa.types.is_boolean, lambda kind: "boolean"),
    (pa.types.is_integer, _integer),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), lambda kind: "real"),
    (pa.types.is_float64, lambda kind: "double precision"),
    (pa.types.is_decimal, lambda kind: f"numeric({kind.precision},{kind.scale})"),
    (is_text, lambda kind: "text"),
    (is_bytes, lambda kind: "bytea"),
    (pa.types.is_date32, lambda kind: "date"),
    (_is_time, _time),
    (_is_json, lambda kind: "jsonb"),
)


def holds(kind: Kind, field: pa.Field) -> bool:
    """Whether a column of a table holds every value of a field without loss, or else refuses it with an error."""
    made = column_type(field)
    if made == "text":
        return kind.category in _TEXT_LIKE and kind.name != "bytea"
    if kind.name == "numeric":
        return (made in _WIDE or made.startswith("numeric")) and _numeric_holds(kind.modifier, made)
    if made in _WITH_FRACTION and kind.modifier not in (UNLIMITED, 6):  # PostgreSQL would round
        return False
    return kind.name in _HOLD.get(made, ())


def _numeric_holds(modifier: int, made: str) -> bool:
    """Whether a numeric column has the digits: PostgreSQL rounds what is behind the last place."""
    if modifier == UNLIMITED:
        return True
    if not made.startswith("numeric"):
        return False
    precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024  # as PostgreSQL stores them
    wanted, wanted_scale = map(int, made.removeprefix("numeric(").removesuffix(")").split(","))
    return scale >= wanted_scale and precision - scale >= wanted - wanted_scale
