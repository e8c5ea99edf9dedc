"""Values become records, whatever producers write: each bad one is rejected with its place, and stops no other."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark import cloudpickle

from connectors.kafka.messages import AT_MS, Message, decoded, reasons, source_of
from springtide.connectors.kafka.clients import Connection
from springtide.errors import OptionError, TopologyError

AT = datetime.datetime.fromtimestamp(AT_MS / 1000, datetime.UTC)


@dataclass(frozen=True)
class Place:
    lat: float
    lon: float


@dataclass(frozen=True)
class Order:
    id: int
    route: str
    fare: float = 1.5
    note: str | None = None
    tags: list[str] = field(default_factory=list)
    place: Place | None = None
    stops: list[Place] = field(default_factory=list)


def test_json_fills_nested_dataclasses_defaults_and_optional_fields() -> None:
    full = (
        b'{"id": 1, "route": "a", "fare": 2, "note": "n", "tags": ["x"], '
        b'"place": {"lat": 1, "lon": 2}, "stops": [{"lat": 3, "lon": 4}]}'
    )
    found = decoded(Order, [full, b'{"id": 2, "route": "b", "unknown": {"deep": [1]}}'])
    assert found.values == [Order(1, "a", 2.0, "n", ["x"], Place(1.0, 2.0), [Place(3.0, 4.0)]), Order(2, "b")]
    assert found.rejected == ()
    assert found.created is not None and found.created.tolist() == [AT_MS * 1000] * 2


BAD_JSON: Mapping[str, tuple[bytes | None, str]] = {
    "a tombstone": (None, "tombstone"),
    "nothing": (b"", "truncated"),
    "cut off": (b'{"id": 1, "ro', "truncated"),
    "text behind it": (b'{"id": 1, "route": "a"} x', "trailing"),
    "no object": (b"7", "object"),
    "null": (b"null", "object"),
    "a missing field": (b'{"id": 1}', "route"),
    "a wrong type": (b'{"id": "1", "route": "a"}', r"id"),
    "a fraction for a whole number": (b'{"id": 1.5, "route": "a"}', "id"),
    "null for a plain field": (b'{"id": null, "route": "a"}', "id"),
    "NaN": (b'{"id": 1, "route": "a", "fare": NaN}', "invalid"),
    "infinity": (b'{"id": 1, "route": "a", "fare": 1e999}', "range"),
    "invalid UTF-8": (b'{"id": 1, "route": "\xff"}', "utf-8|UTF-8"),
    "a wrong nested type": (b'{"id": 1, "route": "a", "place": {"lat": "x", "lon": 2}}', "place.lat"),
    "half a pair of surrogates": (b'{"id": 1, "route": "\\ud800"}', "truncated"),
    "very deep": (b'{"id": 1, "route": "a", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion|Recursion"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_json_that_does_not_fit_is_rejected_with_its_place_and_stops_no_other(name: str) -> None:
    raw, reason = BAD_JSON[name]
    good = b'{"id": 1, "route": "a"}'
    found = decoded(Order, [good, raw, good])
    assert found.values == [Order(1, "a"), Order(1, "a")]
    assert [message.offset() for message in found.messages] == [0, 2]
    (rejected,) = found.rejected
    assert rejected.place == {"topic": "orders", "partition": 3, "offset": 1}
    assert rejected.raw == (raw or b"")
    assert re.search(reason, reasons(found)[1]), reasons(found)[1]


def test_a_class_that_refuses_its_values_rejects_the_record() -> None:
    @dataclass(frozen=True)
    class Positive:
        id: int

        def __post_init__(self) -> None:
            if self.id < 0:
                raise ValueError(f"id={self.id} is negative")

    found = decoded(Positive, [b'{"id": 1}', b'{"id": -1}'])
    assert found.values == [Positive(1)]
    assert "is negative" in reasons(found)[1]


def test_bytes_and_text() -> None:
    raw = decoded(bytes, [b"\xff", b"", None])
    assert [record.value for record in raw.values] == [b"\xff", b"", None]
    text = decoded(str, ["é".encode(), b"\xff", None])
    assert [record.value for record in text.values] == ["é", None]
    assert "UnicodeDecodeError" in reasons(text)[1]


@dataclass(frozen=True, slots=True)
class Told:
    id: int
    key: str | None
    heads: dict[str, str]
    topic: str
    number: int
    offset: int
    at: datetime.datetime
    ms: int = 0


META = {
    "key": "key",
    "heads": "headers",
    "topic": "topic",
    "number": "partition",
    "offset": "offset",
    "at": "timestamp",
    "ms": "timestamp",
}


def test_fields_from_the_message() -> None:
    messages = [
        Message(b'{"id": 1, "key": "of the value"}', 7, b"k", [("h", b"1"), ("h", b"2"), ("none", None)]),
        Message(b'{"id": 2}', 8, None, None),
        Message(b'{"id": 3}', 9, b"\xff"),
        Message(b'{"id": 4}', 10, b"k", [("h", b"\xff")]),
        Message(None, 11),
    ]  # fmt: skip
    found = decoded(Told, messages, meta=META)
    assert found.values == [
        Told(1, "k", {"h": "2", "none": ""}, "orders", 3, 7, AT, AT_MS),
        Told(2, None, {}, "orders", 3, 8, AT, AT_MS),
    ]
    assert list(reasons(found)) == [9, 10, 11]


def test_raw_values_with_what_their_messages_hold() -> None:
    found = decoded(bytes, [Message(b"v", 7, b"k", [("h", None)])], meta={"key": "key", "at": "timestamp", "heads": "headers"})
    assert [vars(record) for record in found.values] == [{"value": b"v", "key": b"k", "at": AT, "heads": {"h": b""}}]


def test_a_field_that_may_not_be_none_wants_a_key() -> None:
    @dataclass(frozen=True)
    class Keyed:
        id: int
        key: str

    found = decoded(Keyed, [Message(b'{"id": 1}', 0, b"k"), Message(b'{"id": 2}', 1)], meta={"key": "key"})
    assert found.values == [Keyed(1, "k")]
    assert "has no key" in reasons(found)[1]


@dataclass(frozen=True)
class Event:
    at: datetime.datetime | None = None


def test_creation_times_come_from_a_field_or_else_from_kafka() -> None:
    raws = [b'{"at": "2023-11-14T22:13:21Z"}', b'{"at": "2023-11-14T23:13:21+01:00"}', b"{}"]
    found = decoded(Event, raws, created="at")
    assert found.created is not None and found.created.tolist() == [(AT_MS + 1000) * 1000] * 2 + [AT_MS * 1000]


def test_a_creation_time_that_is_unknown_is_none_and_one_before_1970_is_known() -> None:
    assert decoded(Event, [Message(b"{}", made=-1), Message(b"{}")]).created is None
    found = decoded(Event, [Message(b'{"at": "1969-12-31T23:59:59Z"}', made=-1)], created="at")
    assert found.created is not None and found.created.tolist() == [-1_000_000]


DECODING = """
import pickle, sys
from connectors.kafka.messages import Message
from springtide.connectors.kafka.clients import Connection

for source in pickle.loads(sys.stdin.buffer.read()):
    raws = [b'{"inner": {"n": 1}, "more": [{"n": 2}]}', b'{"inner": {"n": "x"}}', b'{}']
    found = source.layout.opened(Connection('')).decode([Message(raw, 5 + at) for at, raw in enumerate(raws)])
    print(found.values, len(found.rejected))
"""


def test_a_class_of_a_script_is_decoded_where_its_module_is_not() -> None:
    """Pickled by value it cannot resolve the names in its annotations in another process."""
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Inner:\n    n: int\n"
        "@dataclass(frozen=True)\nclass Outer:\n    inner: Inner\n    more: list[Inner] | None = None\n    at: int = 0\n"
    )
    module: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "script", "exec"), module)

    vars(sys.modules["__main__"]).update({name: module[name] for name in ("Inner", "Outer")})
    try:
        plain, meta = source_of(module["Outer"]), source_of(module["Outer"], meta={"at": "offset"})
        shipped = cloudpickle.dumps([plain, meta])
    finally:
        for name in ("Inner", "Outer"):
            delattr(sys.modules["__main__"], name)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DECODING], input=shipped, capture_output=True, env=environ)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        "[Outer(inner=Inner(n=1), more=[Inner(n=2)], at=0)] 2", "[Outer(inner=Inner(n=1), more=[Inner(n=2)], at=5)] 2",
    ]  # fmt: skip


def test_a_declaration_is_pickled_after_it_was_checked() -> None:
    source = source_of(Order)
    source.layout.check(Connection(""))
    assert cloudpickle.loads(cloudpickle.dumps(source)).layout.record is Order


AVRO: dict[str, Any] = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "route", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "place", "type": ["null", {"type": "record", "name": "Place", "fields": [
            {"name": "lat", "type": "double"}, {"name": "lon", "type": "double"}]}], "default": None},
        {"name": "more", "type": "int", "default": 0},
    ],
}  # fmt: skip


def avro(value: Mapping[str, Any], schema: Mapping[str, Any] = AVRO) -> bytes:
    import io

    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), value)
    return out.getvalue()


@pytest.mark.parametrize("schema", [AVRO, json.dumps(AVRO)])
def test_avro_with_the_writers_schema(schema: object) -> None:
    good = avro({"id": 1, "route": "a", "place": {"lat": 1.0, "lon": 2.0}})
    found = decoded(Order, [good, good[:-3], b"", None, good + b"x", b"\xff" * 40], format="avro", schema=schema)
    assert found.values == [Order(1, "a", place=Place(1.0, 2.0))]
    assert list(reasons(found)) == [1, 2, 3, 4, 5]
    assert "tombstone" in reasons(found)[3]


def test_avro_of_another_schema_is_rejected() -> None:
    other = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "string"}, {"name": "route", "type": "string"}],
    }
    found = decoded(Order, [avro({"id": "x", "route": "a"}, other)], format="avro", schema=other)
    assert found.values == [] and "id" in reasons(found)[0]


def test_avro_times_and_decimals() -> None:
    import decimal

    @dataclass(frozen=True)
    class Paid:
        at: datetime.datetime
        day: datetime.date

    schema = {"type": "record", "name": "Paid", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ]}  # fmt: skip
    raw = avro({"at": AT, "day": AT.date(), "sum": decimal.Decimal("1.25")}, schema)
    found = decoded(Paid, [raw], format="avro", schema=schema, created="at")
    assert found.values == [Paid(AT, AT.date())] and found.created is not None and found.created[0] == AT_MS * 1000


def message_classes() -> Any:
    """Classes as protoc would generate them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = descriptor_pb2.FieldDescriptorProto
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    place = file.message_type.add(name="Place")
    place.field.add(name="lat", number=1, type=kind.TYPE_DOUBLE, label=kind.LABEL_OPTIONAL)
    place.field.add(name="lon", number=2, type=kind.TYPE_DOUBLE, label=kind.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    for number, (name, what) in enumerate(
        {"id": kind.TYPE_INT64, "route": kind.TYPE_STRING, "fare": kind.TYPE_DOUBLE}.items(), 1
    ):
        order.field.add(name=name, number=number, type=what, label=kind.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note", number=4, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL, oneof_index=0, proto3_optional=True
    )
    order.field.add(name="tags", number=5, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    order.field.add(name="place", number=6, type=kind.TYPE_MESSAGE, type_name=".shop.Place", label=kind.LABEL_OPTIONAL)
    order.field.add(name="stops", number=7, type=kind.TYPE_MESSAGE, type_name=".shop.Place", label=kind.LABEL_REPEATED)
    order.field.add(
        name="at", number=8, type=kind.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=kind.LABEL_OPTIONAL
    )
    order.field.add(name="colour", number=9, type=kind.TYPE_ENUM, type_name=".shop.Colour", label=kind.LABEL_OPTIONAL)
    order.field.add(
        name="size", number=10, type=kind.TYPE_MESSAGE, type_name=".google.protobuf.Int32Value", label=kind.LABEL_OPTIONAL
    )
    entry = order.nested_type.add(name="CountsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    order.field.add(
        name="counts", number=11, type=kind.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=kind.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@dataclass(frozen=True)
class Shipped(Order):
    at: datetime.datetime | None = None
    colour: str = "GREEN"
    size: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


def test_protobuf() -> None:
    kind = message_classes()
    full = kind(
        id=1,
        route="a",
        fare=2.0,
        note="",
        tags=["x"],
        place={"lat": 1, "lon": 2},
        stops=[{"lat": 3, "lon": 4}],
        counts={"k": 2},
    )
    full.at.FromDatetime(AT)
    full.colour, full.size.value = 1, 7
    raws = [full.SerializeToString(), kind(id=2, route="b").SerializeToString(), b"\xff\xff", None, b""]
    found = decoded(Shipped, raws, format="protobuf", schema=kind)
    places = [Place(3.0, 4.0)]
    assert found.values == [
        Shipped(1, "a", 2.0, "", ["x"], Place(1.0, 2.0), places, AT, "BLUE", 7, {"k": 2}),
        Shipped(2, "b", 0.0, None, colour="RED"),
        Shipped(0, "", 0.0, None, colour="RED"),
    ]
    assert list(reasons(found)) == [2, 3]
    assert cloudpickle.loads(cloudpickle.dumps(source_of(Shipped, format="protobuf", schema=kind))).layout.schema


def test_protobuf_with_fields_from_the_message() -> None:
    @dataclass(frozen=True)
    class Small:
        id: int
        place: Place | None
        number: int = 0

    found = decoded(
        Small, [message_classes()(id=3, place={"lat": 1, "lon": 2}).SerializeToString()], format="protobuf",
        schema=message_classes(), meta={"number": "offset"},
    )  # fmt: skip
    assert found.values == [Small(3, Place(1.0, 2.0), 0)]


def test_a_protobuf_message_for_a_plain_field_is_refused_when_the_source_is_declared() -> None:
    @dataclass(frozen=True)
    class Wrong:
        place: int

    with pytest.raises(TopologyError, match=r"shop\.Order\.place is a shop\.Place; declare it as a dataclass"):
        source_of(Wrong, format="protobuf", schema=message_classes())


def test_formats_that_are_declared_wrongly() -> None:
    with pytest.raises(OptionError, match="schema= is for format='avro' and 'protobuf'"):
        source_of(Order, schema=AVRO)
    with pytest.raises(OptionError, match="wants schema= the writer's schema, or registry="):
        source_of(Order, format="avro")
    with pytest.raises(OptionError, match="schema= is no Avro schema"):
        source_of(Order, format="avro", schema="{")
    with pytest.raises(OptionError, match="wants schema= a message class"):
        source_of(Order, format="protobuf", schema=Order)
    with pytest.raises(OptionError, match=r"format='jsn'; .*json"):
        source_of(Order, format="jsn")
    with pytest.raises(OptionError, match="leave them out with value=bytes"):
        source_of(bytes, format="json")
