"""The driver's part of the Kafka sink on a real broker: exactly once through deaths at every step, fencing, brokers away."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from springtide.errors import CheckpointError, OptionError, RunError
from springtide.model.publisher import Mark, Part, Publisher, SinkUnavailable

pytest.importorskip("confluent_kafka")

from servers.kafka import Broker
from springtide.connectors.kafka.sink import publisher as publishers
from springtide.connectors.kafka.sink import staged
from springtide.connectors.kafka.sink.publisher import ExactlyOnce

SCHEMA = pa.schema([("value", pa.string())])
PARTS, ROWS = 3, 200


class Died(BaseException):
    """The driver's process is killed here."""


@dataclass
class Case:
    """A sink, its batches, and its publishers, the latest of which lives."""

    kafka: Broker
    folder: Path
    topic: str
    options: dict[str, Any] = field(default_factory=dict)
    all: list[Any] = field(default_factory=list)

    def publisher(self, **options: Any) -> Any:
        sink = st.sink.kafka(self.kafka.servers, self.topic, format="text", **{**self.options, **options})
        self.all.append(sink.publisher(f"{self.topic}-out", SCHEMA, lambda: False))
        return self.all[-1]

    def prepared(self, **options: Any) -> Any:
        made = self.publisher(**options)
        if made.prepare() is None:
            made.begin(-1)
        return made

    def parts(self, batch: int) -> list[Part]:
        found = []
        for number in range(PARTS):
            file = self.folder / f"{batch}-{number}.parquet"
            values = [f"{batch}-{number}-{row}".encode() for row in range(ROWS)]
            pyarrow.parquet.write_table(pa.table({"key": pa.nulls(ROWS, pa.binary()), "value": values}), file)
            found.append(Part(number, file, ROWS, zlib.crc32(file.read_bytes())))
        return found

    def wanted(self, *batches: int) -> list[str]:
        return sorted(f"{batch}-{number}-{row}" for batch in batches for number in range(PARTS) for row in range(ROWS))

    def read(self, isolation: str = "read_committed") -> list[str]:
        return sorted(message.value().decode() for message in self.kafka.messages(self.topic, isolation))


@pytest.fixture
def case(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """Every block of 64 records is a transaction."""
    monkeypatch.setattr(staged, "BLOCK_ROWS", 64)
    monkeypatch.setattr(publishers, "TRANSACTION_S", -1.0)
    found = Case(kafka, tmp_path, kafka.topic(partitions=2))
    yield found
    monkeypatch.undo()
    for publisher in found.all:
        publisher.close()


def publish(publisher: Publisher, batch: int, parts: Sequence[Part]) -> None:
    """As the driver does: again until the sink can be reached."""
    while True:
        try:
            return publisher.publish(batch, parts)
        except SinkUnavailable:
            time.sleep(0.1)


def dies_at(monkeypatch: pytest.MonkeyPatch, case: Case, publisher: Any, step: str, number: int) -> None:
    """The process dies at a step of the ``number``th transaction: nothing that it does afterwards reaches the broker."""
    producing, commits = publisher._producing, [0]
    monkeypatch.setattr(publisher, "_drop", lambda: None)

    def once(call: Callable[..., Any], before: bool) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if before and commits[0] == number:
                raise Died
            result = call(*args)
            if not before and commits[0] == number:
                raise Died
            return result

        return wrapped

    original = publisher._commit

    def commit(progress: Any) -> None:
        commits[0] += 1
        original(progress)

    monkeypatch.setattr(publisher, "_commit", commit)
    if step == "before a transaction":
        monkeypatch.setattr(publisher, "_start", once(publisher._start, before=True))
    elif step == "before the mark":
        monkeypatch.setattr(producing, "flush", once(producing.flush, before=False))
    elif step == "before the commit":
        calls = [0]
        original_call = producing.call

        def call(attempt: Any) -> Any:
            calls[0] += 1
            if commits[0] == number and calls[0] % 2 == 0:
                raise Died
            return original_call(attempt)

        monkeypatch.setattr(producing, "call", call)
    else:
        monkeypatch.setattr(publisher, "_commit", once(commit, before=False))


STEPS = ("before a transaction", "before the mark", "before the commit", "after the commit")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [1, 3, 12])
def test_a_death_at_any_step_neither_loses_nor_repeats(
    step: str, number: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = case.prepared()
    publish(first, 0, case.parts(0))
    dies_at(monkeypatch, case, first, step, number)
    parts = case.parts(1)
    died = True
    try:
        first.publish(1, parts)
        died = False
    except Died:
        pass
    assert died or (step, number) == ("before a transaction", 12), "the last transaction is followed by none"
    second = case.publisher()
    mark = second.prepare()
    assert mark in (Mark(0), Mark(1, False), Mark(1))
    publish(second, 1, parts)
    publish(second, 1, parts)  # as after a crash before Spark's commit
    assert case.read() == case.wanted(0, 1)
    third = case.publisher()
    assert third.prepare() == Mark(1)


def test_a_zombie_cannot_write_and_ends_with_a_message(case: Case) -> None:
    zombie = case.prepared()
    publish(zombie, 0, case.parts(0))
    zombie._start()
    zombie._producing.send([(b"zombie", None)])
    zombie._producing.flush()
    heir = case.prepared()
    publish(heir, 1, case.parts(1))
    with pytest.raises(CheckpointError, match="another driver has taken over"):
        zombie.publish(1, case.parts(1))
    with pytest.raises(CheckpointError, match="another driver has taken over"):  # it does not fence its heir in turn
        zombie.publish(1, case.parts(1))
    publish(heir, 2, case.parts(2))
    assert case.read() == case.wanted(0, 1, 2)
    assert "zombie" in case.read("read_uncommitted")


def restarted(kafka: Broker) -> None:
    kafka.kill()
    time.sleep(1.0)
    kafka.start()


def test_a_broker_that_is_killed_while_it_is_published_to(case: Case) -> None:
    publisher = case.prepared()
    for batch in range(4):
        killer = threading.Timer(0.02 * batch, restarted, (case.kafka,))
        killer.start()
        publish(publisher, batch, case.parts(batch))
        killer.join()
    assert case.read() == case.wanted(0, 1, 2, 3)


def test_a_transaction_that_took_too_long_is_made_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = case.prepared(config={"transaction.timeout.ms": 1000})
    publish(publisher, 0, case.parts(0))
    monkeypatch.setattr(publishers, "TRANSACTION_S", 1000.0)
    original, waited = publisher._commit, list[bool]()

    def commit(progress: Any) -> None:
        if not waited:
            publisher._producing.flush()
            waited.append(True)
            time.sleep(13.0)  # the brokers look every 10 s
        original(progress)

    monkeypatch.setattr(publisher, "_commit", commit)
    with pytest.raises(SinkUnavailable, match=r"longer than transaction.timeout.ms"):
        publisher.publish(1, case.parts(1))
    publish(publisher, 1, case.parts(1))
    assert case.read() == case.wanted(0, 1)


def test_a_part_that_was_computed_again_with_other_records_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = case.prepared()
    parts = case.parts(0)
    dies_at(monkeypatch, case, publisher, "after the commit", 2)
    with pytest.raises(Died):
        publisher.publish(0, parts)
    again = case.publisher()
    assert again.prepare() == Mark(0, False)
    with pytest.raises(RunError, match="not deterministic"):
        again.publish(0, [*parts[:-1], Part(2, parts[-1].file, ROWS, 1)])


def test_a_mark_that_someone_else_wrote_is_refused(case: Case) -> None:
    from confluent_kafka import Consumer, TopicPartition

    publisher = case.prepared()
    with case.kafka.consumer(**{"group.id": publisher._id}) as consumer:
        assert isinstance(consumer, Consumer)
        consumer.commit(offsets=[TopicPartition(case.topic, 0, 17)], asynchronous=False)
    with pytest.raises(CheckpointError, match="was not written by Springtide"):
        case.publisher().prepare()


def test_a_topic_that_was_made_again_has_no_mark(case: Case) -> None:
    publish(case.prepared(), 0, case.parts(0))
    case.kafka.delete_topic(case.topic)
    case.kafka.topic(case.topic)
    assert case.publisher().prepare() is None


def test_at_least_once_needs_no_transactions(case: Case) -> None:
    publisher = case.prepared(guarantee="at-least-once")
    publish(publisher, 0, case.parts(0))
    publish(publisher, 0, case.parts(0))
    assert case.read() == sorted(case.wanted(0) * 2)
    assert case.kafka.group_offsets(publisher._id) == {}


def test_a_topic_that_is_missing_is_an_error_or_is_made(kafka: Broker) -> None:
    topic = kafka.topic("orders-of-today")
    with pytest.raises(OptionError, match="did you mean 'orders-of-today'"):
        st.sink.kafka(kafka.servers, "orders-of-toda").check(SCHEMA)
    sink = st.sink.kafka(kafka.servers, f"{topic}-made", partitions=3, format="text")
    sink.check(SCHEMA)
    assert f"{topic}-made" not in kafka.admin.list_topics(timeout=10).topics
    publisher = sink.publisher("made", SCHEMA, lambda: False)
    publisher.prepare()
    publisher.close()
    assert len(kafka.offsets(f"{topic}-made")) == 3


def test_what_the_brokers_would_refuse_is_refused_before_the_run(kafka: Broker) -> None:
    topic = kafka.topic()
    with pytest.raises(OptionError, match=r"above the brokers' transaction.max.timeout.ms=900000"):
        st.sink.kafka(kafka.servers, topic, config={"transaction.timeout.ms": 900_001, "message.timeout.ms": 0}).check(SCHEMA)
    compacted = kafka.topic(partitions=1, **{"cleanup.policy": "compact"})
    with pytest.raises(OptionError, match="compacted by keys"):
        st.sink.kafka(kafka.servers, compacted).check(SCHEMA)


def test_tasks_get_the_terms_of_the_topic_and_no_settings(kafka: Broker) -> None:
    topic = kafka.topic(partitions=3, **{"max.message.bytes": "5000", "cleanup.policy": "compact"})
    sink = st.sink.kafka(kafka.servers, topic, key="value", config={"linger.ms": 7})
    publisher = sink.publisher("terms", SCHEMA, lambda: False)
    publisher.prepare()
    told: Any = publisher.in_tasks(sink)
    publisher.close()
    assert (told.terms.limit, told.terms.partitions, told.terms.keyed) == (5000, 3, True)
    assert told.connection.settings == {}
    large, small = "x" * 4900, "y"
    rows, refused = told.stage(pa.record_batch({"value": [small, large, None]}))
    assert rows.num_rows == 1 and [refusal.index for refusal in refused] == [1, 2]
    assert "the topic takes 5,000" in str(refused[0].error) and "compacted" in str(refused[1].error)


def test_waiting_is_bounded_when_the_run_has_to_end(case: Case) -> None:
    sink = st.sink.kafka(case.kafka.servers, case.topic, format="text")
    stopped = threading.Event()
    publisher = sink.publisher("bounded", SCHEMA, stopped.is_set)
    publisher.prepare()
    publisher.begin(-1)
    case.kafka.pause()
    try:
        threading.Timer(1.0, stopped.set).start()
        begin = time.monotonic()
        with pytest.raises(SinkUnavailable):
            publisher.publish(0, case.parts(0))
        assert time.monotonic() - begin < 8
    finally:
        case.kafka.go_on()
    assert isinstance(publisher, ExactlyOnce)
    publisher.close()
