"""The declaration of a Kafka sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from springtide.connectors.kafka.clients import Connection, needed
from springtide.connectors.kafka.sink.encoding import Encoder, Terms
from springtide.connectors.kafka.sink.layout import OutLayout
from springtide.model.publisher import Guarantee, PublishedSink, Publisher, Refusal

TIMEOUT = "transaction.timeout.ms"
TIMEOUT_MS = 60_000
"""Kafka's default. The brokers abort a transaction that is open for longer, for example of a driver that died."""
PRODUCING = ("queue.", "linger.", "batch.", "compression.", "partitioner", "message.max", "message.send", "retr", TIMEOUT)
"""Settings that begin like this are for producers alone; other clients warn of them."""


@dataclass(frozen=True)
class KafkaSink(PublishedSink):
    """A topic of Kafka. ``partitions``: of the topic if it has to be made; None if it has to exist. ``terms``: what the topic
    takes, which only tasks get."""

    connection: Connection
    topic: str
    layout: OutLayout
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    partitions: int | None = None
    terms: Terms = field(default_factory=Terms)

    @property
    def is_exact(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def transaction_timeout_s(self) -> float:
        return int(str(self.connection.settings.get(TIMEOUT, TIMEOUT_MS))) / 1000

    @property
    def reading(self) -> Connection:
        """How clients other than producers reach the brokers."""
        return Connection(
            self.connection.servers,
            {name: value for name, value in self.connection.settings.items() if not name.startswith(PRODUCING)},
        )

    def describe(self) -> str:
        return f"Kafka topic {self.topic} at {self.connection.servers}"

    def fits(self, where: str, schema: pa.Schema) -> None:
        self.layout.check(where, schema)

    def check(self, schema: pa.Schema) -> None:
        from springtide.connectors.kafka.sink.topic import checked

        needed()
        checked(self)

    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> Publisher:
        from springtide.connectors.kafka.sink.publisher import AtLeastOnce, ExactlyOnce

        return (ExactlyOnce if self.is_exact else AtLeastOnce)(self, identity, stopped)

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        return self._encoder(records.schema).stage(records)

    @cached_property
    def _encoders(self) -> dict[pa.Schema, Encoder]:
        return {}

    def _encoder(self, schema: pa.Schema) -> Encoder:
        """The encoder of a worker process."""
        if schema not in self._encoders:
            self._encoders[schema] = Encoder(self.layout, schema, self.terms)
        return self._encoders[schema]
