"""What tasks stage for the Kafka sink: the bytes of keys and values, and the records that the topic could not take."""

from __future__ import annotations

import datetime
import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hyp

import springtide as st
from springtide.connectors.kafka.sink.encoding import Encoder, Terms
from springtide.errors import OptionError, TopologyError

pytest.importorskip("confluent_kafka")
msgspec: Any = pytest.importorskip("msgspec")
fastavro: Any = pytest.importorskip("fastavro")

SERVERS = "localhost:9092"
AT = datetime.datetime(2026, 5, 1, 12, 30, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Inner:
    x: int
    tags: list[str]


@dataclass(frozen=True)
class Trip:
    id: int
    route: str
    fare: float | None
    at: datetime.datetime
    raw: bytes
    counts: dict[str, int]
    inner: Inner | None


TRIP = st.source.generate(lambda draw: None, rate=1, schema=Trip).schema
trips = hyp.builds(
    Trip,
    id=hyp.integers(-(2**63), 2**63 - 1), route=hyp.text(), fare=hyp.none() | hyp.floats(allow_nan=False, allow_infinity=False),
    at=hyp.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(9000, 1, 1), timezones=hyp.just(datetime.UTC)),
    raw=hyp.binary(), counts=hyp.dictionaries(hyp.text(), hyp.integers(-(2**63), 2**63 - 1), max_size=3),
    inner=hyp.none() | hyp.builds(Inner, hyp.integers(-(2**63), 2**63 - 1), hyp.lists(hyp.text(), max_size=3)),
)  # fmt: skip


def batch(records: list[Trip]) -> pa.RecordBatch:
    from springtide.model.columns import to_batch

    return to_batch(records, TRIP)


def staged(records: pa.RecordBatch, terms: Terms | None = None, **options: Any) -> tuple[dict[str, list[Any]], dict[int, str]]:
    layout = st.sink.kafka(SERVERS, "trips", **options).layout
    layout.check("sink 'out'", records.schema)
    rows, refused = Encoder(layout, records.schema, terms or Terms()).stage(records)
    return rows.to_pydict(), {refusal.index: str(refusal.error) for refusal in refused}


@given(hyp.lists(trips, min_size=1, max_size=5))
def test_json_is_what_the_source_reads_as_the_same_records(records: list[Trip]) -> None:
    rows, refused = staged(batch(records), key="route")
    assert refused == {}
    assert [msgspec.json.decode(value, type=Trip) for value in rows["value"]] == records
    assert rows["key"] == [record.route.encode() for record in records]


TRIPS = [Trip(1, "a", 2.5, AT, b"\x00\xff", {"x": 1}, Inner(3, ["t"])), Trip(2, "ä", None, AT, b"", {}, None)]


def test_json_in_words() -> None:
    rows, _ = staged(batch(TRIPS))
    assert json.loads(rows["value"][0]) == {
        "id": 1, "route": "a", "fare": 2.5, "at": "2026-05-01T12:30:00Z", "raw": "AP8=", "counts": {"x": 1},
        "inner": {"x": 3, "tags": ["t"]},
    }  # fmt: skip
    assert rows["key"] == [None, None]


def test_keys_of_whole_numbers_are_text_and_several_fields_are_a_json_array() -> None:
    assert staged(batch(TRIPS), key="id")[0]["key"] == [b"1", b"2"]
    assert staged(batch(TRIPS), key=("route", "id"))[0]["key"] == [b'["a",1]', '["ä",2]'.encode()]


def test_fields_beside_the_value_are_left_out_of_it() -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("p", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("h", pa.map_(pa.string(), pa.string()))]
    )
    records = pa.record_batch(
        {"n": [1, 2, 3, 4], "p": [0, 7, None, 1], "at": [AT, AT, None, AT], "h": [[("a", "b")], [], None, []]}, schema
    )
    meta = {"p": "partition", "at": "timestamp", "h": "headers"}
    rows, refused = staged(records, Terms(partitions=2), meta=meta)
    assert rows["value"] == [b'{"n":1}', b'{"n":3}', b'{"n":4}']
    assert rows["partition"] == [0, None, 1]
    assert rows["timestamp"] == [int(AT.timestamp() * 1000), None, int(AT.timestamp() * 1000)]
    assert rows["headers"] == [[{"name": "a", "value": b"b"}], [], []]
    assert refused == {1: "there is no partition 7; the topic has 2, counted from 0"}


def test_timestamps_that_a_topic_refuses_are_refused_before() -> None:
    records = pa.record_batch({"n": [1, 2, 3], "at": pa.array([-1, 1, 1 << 52], pa.int64())})
    rows, refused = staged(records, Terms(ahead_ms=3_600_000), meta={"at": "timestamp"})
    assert rows["timestamp"] == [1] and set(refused) == {0, 2}
    assert "before 1970" in refused[0] and "message.timestamp.after.max.ms" in refused[2]


def test_a_record_that_is_too_large_or_has_no_key_is_refused_alone() -> None:
    records = pa.record_batch({"k": ["a", None, "b"], "v": ["x", "y", "z" * 2_000]})
    rows, refused = staged(records, Terms(limit=1_500, keyed=True), format="text", value="v", key="k")
    assert rows["value"] == [b"x"]
    assert refused == {
        1: "the record has no key, and the topic is compacted by keys",
        2: "it has 2,129 bytes with key and headers, and the topic takes 1,500",
    }


AVRO = {
    "type": "record", "name": "Trip",
    "fields": [{"name": "id", "type": "int"}, {"name": "route", "type": ["null", "string"]}],
}  # fmt: skip


def test_avro_and_a_number_that_its_schema_does_not_hold() -> None:
    records = pa.record_batch({"id": [1, 1 << 40, 3], "route": ["a", "b", None]})
    rows, refused = staged(records, format="avro", schema=AVRO)
    parsed = fastavro.parse_schema(AVRO)
    assert [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in rows["value"]] == [
        {"id": 1, "route": "a"}, {"id": 3, "route": None},
    ]  # fmt: skip
    assert set(refused) == {1}


def test_protobuf_messages() -> None:
    from google.protobuf.wrappers_pb2 import Int64Value, StringValue

    rows, refused = staged(pa.record_batch({"value": ["a", None]}), format="protobuf", schema=StringValue)
    assert [StringValue.FromString(value).value for value in rows["value"]] == ["a", ""] and refused == {}
    rows, refused = staged(pa.record_batch({"value": ["1", "2"]}), format="protobuf", schema=Int64Value)
    assert rows["value"] == [] and set(refused) == {0, 1}


def test_bytes_and_tombstones() -> None:
    rows, _ = staged(pa.record_batch({"id": ["k", "l"], "payload": [b"\x00", None]}), format="bytes", key="id")
    assert rows["value"] == [b"\x00", None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "is no name of a topic"),
        ({"key": 7}, "key=7 is not allowed; give the name of a field"),
        ({"format": "jsn"}, "did you mean 'json'"),
        ({"format": "avro"}, "wants schema="),
        ({"schema": "{}"}, "schema= is for format='avro' and 'protobuf'"),
        ({"value": "x"}, "is for format='text' and 'bytes'"),
        ({"meta": {"a": "offset"}}, "Allowed: headers, key, partition, timestamp"),
        ({"meta": {"a": "key"}, "key": "b"}, "both give the key"),
        ({"meta": {"a": "key", "b": "key"}}, "fills a part of the message twice"),
        ({"guarantee": "exactly"}, "did you mean 'exactly-once'"),
        ({"partitions": 0}, "give a whole number of 1 or more"),
        ({"config": {"acks": 1}}, "config= may not have 'acks'"),
        ({"config": {"transactional.id": "x"}}, "may not have 'transactional.id'"),
        ({"config": {"lingr.ms": 1}}, "lingr.ms"),
        ({"config": {"sasl.password": "p"}}, "as text, which would be stored"),
        ({"config": {"transaction.timeout.ms": 5}}, "transaction.timeout.ms"),
        ({"servers": "nowhere"}, "give host:port"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    given = {"servers": SERVERS, "topic": "trips", **options}
    with pytest.raises(OptionError, match=message):
        st.sink.kafka(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "rout"}, "no field 'rout'; did you mean 'route'"),
        ({"key": "fare"}, "'fare' is double and cannot be the key; give a field of text, bytes or whole numbers"),
        ({"meta": {"route": "timestamp"}}, "cannot be timestamp; declare it datetime"),
        ({"format": "text"}, "name it with value="),
        ({"format": "text", "value": "id"}, "cannot be the value"),
        ({"format": "avro", "schema": {**AVRO, "fields": AVRO["fields"][:1]}}, "the Avro schema has no field 'route'"),
    ],
)
def test_fields_that_do_not_fit_are_refused_with_the_topology(options: dict[str, Any], message: str) -> None:
    source = st.source.generate(lambda draw: None, rate=1, schema=Trip)
    with pytest.raises(TopologyError, match=message):
        source.to(st.sink.kafka(SERVERS, "trips", **options), name="out").named("t")


def test_settings_with_secrets_are_not_shown() -> None:
    sink = st.sink.kafka(SERVERS, "trips", config={"sasl.password": st.secret.env("PASSWORD")})
    assert "PASSWORD" in repr(sink) and sink.describe() == "Kafka topic trips at localhost:9092"
