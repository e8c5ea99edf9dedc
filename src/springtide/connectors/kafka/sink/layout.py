"""What of a record goes where in a message: which fields are the value, the key, the headers, the partition, the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from springtide.errors import TopologyError, nearest

PARTS = ("headers", "key", "partition", "timestamp")
"""What ``meta`` may fill; topic and offset are not the sender's choice."""


@dataclass(frozen=True)
class OutLayout:
    """``format`` and ``schema`` as of the source. ``value``: the field that is the value, for "bytes" and "text".
    ``key``: fields that are the key and stay in the value; several make a JSON array. ``meta``: fields that are another part of
    the message, and are left out of the value."""

    format: str = "json"
    schema: str | bytes | None = None
    value: str | None = None
    key: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)

    def values(self, schema: pa.Schema) -> list[str]:
        """The fields that make up the value."""
        if self.format in ("bytes", "text"):
            return [self.value or self._only(schema)]
        return [name for name in schema.names if name not in self.meta]

    def _only(self, schema: pa.Schema) -> str:
        left = [name for name in schema.names if name not in self.meta and name not in self.key]
        return "value" if "value" in left or len(left) != 1 else left[0]

    def of(self, part: str) -> str | None:
        """The field that ``meta`` names for a part of the message."""
        return next((name for name, what in self.meta.items() if what == part), None)

    @property
    def keys(self) -> tuple[str, ...]:
        """The fields of the key."""
        own = self.of("key")
        return self.key or (() if own is None else (own,))

    def check(self, where: str, schema: pa.Schema) -> None:
        """Refuse fields that the records do not have, or that have the wrong type for what they are to be."""
        for name in (*self.key, *self.meta, *([self.value] if self.value else [])):
            if name not in schema.names:
                raise TopologyError(f"{where}: the records have no field {name!r}; {nearest(name, schema.names)}")
        for name in self.keys:
            _fits(where, schema, name, "the key", _is_key)
        for part, fits in _FITTING.items():
            if (chosen := self.of(part)) is not None:
                _fits(where, schema, chosen, part, fits)
        values = self.values(schema)
        if self.format in ("bytes", "text"):
            if values[0] not in schema.names:
                raise TopologyError(
                    f"{where}: format={self.format!r} sends one field as the value; name it with value=, one of"
                    f" {', '.join(schema.names)}"
                )
            _fits(where, schema, values[0], "the value", _is_bytes)
        elif not values:
            raise TopologyError(f"{where}: meta= takes all fields, so that nothing is left for the value")
        elif self.format == "avro":
            self._check_avro(where, values)

    def _check_avro(self, where: str, values: list[str]) -> None:
        from springtide.connectors.kafka.avro import parsed

        assert self.schema is not None
        known = [each["name"] for each in parsed(self.schema).get("fields", [])]
        for name in values:
            if name not in known:
                raise TopologyError(f"{where}: the Avro schema has no field {name!r}; {nearest(name, known)}")


def _fits(where: str, schema: pa.Schema, name: str, what: str, fits: Any) -> None:
    kind = schema.field(name).type
    if not fits(kind):
        raise TopologyError(f"{where}: the field {name!r} is {kind} and cannot be {what}; {_ALLOWED[what]}")


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        each(kind) for each in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _is_key(kind: pa.DataType) -> bool:
    return _is_bytes(kind) or bool(pa.types.is_integer(kind))


def _is_headers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) and bool(pa.types.is_string(kind.key_type)) and _is_bytes(kind.item_type)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


_FITTING = {"headers": _is_headers, "partition": pa.types.is_integer, "timestamp": _is_time}
_ALLOWED = {
    "the key": "give a field of text, bytes or whole numbers",
    "the value": "give a field of text or bytes, or another format=",
    "headers": "declare it dict[str, bytes] or dict[str, str]",
    "partition": "declare it int",
    "timestamp": "declare it datetime, or int for milliseconds since 1970",
}
