"""Protobuf values. A message class goes to the tasks as its descriptors, so that they need not import generated code."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from springtide.connectors.kafka.clients import needed
from springtide.connectors.kafka.meta import _without_none
from springtide.connectors.kafka.registry import HEADER, header_of

Hints = Mapping[type, Mapping[str, Any]]
TIMESTAMP = "google.protobuf.Timestamp"


def described(message: Any) -> bytes:
    """A message class as bytes: its name, and the files that describe it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    found = FileDescriptorSet()
    for file in _files(message.DESCRIPTOR.file):
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        found.file.append(proto)
    return str(message.DESCRIPTOR.full_name).encode() + b"\n" + bytes(found.SerializeToString(deterministic=True))


def _files(file: Any) -> Iterator[Any]:
    """A file and those that it imports, the imported ones first."""
    seen: dict[str, Any] = {}

    def visit(each: Any) -> None:
        if each.name not in seen:
            seen[each.name] = None
            for inner in each.dependencies:
                visit(inner)
            seen[each.name] = seen.pop(each.name) or each

    visit(file)
    return iter(seen.values())


def message_class(schema: bytes) -> Any:
    """The message class of ``described``."""
    needed("google.protobuf")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    name, _, files = schema.partition(b"\n")
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name.decode()))


def protobuf_decoder(kind: type, hints: Hints, schema: bytes, headed: bool) -> Callable[[bytes], Any]:
    """Parses the message, then takes the fields of ``kind`` from it."""
    message, convert = message_class(schema), needed("msgspec").convert
    if kind not in hints:  # without the fields that come from the Kafka message
        hints = {**hints, kind: kind.__annotations__}
    take = _taker(message.DESCRIPTOR, kind, hints)

    def decode(raw: bytes) -> Any:
        return convert(take(message.FromString(raw[_behind_header(raw) :] if headed else raw)), kind)

    return decode


def _behind_header(raw: bytes) -> int:
    """Where the message begins: the place of the message in its file follows the header, as numbers of variable length."""
    header_of(raw)
    count, at = _varint(raw, HEADER)
    for _ in range(count):
        _, at = _varint(raw, at)
    return at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A zigzag number and where it ends."""
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise ValueError("the header of the schema registry is cut off")
        value |= (raw[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _taker(descriptor: Any, kind: Any, hints: Hints) -> Callable[[Any], dict[str, Any]]:
    """What takes the fields of a dataclass from a message. A field that the message lacks gets the default of the class."""
    types = hints[kind]
    takers = {f.name: _field_taker(f, _without_none(types[f.name])[0], hints) for f in descriptor.fields if f.name in types}
    optional = {f.name: _without_none(types[f.name])[1] for f in descriptor.fields if f.name in takers and f.has_presence}
    defaulted = {name for name, each in getattr(kind, "__dataclass_fields__", {}).items() if _has_default(each)}

    def take(message: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, taker in takers.items():
            if name in optional and not message.HasField(name):
                if name in defaulted:
                    continue
                if optional[name]:
                    found[name] = None
                    continue
            found[name] = taker(getattr(message, name))
        return found

    return take


def _has_default(each: Any) -> bool:
    from dataclasses import MISSING

    return each.default is not MISSING or each.default_factory is not MISSING


def _field_taker(field: Any, hint: Any, hints: Hints) -> Callable[[Any], Any]:
    from typing import get_args

    inner = get_args(hint)[-1] if get_args(hint) else hint
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _single_taker(field.message_type.fields_by_name["value"], inner, hints)
        return lambda held: {key: value(held[key]) for key in held}
    single = _single_taker(field, inner if _repeated(field) else hint, hints)
    return (lambda held: [single(each) for each in held]) if _repeated(field) else single


def _repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _single_taker(field: Any, hint: Any, hints: Hints) -> Callable[[Any], Any]:
    hint, _ = _without_none(hint)
    if field.enum_type is not None and hint is str:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == TIMESTAMP and hint is datetime.datetime:
        return lambda value: value.ToDatetime(datetime.UTC)
    if hint in hints:
        return _taker(field.message_type, hint, hints)
    if list(field.message_type.fields_by_name) == ["value"]:  # the wrappers of plain values
        return lambda value: value.value
    raise TypeError(
        f"the field {field.full_name} is a {field.message_type.full_name}; declare it as a dataclass with its fields"
    )
