"""Offsets in a consumer group are for those who watch: whatever happens to the group, the stream goes on."""

from __future__ import annotations

import contextlib
import logging
import time

import pytest
from confluent_kafka import KafkaException

from connectors.kafka.messages import Job, source_of
from servers.kafka import Broker


def until_committed(kafka: Broker, run: Job, group: str, place: str) -> int | None:
    """What the group has once commits in the background have had time."""
    wanted, found = run.at[place.split("/")[0]]["0"], None
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and found != wanted:
        with contextlib.suppress(KafkaException):  # the coordinator has just begun
            found = kafka.group_offsets(group).get(place)
        time.sleep(0.1)
    return found


def test_offsets_are_committed_after_each_batch_and_at_the_end(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 10)
    run = Job(source_of(str, servers=kafka.servers, topic=topic, group="g1"), most=4)
    run.batch()
    run.enumerator.committed(run.at)
    assert until_committed(kafka, run, "g1", f"{topic}/0") == 4
    run.batch()
    run.enumerator.committed(run.at)
    run.close()
    assert until_committed(kafka, run, "g1", f"{topic}/0") == 8, "the last commit is on its way when the run ends"


def test_a_member_of_the_group_takes_the_partitions_and_the_stream_goes_on(
    kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 10)
    run = Job(source_of(str, servers=kafka.servers, topic=topic, group="g2"), most=4)
    with kafka.consumer(**{"group.id": "g2"}) as member, caplog.at_level(logging.WARNING):
        member.subscribe([topic])
        deadline = time.monotonic() + 30
        while not member.assignment() and time.monotonic() < deadline:
            member.poll(0.1)
        while run.waiting():
            run.batch()
            run.enumerator.committed(run.at)
            time.sleep(0.2)
        run.enumerator.committed(run.at)
    run.close()
    assert len(run.values) == 10 and run.lost == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "offsets cannot be committed to group 'g2'" in said[0], said


def test_a_group_that_cannot_be_reached_delays_nothing(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 10)
    run = Job(source_of(str, servers=kafka.servers, topic=topic, group="g3"))
    run.batch()
    run.enumerator.committed(run.at)
    kafka.pause()
    try:
        began = time.monotonic()
        for _ in range(20):
            run.enumerator.committed(run.at)
        run.enumerator.close()
        assert time.monotonic() - began < 8, "not even at the end"
    finally:
        kafka.go_on()
    run.close()
