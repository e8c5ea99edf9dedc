"""Writes committed batches into a table: a transaction for each part, with its note in the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from springtide.connectors.postgres import lines, tables
from springtide.connectors.postgres.connection import Connections, errors, needed, reason, refuses
from springtide.connectors.postgres.ledger import Declined, Ledger
from springtide.connectors.postgres.writing import Appending, Upserting, Writing
from springtide.errors import RecordError
from springtide.model.publisher import Guarantee, Mark, Part, Publisher, SinkUnavailable

if TYPE_CHECKING:
    from springtide.connectors.postgres.declared import PostgresSink

log = logging.getLogger("springtide.postgres")

ROWS = 8_192
"""The records that are in memory at once for each connection; also how many are tried together after a refusal."""
LOOK_S = 0.5
"""How often a publication looks whether the run ends."""
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
        self._once = sink.guarantee is Guarantee.EXACTLY_ONCE
        # names of applications have at most 63 bytes
        name = f"springtide {hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._connections = Connections(sink.database, name, SESSION, prepare_threshold=None)
        self._ledger: Ledger | None = None
        self._writing: Writing | None = None

    # The start

    @property
    def place(self) -> str:
        return f"the row of the ledger at {self._sink.database.describe()}" if self._ledger is None else self._ledger.place

    def prepare(self) -> Mark | None:
        sink = self._sink
        with errors(sink.describe(), starting=True), self._connections.lent() as connection:
            if sink.create:
                tables.made(connection, sink.table, self._schema, sink.keys)
            table = tables.found(connection, sink.table, self._schema, sink.keys)
            ledger = Ledger(table, self._identity)
            ledger.make(connection)
            progress = ledger.fence(connection)
            if not self._once:  # its row would not be right any more when the sink is exactly once again
                ledger.forget(connection)
            columns = self._schema.names
            self._writing = Upserting(table, columns, sink.keys) if sink.keys else Appending(table, columns)
            self._ledger = ledger
        return Mark(progress.batch, len(progress.done) >= progress.parts) if progress and self._once else None

    def begin(self, batch: int) -> None:
        assert self._ledger is not None
        with errors(self._sink.describe()), self._connections.lent() as connection:
            self._ledger.begin(connection, batch)

    # A batch

    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        assert self._ledger is not None and self._writing is not None
        with errors(self._sink.describe()), self._afresh():
            with self._connections.lent() as connection:
                done = self._ledger.progress(connection, batch) if self._once else {}
            self._warn_of_others(batch, parts, done)
            waiting = sorted((part for part in parts if part.number not in done), key=lambda part: part.number)
            threads = min(len(waiting), self._sink.connections if self._writing.parallel else 1)
            if threads:
                with ThreadPoolExecutor(threads, "springtide-postgres") as pool:
                    self._wait([pool.submit(self._publish_part, batch, part, len(parts)) for part in waiting])

    @contextlib.contextmanager
    def _afresh(self) -> Iterator[None]:
        """After an error all connections are made anew: the others are probably broken too."""
        try:
            yield
        except BaseException:
            self._connections.close()
            raise

    def _wait(self, futures: Sequence[Future[None]]) -> None:
        """Wait for parts. Raises the first error; gives up if the run ends."""
        waiting = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, LOOK_S, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                if waiting and self._stopped():
                    raise SinkUnavailable("the run ends; the next start writes the rest of the batch")
        except BaseException:
            self._connections.hang_up()  # else other parts would wait for a server that does not answer
            raise
        finally:
            for future in futures:
                future.cancel()

    def _warn_of_others(self, batch: int, parts: Sequence[Part], done: Mapping[int, int]) -> None:
        others = [part.number for part in parts if done.get(part.number, part.crc32) != part.crc32]
        if others:
            log.warning(
                "%s: batch %d was computed again with other records, because a function is not deterministic; parts %s stay as"
                " they were written first", self._sink.describe(), batch, others,
            )  # fmt: skip

    def _publish_part(self, batch: int, part: Part, parts: int) -> None:
        with self._connections.lent() as connection:
            try:
                with self._transaction(connection, batch, part, parts):
                    self._write(connection, (content(chunk) for _, chunk in chunks(part)))
                return
            except needed().Error as error:
                if not refuses(error):
                    raise
                if self._sink.refused == "stop":
                    raise RecordError(f"{self._sink.describe()} refused a record of batch {batch}: {reason(error)}") from None
            self._publish_piecewise(connection, batch, part, parts)

    def _publish_piecewise(self, connection: Any, batch: int, part: Part, parts: int) -> None:
        """Write the records that the database takes, and keep the others, in one transaction."""
        assert self._ledger is not None
        declined: list[Declined] = []
        with self._transaction(connection, batch, part, parts, declined):
            for first, chunk in chunks(part):
                declined += self._declined(connection, first, chunk)
            self._ledger.keep(connection, batch, part.number, declined)
        log.warning(
            "%s: batch %d: %d of %d records of part %d were refused, the first with %r; they are in table %s, with the errors",
            self._sink.describe(), batch, len(declined), part.rows, part.number, declined[0].error if declined else "",
            self._ledger.refused_table,
        )  # fmt: skip

    @contextlib.contextmanager
    def _transaction(
        self, connection: Any, batch: int, part: Part, parts: int, declined: Sequence[Declined] = ()
    ) -> Iterator[None]:
        """The transaction of a part. Its note comes last, because it locks the row of the ledger for all other parts."""
        assert self._ledger is not None
        with connection.transaction():
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else they fail at the commit, when no record can be blamed
            yield
            if self._once:
                self._ledger.note(connection, batch, part, parts, len(declined))

    def _write(self, connection: Any, blocks: Iterable[Any]) -> None:
        assert self._writing is not None
        self._writing.write(connection, blocks)

    def _declined(self, connection: Any, first: int, chunk: pa.Array) -> Iterator[Declined]:
        """Write lines in halves, and return those that are refused alone: k of n are found in about k·log₂(n) attempts."""
        try:
            with connection.transaction():
                self._write(connection, [content(chunk)])
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

    def close(self) -> None:
        self._connections.close()


def chunks(part: Part) -> Iterator[tuple[int, pa.Array]]:
    """The lines of a part, and the index of the first of them."""
    first = 0
    with pyarrow.parquet.ParquetFile(part.file) as file:
        for batch in file.iter_batches(ROWS, columns=[lines.LINE]):
            yield first, batch.column(0)
            first += batch.num_rows


def content(chunk: pa.Array) -> Any:
    """Consecutive lines as one block, without a copy: Arrow has them one after the other."""
    chunk = chunk if pa.types.is_large_binary(chunk.type) else chunk.cast(pa.large_binary())
    _, offsets, data = chunk.buffers()
    starts = memoryview(offsets).cast("q")
    begin, end = starts[chunk.offset], starts[chunk.offset + len(chunk)]
    return memoryview(data)[begin:end] if data is not None else b""
