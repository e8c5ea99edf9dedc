"""Opens connections to PostgreSQL, and judges their errors. This is the only place where the password is resolved."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from springtide.errors import OptionError, RunError, SetupError
from springtide.model.publisher import SinkUnavailable
from springtide.model.secret import Secret

SECRETS = ("password", "sslpassword")
"""The parameters of a URL that would be stored with the run, and shown in its messages."""

DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    # a server whose machine is gone is noticed after 30 s; with Linux's own values it takes two hours
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "client_encoding": "utf-8",  # COPY sends Arrow's text as it is
}

WAIT = ("08", "28", "40", "53", "57", "58")
"""Classes of errors that pass: connection, login (a password may change), deadlock, resources, restart, input and output."""
WAIT_STATES = ("55P03", "25006")
"""A lock was not available in time; the server is a standby, as during a failover."""
REFUSED = ("22", "23", "44", "54", "P0")
"""Classes of errors that a record causes: its data, a constraint, a view's or an index's limit, a trigger."""


def needed(module: str = "psycopg") -> Any:
    """Import a module of the extra ``springtide[postgres]``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SetupError(f"PostgreSQL needs {error.name or module}: pip install 'springtide[postgres]'") from None


@dataclass(frozen=True)
class Database:
    """A database and how to reach it; it can be pickled and shown. ``url`` has no password in it."""

    url: str
    password: Secret | None = None

    def connect(self, name: str, **options: Any) -> Any:
        """A connection in autocommit. ``name``: for ``pg_stat_activity``. Raises psycopg's errors."""
        secret = {} if self.password is None else {"password": self.password.resolve()}
        chosen = {**DEFAULTS, **self._parameters, **secret, "application_name": name}
        return needed().connect(**chosen, autocommit=True, **options)

    @cached_property
    def _parameters(self) -> Mapping[str, Any]:
        return parameters(self.url)

    def describe(self) -> str:
        """Where the database is, for messages."""
        host, port = self._parameters.get("host", "the local host"), self._parameters.get("port", 5432)
        return f"{host}:{port}/{self._parameters.get('dbname', self._parameters.get('user', ''))}"


class Connections:
    """Connections to a database, each lent to one thread at a time. ``session``: the first statement of each."""

    def __init__(self, database: Database, name: str, session: str, **options: Any) -> None:
        self._database, self._name, self._session, self._options = database, name, session, options
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open: set[Any] = set()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Any]:
        """A connection. One that failed is closed, and another is made when it is needed."""
        try:
            connection, session = self._idle.get_nowait(), None
        except queue.Empty:
            connection, session = self._database.connect(self._name, **self._options), self._session
            self._open.add(connection)
        try:
            if session is not None:
                connection.execute(session)
            yield connection
        except BaseException:
            self._forget(connection)
            raise
        self._idle.put(connection)

    def hang_up(self) -> None:
        """Wake the threads that wait for a server that does not answer."""
        for connection in list(self._open):
            with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in list(self._open):
            self._forget(connection)
        self._idle = queue.SimpleQueue()

    def _forget(self, connection: Any) -> None:
        self._open.discard(connection)
        with contextlib.suppress(Exception):
            connection.close()


def parameters(url: str) -> dict[str, Any]:
    """The parameters in a URL or in ``host=… dbname=…``. A message never repeats the text, which may have a password in it."""
    psycopg = needed()
    try:
        return dict(needed("psycopg.conninfo").conninfo_to_dict(url))
    except psycopg.Error:
        raise OptionError(
            "postgres: the URL cannot be read; give for example 'postgresql://user@host:5432/database?sslmode=require', with"
            " special characters as %40"
        ) from None


def waits(error: BaseException) -> bool:
    """Whether an error may pass by itself: the server is away, restarts, is busy or is not yet the primary again."""
    psycopg, state = needed(), getattr(error, "sqlstate", None)
    if state is None:  # without an answer of the server
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] in WAIT or state in WAIT_STATES


def refuses(error: BaseException) -> bool:
    """Whether the database refused a record, so that others may do better."""
    return (getattr(error, "sqlstate", None) or "")[:2] in REFUSED


def rejects_login(error: BaseException) -> bool:
    """Whether the server answers and does not let this user in, or does not have the database: waiting hardly helps.

    libpq gives no state for errors while it connects, so this goes by the server's words, which are English with LC_MESSAGES=C.
    """
    state = getattr(error, "sqlstate", None)
    words = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
    return state[:2] in ("28", "3D") if state else any(word in str(error) for word in words)


def reason(error: BaseException) -> str:
    """The server's message in one line."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return " ".join(str(primary or error).split()) or type(error).__name__


@contextlib.contextmanager
def errors(where: str, starting: bool = False) -> Iterator[None]:
    """Errors of psycopg as Springtide's. ``starting``: when they are most likely those of the declaration."""
    try:
        yield
    except needed().Error as error:
        text = f"{where}: {reason(error)}"
        if starting and rejects_login(error):
            raise OptionError(f"{text}; correct the URL or password=") from None
        if waits(error):
            raise SinkUnavailable(text) from None
        if starting:
            raise OptionError(f"{text}; correct the table, or the rights of the user") from None
        raise RunError(f"{text}; the batch is committed, and the next start writes the rest of it. Mend the table") from None
