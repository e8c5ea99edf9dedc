"""The declaration of a PostgreSQL sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from springtide.connectors.postgres import lines, tables
from springtide.connectors.postgres.connection import Connections, Database, errors
from springtide.errors import TopologyError, nearest
from springtide.model.publisher import Guarantee, PublishedSink, Publisher, Refusal


@dataclass(frozen=True)
class PostgresSink(PublishedSink):
    """A table of PostgreSQL, appended to, or with the rows of the same ``keys`` replaced. ``create``: make it if there is none.

    ``refused``: what happens to a record that the database refuses, "dead-letter" or "stop". ``connections``: over how many
    parts of a batch are written at the same time.
    """

    database: Database
    table: tuple[str, ...]
    keys: tuple[str, ...] = ()
    create: bool = False
    refused: str = "dead-letter"
    connections: int = 4
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def check(self, schema: pa.Schema) -> None:
        self.check_schema(schema)
        connections = Connections(self.database, "springtide check", "SELECT 1")
        try:
            with errors(self.describe(), starting=True), connections.lent() as connection:
                if not self.create or tables.exists(connection, self.table):
                    tables.found(connection, self.table, schema, self.keys)
        finally:
            connections.close()

    def check_schema(self, schema: pa.Schema) -> None:
        """TopologyError if no table can hold records of this schema."""
        lines.check(schema)
        for key in self.keys:
            position = schema.get_field_index(key)
            if position < 0:
                raise TopologyError(f"postgres: key {key!r} is no field of the records; {nearest(key, schema.names)}")
            if schema.field(position).nullable:
                raise TopologyError(
                    f"postgres: key {key!r} may be None, and a row without a key is never found again; declare it without None"
                )

    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> Publisher:
        from springtide.connectors.postgres.publisher import PostgresPublisher  # Parquet, which tasks do not need

        return PostgresPublisher(self, identity, schema, stopped)

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        return lines.encoded(records)

    def describe(self) -> str:
        return f"PostgreSQL table {'.'.join(self.table)} at {self.database.describe()}"
