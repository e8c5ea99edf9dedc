"""The smallest published sink that is exactly once: a table in SQLite, and its mark in the same database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from springtide.errors import CheckpointError
from springtide.model.publisher import Guarantee, Mark, Part, PublishedSink, Publisher, Refusal, SinkUnavailable


@dataclass(frozen=True)
class SqliteSink(PublishedSink):
    """Takes the column ``n``; refuses negative numbers. It is away while the file ``away`` is there beside the database.

    ``trouble`` at a batch and a part, once: "away" or "error". It is no function, as tests' classes are pickled by value."""

    file: Path
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    trouble: tuple[int, int, str] = (-1, -1, "")

    @property
    def away(self) -> Path:
        return self.file.with_suffix(".away")

    def publisher(self, identity: str, schema: pa.Schema, stopped: Callable[[], bool]) -> SqlitePublisher:
        return SqlitePublisher(self, identity)

    def stage(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        column = records.column("n")
        refused = [Refusal(i, ValueError(f"{n} is negative")) for i, n in enumerate(column.to_pylist()) if n < 0]
        kept: pa.RecordBatch = records.filter(pc.greater_equal(column, 0))
        return kept.select(["n"]), refused

    def rows(self) -> list[int]:
        return [n for (n,) in _opened(self.file).execute("SELECT n FROM out ORDER BY n")]


class SqlitePublisher(Publisher):
    """A transaction for each part, with the mark."""

    def __init__(self, sink: SqliteSink, identity: str) -> None:
        self._sink, self._identity = sink, identity

    @property
    def place(self) -> str:
        return f"row {self._identity!r} of table mark"

    def prepare(self) -> Mark | None:
        with self._reached() as database:
            database.execute("UPDATE mark SET owner = ? WHERE identity = ?", (id(self), self._identity))
            found = self._mark(database)
        if found is None or self._sink.guarantee is Guarantee.AT_LEAST_ONCE:
            return None
        batch, part, parts, _ = found
        return Mark(batch, part >= parts)

    def begin(self, batch: int) -> None:
        with self._reached() as database:
            database.execute("INSERT INTO mark VALUES (?, ?, 0, 0, ?)", (self._identity, batch, id(self)))

    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        for part in parts:
            self._meet(batch, part.number)
            rows = [(n,) for n in pyarrow.parquet.read_table(part.file).column("n").to_pylist()]
            with self._reached() as database:
                found = self._mark(database)
                if self._sink.guarantee is Guarantee.EXACTLY_ONCE:
                    assert found is not None
                    done, number, _, owner = found
                    if owner != id(self):
                        raise CheckpointError("another driver has taken over")
                    if done == batch and number > part.number:
                        continue
                    marked = (batch, part.number + 1, len(parts), self._identity)
                    database.execute("UPDATE mark SET batch = ?, part = ?, parts = ? WHERE identity = ?", marked)
                database.executemany("INSERT INTO out VALUES (?)", rows)

    def _meet(self, batch: int, part: int) -> None:
        met = self._sink.file.with_suffix(".met")
        if self._sink.trouble[:2] == (batch, part) and not met.exists():
            met.touch()
            if self._sink.trouble[2] == "error":
                raise RuntimeError("struck")
            self._sink.away.touch()

    def _mark(self, database: sqlite3.Connection) -> tuple[int, int, int, int] | None:
        found: tuple[int, int, int, int] | None = database.execute(
            "SELECT batch, part, parts, owner FROM mark WHERE identity = ?", (self._identity,)
        ).fetchone()
        return found

    def _reached(self) -> sqlite3.Connection:
        if self._sink.away.exists():
            raise SinkUnavailable("the database is away")
        return _opened(self._sink.file)


def _opened(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE IF NOT EXISTS out (n INTEGER)")
    database.execute(
        "CREATE TABLE IF NOT EXISTS mark (identity TEXT, batch INTEGER, part INTEGER, parts INTEGER, owner INTEGER)"
    )
    return database
