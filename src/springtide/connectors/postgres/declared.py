"""The declaration of a PostgreSQL sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from springtide.connectors.postgres import lines
from springtide.connectors.postgres.connection import Database
from springtide.connectors.postgres.publisher import PostgresPublisher
from springtide.errors import TopologyError, nearest
from springtide.model.endpoints import Guarantee
from springtide.model.publisher import PublishedSink, Publisher, Refusal


@dataclass(frozen=True)
class PostgresSink(PublishedSink):
    """A table of PostgreSQL. ``mode``: "append" or "upsert" by ``keys``. ``create``: make the table if there is none.

    ``refused``: what happens to a record that the database refuses, "dead-letter" or "stop". ``connections``: over how many
    parts of a batch are written at the same time.
    """

    database: Database
    table: tuple[str, ...]
    mode: str = "append"
    keys: tuple[str, ...] = ()
    create: bool = False
    refused: str = "dead-letter"
    connections: int = 4
    guarantee = Guarantee.EXACTLY_ONCE

    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> Publisher:
        self.check(schema)
        return PostgresPublisher(self, identity, schema, stopped)

    def check(self, schema: pa.Schema) -> None:
        """TopologyError if records of this schema cannot be written."""
        lines.check(schema)
        for key in self.keys:
            position = schema.get_field_index(key)
            if position < 0:
                raise TopologyError(f"postgres: key {key!r} is no field of the records; {nearest(key, schema.names)}")
            if schema.field(position).nullable:
                raise TopologyError(
                    f"postgres: key {key!r} may be None, and a row without a key is never found again; declare it without None"
                )

    def staged_schema(self, schema: pa.Schema) -> pa.Schema:
        return lines.STAGED

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        return lines.encoded(records)

    def describe(self) -> str:
        return f"PostgreSQL table {'.'.join(self.table)} at {self.database.describe()}"
