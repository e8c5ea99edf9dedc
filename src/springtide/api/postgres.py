"""``springtide.sink.postgres`` and ``springtide.lookup.postgres``: what is declared, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

from springtide.connectors.postgres.connection import SECRETS, Database, parameters
from springtide.connectors.postgres.declared import PostgresSink
from springtide.connectors.postgres.lookup import PostgresLookup
from springtide.errors import OptionError, nearest
from springtide.model.publisher import Guarantee
from springtide.model.secret import Secret

MODES = ("append", "upsert")
REFUSED = ("dead-letter", "stop")
_PASSWORD = "password=springtide.secret.env('VARIABLE') or springtide.secret.file('path')"  # noqa: S105  no password, advice


def sink(
    url: str, table: str, *, mode: str = "append", keys: str | Iterable[str] = (), password: Secret | None = None,
    create: bool = False, refused: str = "dead-letter", connections: int = 4, guarantee: str = "exactly once",
) -> PostgresSink:  # fmt: skip
    """A table of PostgreSQL, which gets the records of each committed batch. **Exactly once.**

    ``url``: ``postgresql://user@host:5432/database?sslmode=verify-full``, or libpq's ``host=… dbname=…``. ``password``: a
    ``springtide.secret``; without it libpq takes PGPASSWORD or its password file. ``table``: a name, or ``schema.name``.

    ``mode="upsert"`` replaces the rows of the same ``keys``, which need a unique index; of several records of a key in a batch
    the last stays. ``create=True`` makes the table from the schema if there is none; otherwise it is compared with the schema.

    ``refused``: records that the database refuses go to the table ``springtide_refused`` with the error ("dead-letter"), or end
    the run ("stop"). ``connections``: the parts of a batch that are written at the same time. ``guarantee="at least once"``
    needs no mark of the last start; it is for a start after the ledger was lost.
    """
    given_keys = _names("keys", keys) if keys else ()
    if mode not in MODES:
        raise OptionError(f"postgres: mode={mode!r}; {nearest(str(mode), MODES)}")
    if refused not in REFUSED:
        raise OptionError(f"postgres: refused={refused!r}; {nearest(str(refused), REFUSED)}")
    if (mode == "upsert") != bool(given_keys):
        raise OptionError(
            "postgres: mode='upsert' needs keys=, the columns that name a row"
            if mode == "upsert"
            else f"postgres: keys={keys!r} is for mode='upsert'; with mode='append' leave it out"
        )
    if guarantee not in list(Guarantee):
        raise OptionError(f"postgres: guarantee={guarantee!r}; {nearest(str(guarantee), map(str, Guarantee))}")
    if not isinstance(create, bool):
        raise OptionError(f"postgres: create={create!r} is not allowed; give True to make the table, or False")
    return PostgresSink(
        database(url, password), _table(table), given_keys, create, refused, whole("connections", connections, 64),
        Guarantee(guarantee),
    )  # fmt: skip


def lookup(
    url: str, query: str, *, key: str | Iterable[str], columns: str | Iterable[str] | None = None,
    password: Secret | None = None, connections: int = 1,
) -> PostgresLookup:  # fmt: skip
    """Rows of a query, found by key, for ``stream.lookup``.

    ``query``: any SELECT, for example "SELECT id, name FROM routes"; it gets a condition on the key, which should have an
    index, and at most one row for each key. ``key``: the field of the records, or several; ``columns``: the columns of the
    query with the same values, if they have other names. ``url`` and ``password``: as for ``sink.postgres``. ``connections``:
    of each worker, over which the queries for many missing keys are spread.
    """
    if not isinstance(query, str) or not query.strip().rstrip(";"):
        raise OptionError("postgres: query= is empty or no text; give a SELECT, for example 'SELECT id, name FROM routes'")
    names = _names("key", key)
    matching = names if columns is None else _names("columns", columns)
    if len(matching) != len(names):
        raise OptionError(f"postgres: columns={columns!r} has another number of names than key={key!r}; give one for each")
    made = PostgresLookup(
        database(url, password), query.strip().rstrip(";"), names, matching, whole("connections", connections, 16)
    )
    return made


def _names(what: str, given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise OptionError(f"postgres: {what}={given!r} is not allowed; give a name, or different names")
    return names


def database(url: object, password: object) -> Database:
    """A database without a password in its URL. No message repeats the URL."""
    if not isinstance(url, str) or not url.strip():
        raise OptionError("postgres: url= is empty or no text; give for example 'postgresql://user@host:5432/database'")
    given = [name for name in parameters(url) if name in SECRETS]
    if given:
        raise OptionError(
            f"postgres: the URL has a {given[0]} in it, which would be stored with the run; leave it out, and give {_PASSWORD}"
        )
    if password is not None and not isinstance(password, Secret):
        raise OptionError(
            f"postgres: password= is a {type(password).__name__}, which would be stored with the run; give {_PASSWORD}"
        )
    return Database(url, password)


def whole(name: str, given: object, most: int) -> int:
    """A whole number from 1 to ``most``."""
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise OptionError(f"postgres: {name}={given!r} is not allowed; give a whole number from 1 to {most:,}")
    return given


def _table(given: object) -> tuple[str, ...]:
    parts = tuple(given.split(".")) if isinstance(given, str) else ()
    if not 1 <= len(parts) <= 2 or not all(0 < len(part.encode()) <= 63 and "\0" not in part for part in parts):
        raise OptionError(
            f"postgres: table={given!r} is not allowed; give a name or 'schema.name', without quotes and"
            " as the database stores it"
        )
    return parts
