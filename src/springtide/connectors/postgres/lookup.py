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
NUMBER = "springtide_number"
_TYPES = "SELECT oid::bigint AS number, format_type(oid, NULL) AS name FROM pg_type WHERE oid = ANY(%s)"
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
        sql = needed("psycopg.sql")
        with self._connections.lent() as connection:
            cursor = connection.execute(sql.SQL("SELECT * FROM {} AS q LIMIT 0").format(self._query), [])
            numbers = {column.name: column.type_code for column in cursor.description}
            named = connection.execute(_TYPES, [list(numbers.values())]).fetchall()
        names = {row["number"]: row["name"] for row in named}
        return {name: names[number] for name, number in numbers.items()}

    @cached_property
    def _statement(self) -> Any:
        """The rows of lists of keys, an array for each column, with the number of their key: so the database alone decides
        which values are equal, and a text in capitals finds the UUID that is stored in small letters."""
        sql = needed("psycopg.sql")
        columns = [sql.Identifier("q", name) for name in self._lookup.columns]
        arrays = [sql.SQL("%s::" + self.types[name] + "[]") for name in self._lookup.columns]
        keys = [sql.Identifier(f"k{n}") for n in range(len(columns))]
        comma, both = sql.SQL(", "), sql.SQL(" AND ")
        return sql.SQL(
            "SELECT {number}, q.* FROM unnest({arrays}) WITH ORDINALITY AS k ({keys}, {number}) JOIN {query} AS q ON {equal}"
        ).format(
            number=sql.Identifier(NUMBER), arrays=comma.join(arrays), keys=comma.join(keys), query=self._query,
            equal=both.join(sql.SQL("{} = k.{}").format(*pair) for pair in zip(columns, keys, strict=True)),
        )  # fmt: skip

    @property
    def _query(self) -> Any:
        """The query in parentheses; the line break ends a comment."""
        sql = needed("psycopg.sql")
        return sql.Composed([sql.SQL("("), sql.SQL(self._lookup.query.replace("%", "%%")), sql.SQL("\n)")])

    def fetch(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        slices = [keys[first : first + QUERY_KEYS] for first in range(0, len(keys), QUERY_KEYS)]
        threads = min(self._lookup.connections, len(slices))
        found: dict[Key, list[Row]] = defaultdict(list)
        try:
            self._statement  # noqa: B018  made by one thread
            with ThreadPoolExecutor(threads, "springtide-lookup") as pool:
                for answers in pool.map(self._answers, [slices[n::threads] for n in range(threads)]):
                    for key, row in answers:
                        found[key].append(row)
        except needed().Error as error:
            if refuses(error):
                raise KeyRefused(reason(error)) from None
            raise LookupUnavailable(reason(error)) from None
        return found

    def _answers(self, slices: Sequence[Sequence[Key]]) -> list[tuple[Key, Row]]:
        """The rows of several lists of keys; all queries are sent before the first answer is awaited."""
        with self._connections.lent() as connection:
            for name in AS_TEXT:
                connection.adapters.register_loader(name, needed("psycopg.types.string").TextLoader)
            with connection.pipeline():
                asked = [connection.execute(self._statement, list(map(list, zip(*keys, strict=True)))) for keys in slices]
                return [
                    (keys[row.pop(NUMBER) - 1], row)
                    for keys, cursor in zip(slices, asked, strict=True)
                    for row in cursor.fetchall()
                ]

    def close(self) -> None:
        self._connections.close()
