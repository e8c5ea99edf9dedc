"""The declaration of a Kafka source."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from springtide.connectors.kafka.clients import Connection, needed
from springtide.connectors.kafka.cluster import Cluster, Place
from springtide.connectors.kafka.commits import GroupOffsets
from springtide.connectors.kafka.enumerator import KafkaEnumerator
from springtide.connectors.kafka.positions import ID
from springtide.connectors.kafka.reader import KafkaReader
from springtide.connectors.kafka.records import Layout
from springtide.errors import CheckpointError, OptionError, nearest
from springtide.model.source import Memory, Position, Source, SourceUnavailable

Start = str | datetime.datetime | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class KafkaSource(Source):
    """Topics of Kafka, by name or by a pattern that begins with ``^``.

    ``start``: "earliest", "latest", a time, or offsets by topic and partition. ``until="now"`` ends the stream where the topics
    end when the checkpoint begins. ``layout`` says how records are decoded. ``group`` gets the offsets of each committed batch.
    """

    connection: Connection
    topics: tuple[str, ...]
    layout: Layout
    start: Start = "earliest"
    until: str | None = None
    on_data_loss: str = "stop"
    isolation: str = "read_committed"
    group: str | None = None
    max_records: int | None = None

    @property
    def most(self) -> int | None:
        return self.max_records

    @property
    def lenient(self) -> bool:
        return self.on_data_loss == "go on"

    def describe(self) -> str:
        return f"Kafka topic {', '.join(self.topics)} at {self.connection.servers}"

    def check(self) -> None:
        cluster = self.cluster()
        try:
            self._check(cluster)
        except SourceUnavailable as error:
            if cluster.faults.hopeless():
                raise OptionError(f"{self.describe()}: {cluster.faults}; correct servers or config=") from error
            raise
        finally:
            cluster.close()

    def _check(self, cluster: Cluster) -> None:
        self.layout.check(self.connection)
        described = cluster.described(cluster.names())
        missing = [topic for topic in self.topics if not topic.startswith("^") and topic not in described]
        if missing:
            known = [name for name in cluster.listed().topics if not name.startswith("__")]
            raise OptionError(
                f"kafka: there is no topic {missing[0]!r} at {self.connection.servers}; {nearest(missing[0], known)}"
            )
        if described and (forbidden := cluster.forbidden(described)):
            raise OptionError(
                f"kafka: topic {forbidden[0]!r} may not be read by this user; allow READ on it, or give another user in config="
            )
        if isinstance(self.start, Mapping):
            for topic, offsets in self.start.items():
                numbers = described.get(topic, ("", []))[1]
                wrong = sorted(set(offsets) - set(numbers))
                if wrong:
                    raise OptionError(f"kafka: start= names partition {wrong[0]} of topic {topic!r}, which has {numbers}")

    def begin(self) -> Memory:
        cluster = self.cluster()
        try:
            described = cluster.described(cluster.names())
            memory: dict[str, Any] = {"first": self._first(cluster, described)}
            if self.until is not None:
                memory["until"] = _position(described, cluster.offsets(_places(described), "latest"))
            return memory
        finally:
            cluster.close()

    def _first(self, cluster: Cluster, described: Mapping[str, tuple[str, list[int]]]) -> Position:
        places = _places(described)
        if isinstance(self.start, str):
            return _position(described, cluster.offsets(places, self.start))
        if isinstance(self.start, datetime.datetime):
            found = cluster.offsets(places, int(self.start.timestamp() * 1000))
            ends = cluster.offsets(places, "latest")
            return _position(described, {place: found[place] if found[place] >= 0 else ends[place] for place in places})
        lows = cluster.offsets(places, "earliest")
        given = {(topic, number): offset for topic, offsets in self.start.items() for number, offset in offsets.items()}
        ends = cluster.offsets([place for place in places if place in given], "latest")
        for (topic, number), end in ends.items():
            if given[topic, number] > end:
                raise OptionError(
                    f"kafka: start= names offset {given[topic, number]} of {topic}/{number}, which ends at {end}; give at most"
                    f" {end}"
                )
        return _position(described, {place: given.get(place, lows[place]) for place in places})

    def check_resumed(self, memory: Memory, positions: Sequence[Position]) -> None:
        read, cluster = positions[-1] if positions else memory["first"], self.cluster()
        if read and not any(map(cluster.wants, read)):
            raise CheckpointError(
                f"kafka: the checkpoint has read {', '.join(read)}, of which the source names nothing any more; name the topics"
                " as before, or begin another checkpoint"
            )
        if self.until is not None and "until" not in memory:
            raise OptionError(
                f"kafka: until={self.until!r}, but the checkpoint began without it; leave it out and end the run with"
                " available_now, or begin another checkpoint"
            )

    def enumerator(self, memory: Memory) -> KafkaEnumerator:
        if self.until is None:  # a checkpoint of a backfill goes on behind its end
            memory = {name: value for name, value in memory.items() if name != "until"}
        group = GroupOffsets(self.connection, self.group) if self.group else None
        return KafkaEnumerator(self.cluster(), memory, self.lenient, group)

    def reader(self, schema: pa.Schema, record: type | None) -> KafkaReader:
        return KafkaReader(self.connection, self.layout, self.isolation, self.lenient, self.group)

    def cluster(self) -> Cluster:
        needed()
        return Cluster(self.connection, self.topics, self.isolation == "read_committed")


def _places(described: Mapping[str, tuple[str, list[int]]]) -> list[Place]:
    return [(name, number) for name, (_, numbers) in described.items() for number in numbers]


def _position(described: Mapping[str, tuple[str, list[int]]], offsets: Mapping[Place, int]) -> Position:
    return {
        name: {ID: identity, **{str(n): offsets[name, n] for n in numbers}} for name, (identity, numbers) in described.items()
    }
