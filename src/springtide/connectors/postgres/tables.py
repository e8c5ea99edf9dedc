"""The table of a sink: made from the schema when asked, compared with it otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from springtide.connectors.postgres.connection import needed
from springtide.connectors.postgres.types import Kind, column_type, holds
from springtide.errors import OptionError, nearest

_TABLE = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, b.typname, b.typcategory::text, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END,
       format_type(a.atttypid, a.atttypmod), a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '',
       a.attgenerated <> ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
"""Indexes on which INSERT … ON CONFLICT can decide; the columns behind INCLUDE do not count."""


@dataclass(frozen=True)
class Table:
    """A table that exists, by its full name."""

    schema: str
    name: str
    number: int  # its oid

    @property
    def full(self) -> Any:
        """Its quoted name for a statement."""
        return needed("psycopg.sql").Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class _Column:
    name: str
    kind: Kind
    described: str
    not_null: bool
    filled: bool  # it has a default or is an identity
    generated: bool


def made(connection: Any, name: Sequence[str], schema: pa.Schema, keys: Sequence[str]) -> None:
    """Make a table for records of a schema, unless there is one of that name."""
    sql = needed("psycopg.sql")
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(field.name), sql.SQL(column_type(field)), sql.SQL("" if field.nullable else " NOT NULL")
        )
        for field in schema
    ]
    parts += [sql.SQL("PRIMARY KEY ({})").format(listed(keys))] if keys else []
    connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(*name), sql.SQL(", ").join(parts)))


def exists(connection: Any, name: Sequence[str]) -> bool:
    return connection.execute(_TABLE, [_quoted(connection, *name)]).fetchone() is not None


def found(connection: Any, name: Sequence[str], schema: pa.Schema, keys: Sequence[str]) -> Table:
    """The table of a name. OptionError says what does not fit the records, or the keys of an upsert, and how to mend it."""
    quoted = _quoted(connection, *name)
    row = connection.execute(_TABLE, [quoted]).fetchone()
    if row is None:
        raise OptionError(
            f"postgres: there is no table {quoted}; make it, or let Springtide make it from the schema with create=True"
        )
    number, namespace, plain, kind, persistence, inserts, updates = row
    table = Table(namespace, plain, number)
    if kind not in "rp":
        raise OptionError(f"postgres: {table} is no table, but a view or something else that COPY cannot fill; name a table")
    if persistence != "p":
        raise OptionError(
            f"postgres: {table} is unlogged or temporary, so that a crash of the server would empty it and lose records; run:"
            f" ALTER TABLE {quoted} SET LOGGED"
        )
    rights = "SELECT, INSERT, UPDATE" if keys else "INSERT"
    if not inserts or (keys and not updates):
        user = connection.info.user
        raise OptionError(
            f"postgres: user {user!r} may not write {table}; run: GRANT {rights} ON {quoted} TO {_quoted(connection, user)}"
        )
    _check_columns(connection, table, quoted, [_column(each) for each in connection.execute(_COLUMNS, [number])], schema)
    if keys:
        _check_unique(connection, table, quoted, keys)
    return table


def _column(row: Sequence[Any]) -> _Column:
    name, kind, category, modifier, described, not_null, filled, generated = row
    return _Column(name, Kind(kind, category, modifier), described, not_null, filled, generated)


def _check_columns(connection: Any, table: Table, quoted: str, columns: Sequence[_Column], schema: pa.Schema) -> None:
    by_name = {column.name: column for column in columns}
    for field in schema:
        column, own = by_name.get(field.name), _quoted(connection, field.name)
        if column is None:
            raise OptionError(
                f"postgres: {table} has no column {field.name!r}; {nearest(field.name, by_name)}; rename the field, or run:"
                f" ALTER TABLE {quoted} ADD COLUMN {own} {column_type(field)}"
            )
        if column.generated:
            raise OptionError(f"postgres: {table} computes column {field.name!r} itself; leave it out of the records")
        if not holds(column.kind, field):
            raise OptionError(
                f"postgres: column {field.name!r} of {table} is {column.described}, which does not hold every {field.type};"
                f" run: ALTER TABLE {quoted} ALTER COLUMN {own} TYPE {column_type(field)}, or convert the field"
            )
        if field.nullable and column.not_null:
            raise OptionError(
                f"postgres: column {field.name!r} of {table} is NOT NULL, and the records may have None there; declare the"
                f" field without None, or run: ALTER TABLE {quoted} ALTER COLUMN {own} DROP NOT NULL"
            )
    absent = [c.name for c in columns if c.not_null and not c.filled and not c.generated and c.name not in schema.names]
    if absent:
        raise OptionError(
            f"postgres: column {absent[0]!r} of {table} is NOT NULL without a default, and the records have no such field; add"
            f" the field, or run: ALTER TABLE {quoted} ALTER COLUMN {_quoted(connection, absent[0])} SET DEFAULT …"
        )


def _check_unique(connection: Any, table: Table, quoted: str, keys: Sequence[str]) -> None:
    unique = [names for (names,) in connection.execute(_UNIQUE, [table.number])]
    if not any(set(names) == set(keys) for names in unique):
        has = "; ".join(", ".join(names) for names in unique) or "none"
        raise OptionError(
            f"postgres: mode='upsert' needs a unique index of {table} on exactly {', '.join(keys)}, and its unique indexes are:"
            f" {has}; run: CREATE UNIQUE INDEX ON {quoted} ({listed(keys).as_string(connection)})"
        )


def listed(names: Sequence[str]) -> Any:
    """The quoted names of columns, with commas."""
    sql = needed("psycopg.sql")
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _quoted(connection: Any, *name: str) -> str:
    """A name as it stands in a statement."""
    return str(needed("psycopg.sql").Identifier(*name).as_string(connection))
