"""Records of a real broker are read exactly once: transactions, compaction, deletion, growth, and brokers that go away."""

from __future__ import annotations

import datetime
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connectors.kafka.messages import Job, source_of
from servers.kafka import Broker
from springtide.connectors.kafka import fetch
from springtide.errors import OptionError, RunError
from springtide.model.source import SourceUnavailable

Jobs = Callable[..., Job]


@pytest.fixture
def job(kafka: Broker) -> Iterator[Jobs]:
    made: list[Job] = []

    def make(topic: object, most: int | None = None, tasks: int = 1, clock: Any = None, **options: Any) -> Job:
        made.append(Job(source_of(str, servers=kafka.servers, topic=topic, **options), most, tasks, clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def values(job: Job) -> list[str]:
    return [record.value for record in job.values]


def raws(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in range(*numbers)]


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in range(*numbers)]


def test_batches_within_a_limit_read_all_partitions_once_and_in_order(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic(partitions=3)
    for number, count in enumerate((500, 50, 5)):
        kafka.produce(topic, raws(count), partition=number)
    run = job(topic, most=100, tasks=2)
    sizes = []
    while run.waiting():
        sizes.append(run.batch())
    assert max(sizes) == 100 and sum(sizes) == 555
    for number, count in enumerate((500, 50, 5)):
        assert [offset for origin, offset in run.places if origin == f"{topic}/{number}"] == list(range(count))
    kafka.produce(topic, [b"more"], partition=2)
    assert run.batch() == 1 and run.batch() == 0


def test_starts(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, raws(5), partition=0, timestamp=1_000_000)
    kafka.produce(topic, raws(5, 10), partition=0, timestamp=2_000_000)
    kafka.produce(topic, [b"old"], partition=1, timestamp=1_000_000)
    starts = {
        "earliest": ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "old"],
        "latest": [],
        datetime.datetime.fromtimestamp(1500, datetime.UTC): texts(5, 10),
        datetime.datetime.fromtimestamp(3000, datetime.UTC): [],
    }
    for start, expected in starts.items():
        run = job(topic, start=start)
        run.batch()
        assert sorted(values(run)) == expected, start
    run = job(topic, start={topic: {0: 7}})
    run.batch()
    assert sorted(values(run)) == ["7", "8", "9", "old"]
    with pytest.raises(OptionError, match=rf"start= names offset 11 of {topic}/0, which ends at 10"):
        job(topic, start={topic: {0: 11}})


def test_a_run_from_the_latest_offset_reads_what_comes_then(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.produce(topic, raws(5))
    run = job(topic, start="latest")
    kafka.produce(topic, raws(5, 7))
    run.batch()
    assert values(run) == ["5", "6"]


def test_a_backfill_ends_where_the_topic_ended(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, raws(10), partition=0)
    run = job(topic, until="now", most=4)
    kafka.produce(topic, raws(10, 20), partition=0)
    kafka.produce(topic, raws(20, 30), partition=1)
    kafka.grow(topic, 3)
    kafka.produce(topic, raws(30, 40), partition=2)
    while not run.enumerator.exhausted(run.at):
        run.batch()
    assert values(run) == texts(10)


@pytest.mark.parametrize("most", [None, 1, 3])
def test_transactions_gaps_and_markers_are_passed(kafka: Broker, job: Jobs, most: int | None) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [b"no"] * 5, commit=False)
    kafka.transaction(topic, [b"a"])
    kafka.transaction(topic, [b"no"] * 5, commit=False)
    kafka.produce(topic, [b"b"])
    kafka.transaction(topic, [b"c", b"d"])
    kafka.transaction(topic, [b"no"], commit=False)
    run = job(topic, most=most, tasks=3)
    while run.waiting():
        run.batch()
    assert values(run) == ["a", "b", "c", "d"] and run.lost == 0


def test_aborted_records_can_be_read(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [b"aborted"], commit=False)
    run = job(topic, isolation="read_uncommitted")
    run.batch()
    assert values(run) == ["aborted"]


def test_an_open_transaction_holds_the_end_until_it_ends(kafka: Broker, job: Jobs) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"in it")
    producer.flush(30)
    kafka.produce(topic, [b"behind it"])
    run = job(topic, tasks=2)
    run.batch()
    assert values(run) == ["a"] and run.waiting() == 0
    producer.commit_transaction(30)
    until = time.monotonic() + 30
    while not run.waiting() and time.monotonic() < until:  # the broker writes the marker later
        time.sleep(0.05)
    run.batch()
    assert values(run) == ["a", "in it", "behind it"]


def test_a_compacted_topic(kafka: Broker, job: Jobs) -> None:
    compacting: Any = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    compacting |= {"segment.ms": "100", "max.compaction.lag.ms": "100"}
    topic = kafka.topic(**compacting)
    for number in range(50):
        kafka.produce(topic, [str(number).encode()], key=b"k")
    time.sleep(0.2)
    kafka.produce(topic, [b"last"], key=b"other")  # a new segment, so that the others are compacted
    until = time.monotonic() + 60
    while len(kafka.messages(topic)) > 5 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(kafka.messages(topic)) <= 5, "the broker did not compact the topic"
    run = job(topic, most=10, tasks=2)
    while run.waiting():
        run.batch()
    assert values(run)[-2:] == ["49", "last"] and run.lost == 0


def test_deleted_records_stop_the_run_with_their_number_or_are_counted(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, raws(10), partition=0)
    kafka.produce(topic, raws(10), partition=1)
    strict, lenient = job(topic, tasks=3), job(topic, most=4, tasks=3, on_data_loss="go on")
    kafka.delete_records(topic, {0: 7, 1: 2})
    with pytest.raises(
        RunError, match=rf"9 records were deleted before they were read \(7 of {topic}/0, 2 of {topic}/1\).*go on"
    ):
        strict.batch()
    assert lenient.waiting() == 11, "what is deleted does not wait"
    while lenient.waiting():
        assert lenient.batch() <= 4
    assert sorted(values(lenient)) == sorted([*texts(7, 10), *texts(2, 10)]) and lenient.lost == 9


def test_records_deleted_after_a_batch_was_planned(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.produce(topic, raws(10))
    for loss in ("stop", "go on"):
        run = job(topic, on_data_loss=loss, start={topic: {0: 0}})
        end = run.enumerator.end(run.at) if loss == "stop" else {topic: {**run.at[topic], "0": 10}}
        cuts = run.enumerator.ranges(run.at, end, 2)
        kafka.delete_records(topic, {0: 7})
        if loss == "stop":
            with pytest.raises(RunError, match=r"from offset 0 on were deleted before they were read.*go on"):
                run.read(cuts[0])
        else:
            for cut in cuts:
                run.read(cut)
            assert values(run) == texts(7, 10) and run.lost == 7


def test_new_partitions_and_new_topics_are_found(kafka: Broker, job: Jobs) -> None:
    name = f"new-{uuid.uuid4().hex[:8]}"
    one = kafka.topic(f"{name}-1")
    kafka.produce(one, [b"a"])
    clock = Clock()
    run = job(f"^{name}-", start="latest")
    run.enumerator._cluster._clock = clock
    run.batch()
    assert values(run) == []
    kafka.grow(one, 2)
    kafka.produce(one, [b"b"], partition=1)
    two = kafka.topic(f"{name}-2")
    kafka.produce(two, [b"c"])
    run.batch()
    assert values(run) == ["b"]
    clock.now += 10
    run.batch()
    assert values(run) == ["b", "c"]


def test_a_pattern_that_matches_nothing_yet(kafka: Broker, job: Jobs) -> None:
    name = f"later-{uuid.uuid4().hex[:8]}"
    run = job(f"^{name}")
    run.source.check()
    assert run.batch() == 0 and run.waiting() == 0
    run.enumerator._cluster._named = float("-inf")
    kafka.produce(kafka.topic(name), [b"a"])
    assert run.batch() == 1


def test_a_topic_made_again_is_noticed(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.produce(topic, raws(5))
    strict, lenient = job(topic), job(topic, on_data_loss="go on")
    strict.batch(), lenient.batch()
    old = strict.enumerator.ranges({topic: {**strict.at[topic], "0": 0}}, strict.at, 1)
    kafka.delete_topic(topic)
    kafka.produce(kafka.topic(topic), raws(10, 20))
    with pytest.raises(RunError, match=rf"topic '{topic}' was deleted and made again after 0: 5 was read.*another cluster"):
        strict.batch()
    lenient.batch()
    assert values(lenient)[5:] == texts(10, 20), "not from offset 5 on"
    for run in (job(topic), job(topic, on_data_loss="go on")):
        if run.source.lenient:
            run.read(old[0])
            assert run.lost == 5 and values(run) == []
        else:
            with pytest.raises(RunError, match=r"was deleted and made again, and records 0 to 5 of the old one"):
                run.read(old[0])


def test_a_topic_that_is_gone_is_waited_for_and_then_ends_the_run(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.produce(topic, raws(5))
    clock = Clock()
    strict, lenient = job(topic, clock=clock), job(topic, clock=clock, on_data_loss="go on")
    for run in (strict, lenient):
        run.batch()
    kafka.delete_topic(topic)
    for run in (strict, lenient):
        with pytest.raises(SourceUnavailable, match=r"does not exist any more.*asking again"):
            run.batch()
    clock.now += 11
    with pytest.raises(RunError, match=r"does not exist any more, after 0: 5 was read.*another checkpoint.*go on"):
        strict.batch()
    assert lenient.batch() == 0


def test_a_backfill_whose_topic_is_gone_ends_all_the_same(kafka: Broker, job: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SURE_S", 0.5)
    topic = kafka.topic()
    kafka.produce(topic, raws(10))
    clock = Clock()
    run = job(topic, until="now", most=4, clock=clock, on_data_loss="go on")
    run.batch()
    kafka.delete_topic(topic)
    with pytest.raises(SourceUnavailable):
        run.batch()
    clock.now += 11
    for _ in range(5):
        run.batch()
    assert run.enumerator.exhausted(run.at)
    assert len(run.values) + run.lost == 10 and run.lost == 6


def test_a_broker_that_is_away_is_waited_for_and_nothing_is_lost(
    kafka: Broker, job: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch, "SAY_AFTER_S", 0.5)
    topic = kafka.topic()
    kafka.produce(topic, raws(1000))
    run = job(topic)
    end = run.enumerator.end(run.at)
    run.reader._opened()
    run.reader._ids[topic] = (run.at[topic]["id"], time.monotonic() + 1000)
    kafka.kill()
    back = threading.Timer(3.0, kafka.start)
    back.start()
    with caplog.at_level(logging.WARNING):
        run.read(run.enumerator.ranges(run.at, end, 1)[0])
    back.join()
    assert values(run) == texts(1000) and run.lost == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "waiting" in said[0] and "goes on" in said[1], said


def test_a_broker_that_hangs_is_waited_for(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic()
    kafka.produce(topic, raws(1000))
    run = job(topic)
    run.batch()
    kafka.produce(topic, raws(1000, 2000))
    end = run.enumerator.end(run.at)
    kafka.pause()
    back = threading.Timer(2.0, kafka.go_on)
    back.start()
    try:
        run.read(run.enumerator.ranges(run.at, end, 1)[0])
    finally:
        back.join()
    assert values(run) == texts(2000) and run.lost == 0


def test_a_broker_that_is_away_makes_no_end_and_no_loss(kafka: Broker, job: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from springtide.connectors.kafka import cluster

    monkeypatch.setattr(cluster, "PATIENT_S", 1.0)
    topic = kafka.topic()
    kafka.produce(topic, raws(10))
    run = job(topic)
    kafka.kill()
    with pytest.raises(SourceUnavailable, match=f"Kafka at {kafka.servers} cannot be reached"):
        run.batch()
    kafka.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            run.batch()
            break
        except SourceUnavailable:
            time.sleep(0.1)
    assert values(run) == texts(10)


def test_a_task_that_stops_in_the_middle_says_where_it_came_to(
    kafka: Broker, job: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "CHUNK_MESSAGES", 7)
    topic = kafka.topic(partitions=2)
    for number in range(2):
        kafka.produce(topic, raws(20), partition=number)
    run = job(topic)
    (part,) = run.enumerator.ranges(run.at, run.enumerator.end(run.at), 1)
    seen = []
    while part["parts"]:
        reading: Any = run.reader.read(part)
        records = next(reading)
        reading.close()
        seen += [(records.origin, int(number)) for number in records.numbers]
        part = records.next
    assert seen == [(f"{topic}/{number}", offset) for number in range(2) for offset in range(20)]


def test_records_that_cannot_be_decoded_have_their_place(kafka: Broker, job: Jobs) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"a", b"\xff", b"b"], partition=1)
    run = job(topic)
    run.batch()
    assert values(run) == ["a", "b"]
    assert [each.place for each in run.rejected] == [{"topic": topic, "partition": 1, "offset": 1}]
    assert run.places == [(f"{topic}/1", 0), (f"{topic}/1", 2)]
