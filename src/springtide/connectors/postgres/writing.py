"""How lines get into a table: appended, or with the rows of their keys replaced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from springtide.connectors.postgres.connection import needed
from springtide.connectors.postgres.tables import Table, listed

INCOMING, ORDER = "springtide_incoming", "springtide_order"
"""A temporary table of each connection, and its column with the order of the records."""


class Writing(ABC):
    """Writes lines into a table, in the transaction of its caller."""

    parallel: ClassVar[bool]
    """Whether parts may be written at the same time."""

    @abstractmethod
    def write(self, connection: Any, blocks: Iterable[Any]) -> None: ...


class Appending(Writing):
    """COPY into the table."""

    parallel = True

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._copy = _copy(table.full, columns)

    def write(self, connection: Any, blocks: Iterable[Any]) -> None:
        _send(connection, self._copy, blocks)


class Upserting(Writing):
    """COPY into a temporary table, and INSERT … ON CONFLICT from there. Of several records of a key the last one stays.

    Parts are written one after the other in the order of their numbers, so that the last record of a batch stays too.
    """

    parallel = False

    def __init__(self, table: Table, columns: Sequence[str], keys: Sequence[str]) -> None:
        sql = needed("psycopg.sql")
        incoming = sql.Identifier("pg_temp", INCOMING)
        self._make = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier(INCOMING), listed(columns), table.full
        )
        self._order = sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint GENERATED ALWAYS AS IDENTITY").format(
            incoming, sql.Identifier(ORDER)
        )
        self._copy, self._clear = _copy(incoming, columns), sql.SQL("DELETE FROM {}").format(incoming)
        others = [sql.Identifier(name) for name in columns if name not in keys]
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
        # in the order of the keys, so that two writers of a table wait for each other and never block each other
        self._merge = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {incoming} ORDER BY {keys}, {order}"
            " DESC ON CONFLICT ({keys}) {action}"
        ).format(
            table=table.full, columns=listed(columns), keys=listed(keys), incoming=incoming, order=sql.Identifier(ORDER),
            action=sql.SQL("DO UPDATE SET {}").format(changes) if others else sql.SQL("DO NOTHING"),
        )  # fmt: skip

    def write(self, connection: Any, blocks: Iterable[Any]) -> None:
        if connection.execute("SELECT to_regclass(%s)", [f"pg_temp.{INCOMING}"]).fetchone()[0] is None:
            connection.execute(self._make)
            connection.execute(self._order)
        else:
            connection.execute(self._clear)
        _send(connection, self._copy, blocks)
        connection.execute(self._merge)


def _copy(table: Any, columns: Sequence[str]) -> Any:
    return needed("psycopg.sql").SQL("COPY {} ({}) FROM STDIN").format(table, listed(columns))


def _send(connection: Any, statement: Any, blocks: Iterable[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)
