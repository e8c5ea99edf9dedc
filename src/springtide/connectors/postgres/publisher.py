"""Writes committed batches into a table: a transaction for each part, with its note in the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from springtide.connectors.postgres import lines, tables
from springtide.connectors.postgres.connection import Connections, needed, reason, refuses, rejects_login, waits
from springtide.connectors.postgres.ledger import Declined, Ledger
from springtide.connectors.postgres.writing import Appending, Upserting, Writing
from springtide.errors import OptionError, RecordError, RunError, SpringtideError
from springtide.model.publisher import Part, Publisher, SinkUnavailable

if TYPE_CHECKING:
    from springtide.connectors.postgres.declared import PostgresSink

log = logging.getLogger("springtide.postgres")

ROWS = 8_192
"""The records that are in memory at once for each connection; also how many are tried together after a refusal."""
LOOK_S = 0.5
GRACE_S = 10.0
"""When the run ends, a publication may go on as long as it makes progress; one that has made none for so long is given up."""
SESSION = """
SELECT set_config('statement_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '60s', false),
       set_config('DateStyle', 'ISO, YMD', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                  ELSE current_setting('synchronous_commit') END, false)"""
"""A large part takes its time; a driver that hangs loses its locks; a commit that a crash of the server takes back would lose
records, as the checkpoint already has them as written."""


class PostgresPublisher(Publisher):
    """The driver's side of a sink. Parts are written over several connections at once, each by a thread."""

    def __init__(self, sink: PostgresSink, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> None:
        self._sink, self._identity, self._schema, self._stopped = sink, identity, schema, stopped
        # names of applications have at most 63 bytes
        self._name = f"springtide {hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._connections = Connections(sink.database, self._name, SESSION, prepare_threshold=None)
        self._ledger: Ledger | None = None
        self._writing: Writing | None = None
        self._steps = 0  # grows with each block that is sent, as a sign of progress

    # The start

    def prepare(self) -> None:
        with self._errors(starting=True), self._connections.lent() as connection:
            sink, upserts = self._sink, self._sink.mode == "upsert"
            if sink.create:
                tables.made(connection, sink.table, self._schema, sink.keys)
            table = tables.found(connection, sink.table, self._schema, sink.keys, upserts)
            ledger = Ledger(table, self._identity)
            ledger.make(connection)
            ledger.fence(connection)
            columns = self._schema.names
            self._writing = Upserting(table, columns, sink.keys) if upserts else Appending(table, columns)
            self._ledger = ledger

    # A batch

    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        with self._errors():
            if not parts:
                return
            if self._ledger is None:  # the database was away when the run began
                self.prepare()
            assert self._ledger is not None and self._writing is not None
            with self._connections.lent() as connection:
                done = self._ledger.done(connection, batch)
            waiting = sorted((part for part in parts if part.number not in done), key=lambda part: part.number)
            threads = min(len(waiting), self._sink.connections if self._writing.parallel else 1)
            if threads:
                self._publish_all(batch, waiting, threads)

    def _publish_all(self, batch: int, parts: Sequence[Part], threads: int) -> None:
        with ThreadPoolExecutor(threads, "springtide-postgres") as pool:
            futures = [pool.submit(self._publish_part, batch, part) for part in parts]
            try:
                self._wait(futures)
            finally:
                for future in futures:
                    future.cancel()

    def _wait(self, futures: Sequence[Future[None]]) -> None:
        """Wait for parts. Raises the first error; gives up if the run ends and the server does not answer."""
        waiting, steps, since = set(futures), self._steps, time.monotonic()
        while waiting:
            ended, waiting = wait(waiting, LOOK_S, FIRST_COMPLETED)
            for future in ended:
                future.result()
            if ended or self._steps != steps or not self._stopped():
                steps, since = self._steps, time.monotonic()
            elif time.monotonic() - since > GRACE_S:
                self._connections.hang_up()
                raise SinkUnavailable(
                    "the server does not answer, and the run ends; the next start writes the rest of the batch"
                )

    def _publish_part(self, batch: int, part: Part) -> None:
        assert self._writing is not None and self._ledger is not None
        with self._connections.lent() as connection:
            try:
                with self._transaction(connection):
                    self._writing.write(connection, self._counted(blocks(part)))
                    self._ledger.note(connection, batch, part.number, part.rows)
            except needed().Error as error:
                if not refuses(error):
                    raise
                if self._sink.refused == "stop":
                    raise RecordError(f"{self._sink.describe()} refused a record of batch {batch}: {reason(error)}") from None
            else:
                return
            self._publish_piecewise(connection, batch, part)

    def _publish_piecewise(self, connection: Any, batch: int, part: Part) -> None:
        """Write the records that the database takes, and keep the others, in one transaction."""
        assert self._ledger is not None
        declined: list[Declined] = []
        with self._transaction(connection):
            for first, chunk in chunks(part):
                declined += self._declined(connection, first, chunk)
            self._ledger.note(connection, batch, part.number, part.rows - len(declined), declined)
        log.warning(
            "%s: batch %d: %d of %d records of part %d were refused, the first with %r; they are in table %s, with the errors",
            self._sink.describe(), batch, len(declined), part.rows, part.number, declined[0].error if declined else "",
            self._ledger.refused_table,
        )  # fmt: skip

    def _declined(self, connection: Any, first: int, chunk: pa.Array) -> Iterator[Declined]:
        """Write lines in halves, and return those that are refused alone: k of n are found in about k·log₂(n) attempts."""
        assert self._writing is not None
        try:
            with connection.transaction():
                self._writing.write(connection, self._counted([content(chunk)]))
        except needed().Error as error:
            if not refuses(error):
                raise
            if len(chunk) == 1:
                record = dict(zip(self._schema.names, lines.values(chunk[0].as_py()), strict=True))
                yield Declined(first, f"{reason(error)} (SQLSTATE {error.sqlstate})", record)
                return
            half = len(chunk) // 2
            yield from self._declined(connection, first, chunk.slice(0, half))
            yield from self._declined(connection, first + half, chunk.slice(half))

    def _counted(self, found: Iterator[Any] | list[Any]) -> Iterator[Any]:
        for block in found:
            self._steps += 1
            yield block

    # Connections

    @contextlib.contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        with connection.transaction():
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else they fail at the commit, when no record can be blamed
            yield

    @contextlib.contextmanager
    def _errors(self, starting: bool = False) -> Iterator[None]:
        """Errors of psycopg as Springtide's."""
        try:
            yield
        except (SpringtideError, SinkUnavailable):
            raise
        except needed().Error as error:
            text = f"{self._sink.describe()}: {reason(error)}"
            if starting and rejects_login(error):
                raise OptionError(f"{text}; correct the URL or password=") from None
            if waits(error):
                raise SinkUnavailable(text) from None
            if starting:
                raise OptionError(f"{text}; correct the table, or the rights of the user") from None
            raise RunError(
                f"{text}; the batch is committed, and the next start writes the rest of it. Mend the table"
            ) from None

    def close(self) -> None:
        self._connections.close()


def chunks(part: Part) -> Iterator[tuple[int, pa.Array]]:
    """The lines of a part, and the index of the first of them."""
    first = 0
    with pyarrow.parquet.ParquetFile(part.file) as file:
        for batch in file.iter_batches(ROWS, columns=[lines.LINE]):
            yield first, batch.column(0)
            first += batch.num_rows


def blocks(part: Part) -> Iterator[Any]:
    """The same as bytes for COPY."""
    return (content(chunk) for _, chunk in chunks(part))


def content(chunk: pa.Array) -> Any:
    """Consecutive lines as one block, without a copy: Arrow has them one after the other."""
    chunk = chunk if pa.types.is_large_binary(chunk.type) else chunk.cast(pa.large_binary())
    _, offsets, data = chunk.buffers()
    starts = memoryview(offsets).cast("q")
    begin, end = starts[chunk.offset], starts[chunk.offset + len(chunk)]
    return memoryview(data)[begin:end] if data is not None else b""
