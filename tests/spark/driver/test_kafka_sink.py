"""From Kafka to Kafka on real Spark: exact output, dead letters, a broker that is away, and secrets that are nowhere."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from servers.kafka import PASSWORD, USER, Broker
from springtide.errors import OptionError

COUNT = 3_000
LARGE = 11


@dataclass(frozen=True)
class Trip:
    id: int
    route: str


def padded(trip: Trip) -> Trip:
    return Trip(trip.id, "x" * 3_000) if trip.id < LARGE else trip


def feed(kafka: Broker, topic: str) -> None:
    kafka.produce(topic, [json.dumps({"id": i, "route": f"r{i % 9}"}).encode() for i in range(COUNT)])


def job(kafka: Broker, inward: str, outward: str, servers: str | None = None, **options: Any) -> Any:
    servers = servers or kafka.servers
    read = {name: value for name, value in options.items() if name == "config"}
    trips = st.source.kafka(servers, inward, value=Trip, until="now", max_records=COUNT // 4, **read)
    return trips.map(padded).to(st.sink.kafka(servers, outward, key="route", **options), name="out").named("trips")


def run(topology: Any, spark: Any, folder: Path, **options: Any) -> st.Result:
    return st.run(topology, spark=spark, max_slots=2, checkpoint=folder / "checkpoint", runs=folder / "runs", **options)


def ids(kafka: Broker, topic: str) -> list[int]:
    return sorted(json.loads(message.value())["id"] for message in kafka.messages(topic))


def test_records_arrive_once_and_large_ones_are_dead_letters(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    inward, outward = kafka.topic(partitions=2), kafka.topic(partitions=2, **{"max.message.bytes": "2000"})
    feed(kafka, inward)
    result = run(job(kafka, inward, outward), spark, tmp_path)
    assert ids(kafka, outward) == list(range(LARGE, COUNT))
    assert result.summary["rows_failed"] == LARGE
    letters = [
        json.loads(line)
        for file in (tmp_path / "checkpoint" / "springtide" / "dead").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted(json.loads(letter["record"])["id"] for letter in letters) == list(range(LARGE))
    assert all("and the topic takes 2,000" in letter["error"] and letter["operator"] == "out" for letter in letters)
    again = run(job(kafka, inward, outward), spark, tmp_path)
    assert again.summary["rows_out"] == 0 and len(ids(kafka, outward)) == COUNT - LARGE


def test_secrets_are_nowhere_in_the_folders_of_a_run(
    spark: Any, kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inward, outward = kafka.topic(), kafka.topic()
    feed(kafka, inward)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    config = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": st.secret.env("KAFKA_PASSWORD"),
    }  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        topology = job(kafka, inward, outward, kafka.sasl_servers, config=config)
        # tasks read the source with its settings, for which the test's session has no environment
        sink_only = st.source.generate(made, rate=1e6, limit=COUNT).to(topology.sinks[0].sink, name="out").named("trips")
        run(sink_only, spark, tmp_path)
    assert ids(kafka, outward) == list(range(COUNT))
    assert PASSWORD not in caplog.text
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if PASSWORD.encode() in file.read_bytes()]
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong-horse")
    with pytest.raises(OptionError, match="correct servers or config=") as caught:
        run(sink_only, spark, tmp_path / "other")
    assert "wrong-horse" not in str(caught.value)
    assert not (tmp_path / "other").exists()


def made(draw: st.Draw) -> Trip:
    return Trip(draw.index, "r")


def test_a_topic_that_is_missing_is_refused_before_anything_is_made(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    inward = kafka.topic()
    with pytest.raises(OptionError, match=r"there is no topic 'nowhere' at .*\. Or give partitions=, and it is made"):
        run(job(kafka, inward, "nowhere"), spark, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_is_away_in_the_middle_is_waited_for(
    spark: Any, kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outward = kafka.topic(partitions=2)
    topology = st.source.generate(made, rate=150, limit=COUNT).to(st.sink.kafka(kafka.servers, outward), name="out").named("t")

    def said() -> list[str]:
        return [text for text in (record.getMessage() for record in [*caplog.records]) if "sink 'out'" in text]

    threading.Thread(target=away, args=(kafka, outward, said), daemon=True).start()
    with caplog.at_level(logging.WARNING, "springtide.spark"):
        result = run(topology, spark, tmp_path)
    assert len(said()) == 2 and "cannot be reached" in said()[0] and said()[1] == "sink 'out' can be reached again"
    assert ids(kafka, outward) == list(range(COUNT))
    assert result.summary["restarts"] == 0


def away(kafka: Broker, topic: str, noticed: Callable[[], object]) -> None:
    """Kill the broker once something is published, and start it again once the run has noticed."""
    while sum(end for _, end in kafka.offsets(topic).values()) < 10:
        time.sleep(0.1)
    kafka.kill()
    until = time.monotonic() + 90
    while not noticed() and time.monotonic() < until:
        time.sleep(0.1)
    kafka.start()
