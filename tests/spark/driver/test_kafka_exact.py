"""Runs on Kafka, from a declaration to files: exact, whatever the topic holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import springtide as st
from servers.kafka import Broker
from springtide.errors import CheckpointError, OptionError, RunError

BIG = 2**70


@dataclass(frozen=True)
class Trip:
    id: int
    route: str
    number: int = 0
    offset: int = 0


def same(trip: Trip) -> Trip:
    return trip


@dataclass(frozen=True)
class Seen:
    route: str
    last: int
    backwards: int


class Orders(st.Processor):
    """Counts the records of a key that come before an earlier one of the same partition."""

    last, backwards = st.value(int, default=-1), st.value(int, default=0)

    def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Seen]:
        for trip in records:
            if trip.offset <= state.last:
                state.backwards += 1
            state.last = trip.offset
        yield Seen(key, state.last, state.backwards)


def trip(number: int) -> bytes:
    return json.dumps({"id": number, "route": f"r{number % 7}"}).encode()


def run(stream: Any, folder: Path, spark: Any, **options: Any) -> Any:
    options = {"checkpoint": folder / "checkpoint", "runs": folder / "runs", "max_slots": 4, **options}
    return st.run(stream, spark=spark, **options)


def read(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(folder, exclude_invalid_files=True).to_table().to_pylist()
    return rows


def letters(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(row["record"])
        for row in ds.dataset(folder / "checkpoint/springtide/dead", format="json").to_table().to_pylist()
    ]


def test_a_backfill_is_exact_and_what_is_bad_is_in_the_dead_letters(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [trip(number) for number in range(500)], partition=0)
    kafka.transaction(topic, [trip(-1)] * 5, partition=1, commit=False)
    bad = [b"{", None, b'{"id": "x", "route": "a"}', json.dumps({"id": BIG, "route": "big"}).encode()]
    kafka.produce(topic, [*bad, *(trip(number) for number in range(500, 600))], partition=1)
    source = st.source.kafka(
        kafka.servers, topic, value=Trip, meta={"number": "partition", "offset": "offset"}, until="now", group="watched",
        max_records=150,
    )  # fmt: skip
    trips = source.map(same, name="same", grouping="round-robin").to(st.sink.files(tmp_path / "out"), name="out").named("trips")
    result = run(trips, tmp_path, spark)
    rows = read(tmp_path / "out")
    assert sorted(row["id"] for row in rows) == list(range(600))
    assert {(row["number"], row["offset"]) for row in rows if row["number"] == 0} == {(0, n) for n in range(500)}
    assert result.summary["rows_in"] == 604 and result.summary["rows_failed"] == 4 and result.summary["backlog_end"] == 0
    places = sorted((letter["topic"], letter["partition"], letter["offset"]) for letter in letters(tmp_path))
    assert places == [(topic, 1, message.offset()) for message in kafka.messages(topic) if message.value() in bad]
    ends = {f"{topic}/{number}": high for number, (_, high) in kafka.offsets(topic).items()}
    assert kafka.group_offsets("watched") == ends
    again = run(trips, tmp_path, spark)
    assert again.summary["rows_in"] == 0


def test_an_empty_backfill_ends(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    source = st.source.kafka(kafka.servers, kafka.topic(), value=Trip, until="now")
    result = run(source.map(same).to(st.sink.discard()).named("trips"), tmp_path, spark, duration="60s")
    assert (result.summary["rows_in"] == 0 and result.summary["duration_s"] is None) or result.summary["duration_s"] < 30


def test_the_order_of_a_key_holds_behind_key_by(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [trip(number) for number in range(20_000)])
    source = st.source.kafka(kafka.servers, topic, value=Trip, meta={"offset": "offset"}, until="now", max_records=5_000)
    seen = source.map(same, name="same").key_by("route").stateful(Orders, name="orders")
    result = run(
        seen.to(st.sink.memory("out"), name="out").named("orders"),
        tmp_path,
        spark,
        policy="static",
        settings={"degrees": "same=3,orders=1"},
    )
    rows = result.table("out").to_pylist()
    assert {row["route"] for row in rows} == {f"r{n}" for n in range(7)}
    assert max(row["backwards"] for row in rows) == 0
    assert max(row["last"] for row in rows) == 19_999
    batches = [
        json.loads(line) for file in (tmp_path / "runs").glob("*/batches.jsonl") for line in file.read_text().splitlines()
    ]
    readers = {task["task"] for batch in batches for task in batch["tasks"] if task["operator"] == "source"}
    assert len(readers) > 1, "one partition was read by several tasks"


def test_deleted_records_are_counted_in_the_summary_or_end_the_run(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [trip(number) for number in range(100)])

    def job(**options: Any) -> Any:
        source = st.source.kafka(kafka.servers, topic, value=Trip, start={topic: {0: 0}}, until="now", **options)
        return source.map(same, name="same").to(st.sink.files(tmp_path / "out"), name="out").named("trips")

    kafka.delete_records(topic, {0: 40})
    with pytest.raises(RunError, match=r"40 records were deleted before they were read") as error:
        run(job(), tmp_path, spark)
    assert "Traceback" not in str(error.value)
    result = run(job(on_data_loss="go on"), tmp_path, spark)
    assert sorted(row["id"] for row in read(tmp_path / "out")) == list(range(40, 100))
    assert result.summary["rows_lost"] == 40 and result.summary["rows_in"] == 60


def test_a_checkpoint_of_other_topics_is_refused_and_of_fewer_is_carried_on(
    spark: Any, kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = kafka.topic(), kafka.topic()
    kafka.produce(one, [trip(1)])
    kafka.produce(two, [trip(2)])

    def job(topics: Any, **options: Any) -> Any:
        source = st.source.kafka(kafka.servers, topics, value=Trip, **options)
        return source.map(same, name="same").to(st.sink.files(tmp_path / "out"), name="out").named("trips")

    def ids() -> list[int]:
        return sorted(row["id"] for row in read(tmp_path / "out"))

    run(job([one]), tmp_path, spark, available_now=True)
    assert ids() == [1]
    with pytest.raises(CheckpointError, match=rf"has read {one}, of which the source names nothing any more"):
        run(job([two]), tmp_path, spark, available_now=True)
    with pytest.raises(OptionError, match=r"until='now'.*began without it"):
        run(job([one], until="now"), tmp_path, spark)
    run(job([one, two]), tmp_path, spark, available_now=True)
    assert ids() == [1, 2]
    kafka.produce(one, [trip(3)])
    kafka.produce(two, [trip(4)])
    run(job([two]), tmp_path, spark, available_now=True)
    assert ids() == [1, 2, 4]
    assert f"{one}" in caplog.text and "no longer" in caplog.text
    run(job([one, two]), tmp_path, spark, available_now=True)
    assert ids() == [1, 2, 3, 4]
