"""Lookups: rows of a query by key, several queries at once over each connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from springtide.connectors.postgres.connection import Connections, Database, needed, reason, refuses, rejects_login, waits
from springtide.errors import OptionError, nearest
from springtide.model.lookup import Key, KeyRefused, Lookup, LookupUnavailable, Row, Rows

QUERY_KEYS = 1_000
"""Limits the keys of a query. More of them are sent one after the other without waiting for answers."""
NAME = "springtide lookup"
SESSION = "SET default_transaction_read_only = on; SET TimeZone = 'UTC'"
"""A lookup only reads, even if the query calls functions."""
AS_TEXT = ("uuid", "inet", "cidr")
"""Types that psycopg reads as objects of Python that no field of a record can have."""


@dataclass(frozen=True)
class PostgresLookup(Lookup):
    """A query, and the fields of the records (``fields``) that its ``columns`` match."""

    database: Database
    query: str
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    connections: int = 1

    @property
    def key(self) -> tuple[str, ...]:
        return self.fields

    def check(self, fields: Sequence[str]) -> None:
        rows = self.open()
        try:
            missing = [name for name in (*self.columns, *fields) if name not in rows.types]
        except needed().Error as error:
            if waits(error) and not rejects_login(error):
                raise LookupUnavailable(reason(error)) from None
            raise OptionError(f"{self.describe()}: {reason(error)}; correct the query, the URL or password=") from None
        finally:
            rows.close()
        if missing:
            raise OptionError(
                f"{self.describe()}: the query has no column {missing[0]!r}; {nearest(missing[0], rows.types)}; select it, or"
                " rename it with AS"
            )

    def open(self) -> PostgresRows:
        return PostgresRows(self)

    def describe(self) -> str:
        return f"the lookup in PostgreSQL at {self.database.describe()}"


class PostgresRows(Rows):
    """Reads rows. Its connections stay open for the next chunk of records."""

    def __init__(self, lookup: PostgresLookup) -> None:
        self._lookup = lookup
        self._connections = Connections(lookup.database, NAME, SESSION, row_factory=needed("psycopg.rows").dict_row)

    @cached_property
    def types(self) -> Mapping[str, str]:
        """The columns of the query, with their types."""
        with self._connections.lent() as connection:
            cursor = connection.execute(self._from() + needed("psycopg.sql").SQL(" LIMIT 0"), [])
            found = {column.name: column.type_code for column in cursor.description}
            names = connection.execute("SELECT oid::bigint AS oid, format_type(oid, NULL) AS name FROM pg_type WHERE oid = ANY(%s)",
                                       [list(found.values())])  # fmt: skip
            by_number = {row["oid"]: row["name"] for row in names}
        return {name: by_number[number] for name, number in found.items()}

    @cached_property
    def _statement(self) -> Any:
        """The query with a condition for a list of keys: an array for each column."""
        sql = needed("psycopg.sql")
        columns = [sql.SQL("q.") + sql.Identifier(name) for name in self._lookup.columns]
        arrays = [sql.SQL("%s::" + self.types[name] + "[]") for name in self._lookup.columns]
        if len(columns) == 1:
            return self._from() + sql.SQL(" WHERE ") + columns[0] + sql.SQL(" = ANY(") + arrays[0] + sql.SQL(")")
        comma = sql.SQL(", ")
        keys = sql.SQL("(SELECT * FROM unnest(") + comma.join(arrays) + sql.SQL("))")
        return self._from() + sql.SQL(" WHERE (") + comma.join(columns) + sql.SQL(") IN ") + keys

    def _from(self) -> Any:
        """The query in parentheses; the line break ends a comment."""
        sql = needed("psycopg.sql")
        return sql.SQL("SELECT * FROM (") + sql.SQL(self._lookup.query.replace("%", "%%")) + sql.SQL("\n) AS q")

    def fetch(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        slices = [keys[first : first + QUERY_KEYS] for first in range(0, len(keys), QUERY_KEYS)]
        threads = min(self._lookup.connections, len(slices))
        found: dict[Key, list[Row]] = defaultdict(list)
        try:
            self._statement  # noqa: B018  made by one thread
            if threads == 1:
                answers = [self._answers(slices)]
            else:
                with ThreadPoolExecutor(threads, "springtide-lookup") as pool:
                    answers = list(pool.map(self._answers, [slices[n::threads] for n in range(threads)]))
        except needed().Error as error:
            if refuses(error):
                raise KeyRefused(reason(error)) from None
            raise LookupUnavailable(reason(error)) from None
        for row in (row for rows in answers for row in rows):
            found[tuple(row[name] for name in self._lookup.columns)].append(row)
        return found

    def _answers(self, slices: Sequence[Sequence[Key]]) -> list[Row]:
        with self._connections.lent() as connection:
            for name in AS_TEXT:
                connection.adapters.register_loader(name, needed("psycopg.types.string").TextLoader)
            with connection.pipeline():
                asked = [
                    connection.execute(self._statement, [list(part) for part in zip(*keys, strict=True)]) for keys in slices
                ]
                return [row for cursor in asked for row in cursor]

    def close(self) -> None:
        self._connections.close()
