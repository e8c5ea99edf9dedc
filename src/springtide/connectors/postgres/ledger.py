"""The ledger of a sink, in the same database as its table: which parts of which batch are written, and by which driver.

A row for each sink has the parts of one batch only, that of the last, because a batch begins after all parts of the one before
are written. So the ledger never grows. The row is changed in the transaction of the part, as its last statement: a part and its
note are there together or not at all, and a driver that another one has replaced changes no row, and rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from springtide.connectors.postgres.connection import needed
from springtide.connectors.postgres.tables import Table
from springtide.errors import CheckpointError, OptionError

LEDGER, REFUSED = "springtide_ledger", "springtide_refused"
"""The tables, in the schema of the sink's own."""
FENCE_S = 10
"""Limits the wait for a transaction of an earlier driver, whose connections are ended first."""

_LEDGER = """
CREATE TABLE IF NOT EXISTS {} (
  sink text PRIMARY KEY, target text NOT NULL, epoch bigint NOT NULL, batch bigint NOT NULL DEFAULT -1,
  parts integer[] NOT NULL DEFAULT '{{}}', written bigint NOT NULL DEFAULT 0, refused bigint NOT NULL DEFAULT 0,
  at timestamptz NOT NULL DEFAULT now()
)"""
_REFUSED = """
CREATE TABLE IF NOT EXISTS {} (
  sink text NOT NULL, target text NOT NULL, batch bigint NOT NULL, part integer NOT NULL, index bigint NOT NULL,
  error text NOT NULL, record jsonb NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, batch, part, index)
)"""
_FENCE = """
INSERT INTO {} AS l (sink, target, epoch) VALUES (%(sink)s, %(target)s, 1)
ON CONFLICT (sink) DO UPDATE SET epoch = l.epoch + 1, at = now() RETURNING epoch"""
_NOTE = """
UPDATE {} SET parts = CASE WHEN batch = %(batch)s THEN parts || %(part)s::integer ELSE ARRAY[%(part)s::integer] END,
  batch = %(batch)s, written = written + %(written)s, refused = refused + %(refused)s, at = now()
WHERE sink = %(sink)s AND epoch = %(epoch)s AND batch <= %(batch)s AND NOT (batch = %(batch)s AND %(part)s = ANY(parts))"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = current_setting('application_name') AND usename = current_user AND datname = current_database()
  AND pid <> pg_backend_pid()"""


@dataclass(frozen=True)
class Declined:
    """A record that the database refused: its index in the part, the error, and its columns as text."""

    index: int
    error: str
    record: dict[str, str | None]


class Ledger:
    """The ledger of one sink, for the driver that has called ``fence`` last."""

    def __init__(self, table: Table, sink: str) -> None:
        sql = needed("psycopg.sql")
        self._table, self._sink, self._epoch = table, sink, 0
        self._ledger, self._refused = (sql.Identifier(table.schema, name) for name in (LEDGER, REFUSED))
        self._note = sql.SQL(_NOTE).format(self._ledger)

    @property
    def refused_table(self) -> str:
        return f"{self._table.schema}.{REFUSED}"

    def make(self, connection: Any) -> None:
        """Make the tables, unless they exist."""
        psycopg, sql = needed(), needed("psycopg.sql")
        missing = [
            sql.SQL(statement).format(name)
            for statement, name in ((_LEDGER, self._ledger), (_REFUSED, self._refused))
            if connection.execute("SELECT to_regclass(%s)", [name.as_string(connection)]).fetchone()[0] is None
        ]
        try:
            with connection.transaction():
                # two sinks that begin at once: CREATE … IF NOT EXISTS fails in the second
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [LEDGER])
                for statement in missing:
                    connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            text = "; ".join(" ".join(each.as_string(connection).split()) for each in missing)
            raise OptionError(
                f"postgres: user {connection.info.user!r} may not make the ledger in schema {self._table.schema!r}; have its"
                f" owner run: {text}; and grant SELECT, INSERT and UPDATE on both"
            ) from None

    def fence(self, connection: Any) -> None:
        """Take the next epoch, so that earlier drivers can commit nothing any more, and end their connections."""
        psycopg, sql = needed(), needed("psycopg.sql")
        connection.execute(_END_OTHERS)  # a driver that hangs in a transaction would hold its locks for ever
        fence = sql.SQL(_FENCE).format(self._ledger)
        with connection.transaction():
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(f"{FENCE_S}s"))
            try:
                row = connection.execute(fence, {"sink": self._sink, "target": str(self._table)}).fetchone()
            except psycopg.errors.InsufficientPrivilege:
                raise OptionError(
                    f"postgres: user {connection.info.user!r} may not write the ledger; have its owner run: GRANT SELECT,"
                    f" INSERT, UPDATE ON {self._ledger.as_string(connection)}, {self._refused.as_string(connection)} TO that user"
                ) from None
            self._epoch = row[0]
        connection.execute(_END_OTHERS)

    def done(self, connection: Any, batch: int) -> frozenset[int]:
        """The parts of a batch that are written. CheckpointError if later batches are."""
        sql = needed("psycopg.sql")
        row = connection.execute(
            sql.SQL("SELECT epoch, batch, parts FROM {} WHERE sink = %s").format(self._ledger), [self._sink]
        ).fetchone()
        if row is None or row[0] != self._epoch:
            raise self._fenced()
        if row[1] > batch:
            raise CheckpointError(
                f"table {self._table} has batches of this checkpoint up to {row[1]}, and the checkpoint goes on with {batch}:"
                " it is older than its output. Put the newer checkpoint back, or start a new one, which writes all records again"
            )
        return frozenset(row[2]) if row[1] == batch else frozenset()

    def note(self, connection: Any, batch: int, part: int, written: int, declined: Sequence[Declined] = ()) -> None:
        """Note a part, with its refused records, in the transaction that wrote it."""
        if declined:
            self._keep(connection, batch, part, declined)
        values = {"batch": batch, "part": part, "written": written, "refused": len(declined)}
        changed = connection.execute(self._note, {**values, "sink": self._sink, "epoch": self._epoch}).rowcount
        if changed != 1:
            raise self._fenced()

    def _keep(self, connection: Any, batch: int, part: int, declined: Sequence[Declined]) -> None:
        sql, jsonb = needed("psycopg.sql"), needed("psycopg.types.json").Jsonb
        insert = "INSERT INTO {} (sink, target, batch, part, index, error, record) VALUES (%s, %s, %s, %s, %s, %s, %s)"
        with connection.cursor() as cursor:
            rows = [
                (self._sink, str(self._table), batch, part, each.index, each.error, jsonb(each.record)) for each in declined
            ]
            cursor.executemany(sql.SQL(insert).format(self._refused), rows)

    def _fenced(self) -> CheckpointError:
        return CheckpointError(
            f"table {self._table}: another driver writes for this checkpoint now, or its row in the ledger was changed; nothing"
            " of this driver is written any more. End one of them"
        )
