"""A real PostgreSQL for tests: a server of its own on the loopback, with a password, in a temporary folder.

The fixture ``postgres`` gives a running ``Server``, which all tests of a process share. A test may kill it: the next one gets
a server that runs. Whoever takes the fixture has the marker ``postgres``.

    def test_something(postgres: Server) -> None:
        table = postgres.table("id bigint, name text")     # with a name of its own
        postgres.rows(f"SELECT * FROM {table}")            # a list of tuples; any statement, each in a transaction of its own
        postgres.url, postgres.password                    # for connectors: the URL has no password, this is its Secret
        with postgres.connected() as connection: ...       # psycopg's
        postgres.kill(); postgres.start()                  # SIGKILL of the whole server, then the same data and port
        postgres.pause(); postgres.go_on()                 # SIGSTOP and SIGCONT: it takes connections and answers nobody

Debian's and Ubuntu's package ``postgresql`` has the programs; ``make setup`` installs it if it may. Where they are missing the
tests skip with the reason; with CI in the environment they fail. It does not run as root: then it runs as ``postgres``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from springtide.bench.keeper import Kept, free_ports
from springtide.model.secret import Secret

HOMES = Path("/usr/lib/postgresql")
"""Where Debian installs the programs, in a folder for each version; elsewhere they are on the PATH."""
USER = "postgres"
START_S = 60.0
"""Limits the wait for a server; it takes 0.3 s if the machine has nothing else to do."""


def programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``, of the newest version."""
    versions = sorted(HOMES.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0)
    on_path = shutil.which("initdb")
    return versions[-1].parent if versions else Path(os.path.realpath(on_path)).parent if on_path else None


def missing() -> str | None:
    """Why there can be no server here; None if there can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install springtide[postgres]"
    if programs() is None:
        return f"no PostgreSQL in {HOMES} or on the PATH: install the package postgresql"
    if os.geteuid() == 0 and _owner() is None:
        return f"PostgreSQL does not run as root, and there is no user {USER}"
    return None


def require() -> None:
    """Skip the test if there can be no server; with CI in the environment it fails."""
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def _owner() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


class Server:
    """One PostgreSQL server and what tests do with it."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None
        self._programs, self._folder, self._data, self.log = found, folder, folder / "data", folder / "server.log"
        self._port = free_ports(1)[0]
        self._kept: Kept | None = None
        self._names = itertools.count()
        self._password = folder / "password"
        self._password.write_text(f"Xq7-{secrets.token_hex(8)}\n")
        if os.geteuid() == 0 and (owner := _owner()) is not None:
            for path in (folder, self._password):
                os.chown(path, owner.pw_uid, owner.pw_gid)

    @property
    def url(self) -> str:
        """Without the password."""
        return f"postgresql://{USER}@127.0.0.1:{self._port}/postgres"

    @property
    def password(self) -> Secret:
        return Secret("file", str(self._password))

    # the process

    def initialise(self) -> None:
        options = [f"--pgdata={self._data}", f"--username={USER}", f"--pwfile={self._password}", "--encoding=UTF8"]
        done = subprocess.run(
            [*self._command("initdb"), *options, "--auth=scram-sha-256", "--locale=C.UTF-8", "--no-sync", "--no-instructions"],
            capture_output=True, text=True, cwd=self._folder,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"PostgreSQL's folder cannot be made: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it answers."""
        until = time.monotonic() + START_S
        while not self._answers():
            if not self.running():  # the first attempts fail while processes of a killed server still end
                self.kill()
                self._kept = Kept([*self._command("postgres"), *self._settings()], self.log, os.environ)
            if time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL does not start; the end of its log:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def running(self) -> bool:
        return self._kept is not None and self._kept.running()

    def kill(self) -> None:
        """End all processes of the server with SIGKILL; ``start`` starts it again with the same data and port."""
        if self._kept is not None:
            backends = self._processes()
            self._kept.kill()
            for backend in backends:
                with contextlib.suppress(psutil.NoSuchProcess):
                    backend.kill()
        self._kept = None

    def pause(self) -> None:
        """Stop the processes as they are, so that connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        """The server's own process and those of its connections."""
        assert self._kept is not None
        try:
            first = psutil.Process(self._kept.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _answers(self) -> bool:
        import psycopg

        try:
            with self.connected(connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def _command(self, program: str) -> list[str]:
        as_owner = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []
        return [*as_owner, str(self._programs / program)]

    def _settings(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._port,
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "32MB",
            "max_wal_size": "256MB",
            "restart_after_crash": "on",
        }
        return ["-D", str(self._data), *(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))]

    # data

    def connected(self, **options: Any) -> Any:
        """A connection of psycopg in autocommit, as a context."""
        import psycopg

        return psycopg.connect(self.url, password=self.password.resolve(), autocommit=True, **options)

    def rows(self, statement: Any, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement; an empty list for those that have none."""
        with self.connected() as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def table(self, columns: str = "", name: str = "") -> str:
        """The name of a new table; without columns it is not made."""
        name = name or f"table_{next(self._names)}"
        if columns:
            self.rows(f"CREATE TABLE {name} ({columns})")
        return name


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[Server]:
    """The server of this process; a test takes ``postgres``."""
    require()
    folder = Path(tempfile.mkdtemp(prefix="springtide-postgres-"))
    server = Server(folder)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_of_session: Server) -> Server:
    """A server that runs, also after a test that has killed it."""
    if postgres_of_session.running():
        postgres_of_session.go_on()
    postgres_of_session.start()
    return postgres_of_session
