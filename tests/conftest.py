"""Shared fixtures: one Spark session for all tests that can share it, and the closing line with the counts."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

import classes
import crash.ledger
import damage.table
from crash.ledger import ledger  # noqa: F401  a fixture
from servers.kafka import kafka, kafka_of_session  # noqa: F401  fixtures
from servers.postgres import postgres, postgres_of_session  # noqa: F401  fixtures
from servers.s3 import s3, s3_address  # noqa: F401  fixtures

os.environ.setdefault(classes.OPTIONS, classes.BRIEF)

settings.register_profile("springtide", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("springtide")


MAKING: list[classes.Making] = []
"""Of the classes' archive, as long as it goes on."""


def pytest_configure(config: pytest.Config) -> None:
    """Only of the process that has the workers: in them the option is not set."""
    cache = getattr(config, "cache", None)
    if config.getoption("numprocesses", None) and cache is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written: the tests do without
            making = classes.begin(cache.mkdir("classes"))
            MAKING.extend([making] if making else [])


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever takes the session is a Spark test, so that `make check` never starts a JVM because a mark was forgotten."""
    for item in items:
        for fixture in {"spark", "kafka", "postgres"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(fixture)
    # a process that runs all of them compiles the kernels once
    items.sort(key=lambda item: not _simulates(getattr(item, "module", None)))


@functools.cache
def _simulates(module: Any) -> bool:
    """Whether a test's module imports something of the simulator, whose kernels take ten seconds to compile."""
    origins = (getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module or os).values())
    return any(str(origin).startswith("springtide.sim") for origin in origins)


def pytest_runtest_setup() -> None:
    classes.use()


@pytest.fixture(autouse=True)
def _no_loss_of_power(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unit tests do not wait for the disk, 10 ms for each file if it is busy: they kill processes, and not the machine. A bad
    descriptor is an error as before."""
    synced = os.fsync
    if not any(request.node.get_closest_marker(name) for name in ("spark", "crash", "cluster", "soak")):
        vars(os)["fsync"] = os.fstat
    yield
    vars(os)["fsync"] = synced


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    crash.ledger.pytest_terminal_summary(terminalreporter)
    damage.table.summary(terminalreporter)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one session of this test run, with Springtide's settings."""
    from springtide.spark.driver import session as sessions

    session: Any = sessions.create(sessions.local_master(4), "springtide-tests")
    yield session
    session.stop()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    for making in MAKING:
        making.end()
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    counts = {name: len(reporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    for reason, skipped in Counter(map(_reason, reporter.stats.get("skipped", []))).most_common():
        print(f"{skipped} skipped: {reason}")
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, in one line, so that the counts stay alone on theirs."""
    place = report.longrepr
    text = str(place[2]) if isinstance(place, tuple) else str(place)
    return " ".join(text.removeprefix("Skipped: ").split())
