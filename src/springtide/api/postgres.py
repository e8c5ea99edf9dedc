"""``springtide.sink.postgres`` and ``springtide.lookup.postgres``: what is declared, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

from springtide.connectors.postgres.connection import SECRETS, Database, parameters
from springtide.connectors.postgres.declared import PostgresSink
from springtide.errors import OptionError, nearest
from springtide.model.secret import Secret

MODES = ("append", "upsert")
REFUSED = ("dead-letter", "stop")
_PASSWORD = "password=springtide.secret.env('VARIABLE') or springtide.secret.file('path')"  # noqa: S105  no password, advice


def sink(
    url: str, table: str, *, mode: str = "append", keys: str | Iterable[str] = (), password: Secret | None = None,
    create: bool = False, refused: str = "dead-letter", connections: int = 4,
) -> PostgresSink:  # fmt: skip
    """A table of PostgreSQL, which gets the records of each committed batch. **Exactly once.**

    ``url``: ``postgresql://user@host:5432/database?sslmode=verify-full``, or libpq's ``host=… dbname=…``. ``password``: a
    ``springtide.secret``; without it libpq takes PGPASSWORD or its password file. ``table``: a name, or ``schema.name``.

    ``mode="upsert"`` replaces the rows of the same ``keys``, which need a unique index; of several records of a key in a batch
    the last stays. ``create=True`` makes the table from the schema if there is none; otherwise it is compared with the schema.

    ``refused``: records that the database refuses go to the table ``springtide_refused`` with the error ("dead-letter"), or end
    the run ("stop"). ``connections``: the parts of a batch that are written at the same time.
    """
    given_keys = (keys,) if isinstance(keys, str) else tuple(keys)
    if mode not in MODES:
        raise OptionError(f"postgres: mode={mode!r}; {nearest(str(mode), MODES)}")
    if refused not in REFUSED:
        raise OptionError(f"postgres: refused={refused!r}; {nearest(str(refused), REFUSED)}")
    if not all(isinstance(key, str) and key for key in given_keys) or len(set(given_keys)) < len(given_keys):
        raise OptionError(f"postgres: keys={keys!r} is not allowed; give the name of a column, or different names")
    if (mode == "upsert") != bool(given_keys):
        raise OptionError(
            "postgres: mode='upsert' needs keys=, the columns that name a row"
            if mode == "upsert"
            else f"postgres: keys={keys!r} is for mode='upsert'; with mode='append' leave it out"
        )
    if not isinstance(create, bool):
        raise OptionError(f"postgres: create={create!r} is not allowed; give True to make the table, or False")
    return PostgresSink(
        database(url, password), _table(table), mode, given_keys, create, refused, whole("connections", connections, 64)
    )


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
