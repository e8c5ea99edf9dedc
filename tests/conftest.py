"""Shared fixtures: one Spark session for all tests that can share it, and the closing line with the counts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

import classes
import crash.ledger
import damage.table
from crash.ledger import ledger  # noqa: F401  a fixture

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


def pytest_runtest_setup() -> None:
    classes.use()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    crash.ledger.pytest_terminal_summary(terminalreporter)
    damage.table.summary(terminalreporter)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one session of this test run, with Springtide's settings."""
    from springtide.spark import session as sessions

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
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
