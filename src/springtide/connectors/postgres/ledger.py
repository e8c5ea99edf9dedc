"""The ledger of a sink, in the same database as its table: which parts of which batch are written, and by which driver.

A row for each sink has the parts of one batch only, that of the last, because a batch begins after all parts of the one before
are written. So the ledger never grows. The row is changed in the transaction of the part, as its last statement: a part and its
note are there together or not at all, and a driver that another one has replaced changes no row, and rolls back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from springtide.connectors.postgres.connection import needed
from springtide.connectors.postgres.tables import Table
from springtide.errors import CheckpointError, OptionError
from springtide.model.publisher import Part

LEDGER, REFUSED = "springtide_ledger", "springtide_refused"
"""The tables, in the schema of the sink's own."""
FENCE_S = 10
"""Limits the wait for a transaction of an earlier driver, whose connections are ended first."""

_LEDGER = """
CREATE TABLE IF NOT EXISTS {} (
  sink text PRIMARY KEY, target text NOT NULL, epoch bigint NOT NULL, batch bigint NOT NULL, parts integer NOT NULL DEFAULT 0,
  done jsonb NOT NULL DEFAULT '{{}}', written bigint NOT NULL DEFAULT 0, refused bigint NOT NULL DEFAULT 0,
  at timestamptz NOT NULL DEFAULT now()
)"""
"""``parts``: the number of parts of the batch. ``done``: those that are written, with the checksums of their files."""
_REFUSED = """
CREATE TABLE IF NOT EXISTS {} (
  sink text NOT NULL, target text NOT NULL, batch bigint NOT NULL, part integer NOT NULL, index bigint NOT NULL,
  error text NOT NULL, record jsonb NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, batch, part, index)
)"""
_FENCE = "UPDATE {} SET epoch = epoch + 1, at = now() WHERE sink = %s RETURNING epoch, batch, parts, done"
_BEGIN = """
INSERT INTO {} AS l (sink, target, epoch, batch) VALUES (%(sink)s, %(target)s, 1, %(batch)s)
ON CONFLICT (sink) DO UPDATE SET epoch = l.epoch + 1, batch = %(batch)s, parts = 0, done = '{{}}', at = now() RETURNING epoch"""
_NOTE = """
UPDATE {} SET done = CASE WHEN batch = %(batch)s THEN done ELSE '{{}}' END
    || jsonb_build_object(%(part)s::text, %(crc32)s::bigint),
  batch = %(batch)s, parts = %(parts)s, written = written + %(written)s, refused = refused + %(refused)s, at = now()
WHERE sink = %(sink)s AND epoch = %(epoch)s AND batch <= %(batch)s AND NOT (batch = %(batch)s AND done ? %(part)s::text)"""
_DECLINE = """
INSERT INTO {} (sink, target, batch, part, index, error, record) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (sink, batch, part, index) DO NOTHING"""
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


@dataclass(frozen=True)
class Progress:
    """The last batch of a sink, the number of its parts, and the checksums of those that are written, by their numbers."""

    batch: int
    parts: int
    done: Mapping[int, int]

    @classmethod
    def of(cls, batch: int, parts: int, done: Mapping[str, int]) -> Progress:
        return cls(batch, parts, {int(number): checksum for number, checksum in done.items()})


class Ledger:
    """The ledger of one sink, for the driver that has called ``fence`` or ``begin`` last."""

    def __init__(self, table: Table, sink: str) -> None:
        self._table, self._sink, self._epoch = table, sink, 0
        sql = needed("psycopg.sql")
        self._ledger, self._refused = (sql.Identifier(table.schema, name) for name in (LEDGER, REFUSED))

    @property
    def refused_table(self) -> str:
        return f"{self._table.schema}.{REFUSED}"

    @property
    def place(self) -> str:
        return f"the row {self._sink!r} of table {self._table.schema}.{LEDGER}"

    def make(self, connection: Any) -> None:
        """Make the tables, unless they exist."""
        missing = [
            self._sql(statement, name)
            for statement, name in ((_LEDGER, self._ledger), (_REFUSED, self._refused))
            if connection.execute("SELECT to_regclass(%s)", [name.as_string(connection)]).fetchone()[0] is None
        ]
        try:
            with connection.transaction():
                # two sinks that begin at once: CREATE … IF NOT EXISTS fails in the second
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [LEDGER])
                for statement in missing:
                    connection.execute(statement)
        except needed().errors.InsufficientPrivilege:
            text = "; ".join(" ".join(each.as_string(connection).split()) for each in missing)
            raise OptionError(
                f"postgres: user {connection.info.user!r} may not make the ledger in schema {self._table.schema!r}; have its"
                f" owner run: {text}; and grant SELECT, INSERT, UPDATE and DELETE on both"
            ) from None

    def fence(self, connection: Any) -> Progress | None:
        """Take the next epoch, so that earlier drivers can commit nothing any more, and end their connections. None if the
        sink has no row yet."""
        connection.execute(_END_OTHERS)  # a driver that hangs in a transaction would hold its locks for ever
        row = self._changed(connection, self._sql(_FENCE, self._ledger), [self._sink])
        connection.execute(_END_OTHERS)
        if row is None:
            return None
        self._epoch, *progress = row
        return Progress.of(*progress)

    def begin(self, connection: Any, batch: int) -> None:
        """Make the row: everything up to a batch is written."""
        values = {"sink": self._sink, "target": str(self._table), "batch": batch}
        self._epoch = self._changed(connection, self._sql(_BEGIN, self._ledger), values)[0]

    def forget(self, connection: Any) -> None:
        """Remove the row."""
        self._changed(connection, self._sql("DELETE FROM {} WHERE sink = %s RETURNING sink", self._ledger), [self._sink])

    def _changed(self, connection: Any, statement: Any, values: Any) -> Any:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{FENCE_S}s'")
                return connection.execute(statement, values).fetchone()
        except needed().errors.InsufficientPrivilege:
            names = f"{self._ledger.as_string(connection)}, {self._refused.as_string(connection)}"
            raise OptionError(
                f"postgres: user {connection.info.user!r} may not write the ledger; have its owner run: GRANT SELECT, INSERT,"
                f" UPDATE, DELETE ON {names} TO that user"
            ) from None

    def progress(self, connection: Any, batch: int) -> Mapping[int, int]:
        """The parts of a batch that are written, with their checksums."""
        statement = self._sql("SELECT epoch, batch, parts, done FROM {} WHERE sink = %s", self._ledger)
        row = connection.execute(statement, [self._sink]).fetchone()
        if row is None or row[0] != self._epoch:
            raise self._fenced()
        found = Progress.of(*row[1:])
        if found.batch > batch:
            raise CheckpointError(
                f"table {self._table} has batches of this checkpoint up to {found.batch}, and the checkpoint goes on with"
                f" {batch}: it is older than its output. Put the newer checkpoint back, or start a new one, which writes all"
                " records again"
            )
        return found.done if found.batch == batch else {}

    def note(self, connection: Any, batch: int, part: Part, parts: int, refused: int) -> None:
        """Note a part, in the transaction that wrote it. ``parts``: of the whole batch."""
        values = {
            "sink": self._sink, "epoch": self._epoch, "batch": batch, "part": part.number, "crc32": part.crc32, "parts": parts,
            "written": part.rows - refused, "refused": refused,
        }  # fmt: skip
        if connection.execute(self._sql(_NOTE, self._ledger), values).rowcount != 1:
            raise self._fenced()

    def keep(self, connection: Any, batch: int, part: int, declined: Sequence[Declined]) -> None:
        """Keep the records that the database refused, in the transaction of their part."""
        jsonb = needed("psycopg.types.json").Jsonb
        with connection.cursor() as cursor:
            rows = [
                (self._sink, str(self._table), batch, part, each.index, each.error, jsonb(each.record)) for each in declined
            ]
            cursor.executemany(self._sql(_DECLINE, self._refused), rows)

    def _sql(self, statement: str, table: Any) -> Any:
        return needed("psycopg.sql").SQL(statement).format(table)

    def _fenced(self) -> CheckpointError:
        return CheckpointError(
            f"table {self._table}: another driver writes for this checkpoint now, or its row in the ledger was changed; nothing"
            " of this driver is written any more. End one of them"
        )
