"""Messages as librdkafka gives them, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from springtide.api.kafka import kafka
from springtide.connectors.kafka.clients import Connection
from springtide.connectors.kafka.declared import KafkaSource
from springtide.connectors.kafka.records import Decoded
from springtide.model.source import Rejected

AT_MS = 1_700_000_000_000


@dataclass
class Message:
    """A message with the methods that decoding uses."""

    raw: bytes | None
    at: int = 0
    named: bytes | None = None
    heads: Sequence[tuple[str, bytes | None]] | None = None
    made: int = AT_MS

    def value(self) -> bytes | None:
        return self.raw

    def key(self) -> bytes | None:
        return self.named

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self.heads

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return (1 if self.made >= 0 else 0), self.made


def source_of(value: object, **options: Any) -> KafkaSource:
    """The declaration as ``st.source.kafka`` makes it."""
    options = {"servers": "localhost:9092", "topic": "orders", **options}
    source = kafka(value=value, **options).declared
    assert isinstance(source, KafkaSource)
    return source


def decoded(value: object, raws: Sequence[bytes | Message | None], **options: Any) -> Decoded:
    """What the records of a source declared with ``value`` are."""
    messages = [raw if isinstance(raw, Message) else Message(raw, number) for number, raw in enumerate(raws)]
    return source_of(value, **options).layout.opened(Connection("")).decode(messages)


def reasons(found: Decoded) -> dict[int, str]:
    """By offset, why a record was rejected."""
    return {each.place["offset"]: f"{type(each.error).__name__}: {each.error}" for each in found.rejected}


class Job:
    """A run without Spark: plans batches and reads them, as the driver and the tasks do."""

    def __init__(self, source: KafkaSource, most: int | None = None, tasks: int = 1, clock: Any = None) -> None:
        self.source, self.most, self.tasks = source, most, tasks
        self.memory = source.begin()
        self.enumerator = source.enumerator(self.memory)
        if clock is not None:
            self.enumerator._clock = clock
        self.reader = source.reader(pa.schema([]), None)
        self.at = self.enumerator.first()
        self.values: list[Any] = []
        self.places: list[tuple[str, int]] = []
        self.rejected: list[Rejected] = []
        self.lost = 0

    def batch(self) -> int:
        """Read the next batch; the number of its records."""
        end = self.enumerator.end(self.at)
        until = end if self.most is None else self.enumerator.limited(self.at, end, self.most)
        before = len(self.values)
        for part in self.enumerator.ranges(self.at, until, self.tasks):
            self.read(part)
        self.at = until
        return len(self.values) - before

    def read(self, part: Any) -> None:
        for records in self.reader.read(part):
            self.values += list(records.values)
            numbers = () if records.numbers is None else records.numbers.tolist()
            self.places += [(records.origin, number) for number in numbers]
            self.rejected += records.rejected
            self.lost += records.lost

    def waiting(self) -> int:
        return self.enumerator.count(self.at, self.enumerator.end(self.at))

    def close(self) -> None:
        self.reader.close()
        self.enumerator.close()
