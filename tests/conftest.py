"""Shared fixtures: one Spark session for all tests that can share it, and the closing line with the counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from crash.ledger import ledger, pytest_terminal_summary  # noqa: F401  a fixture and a hook

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For JVMs that live for seconds: a start of Spark takes 13 s of CPU instead of 24."""

settings.register_profile("springtide", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("springtide")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one session of this test run, with Springtide's settings."""
    from springtide.spark import session as sessions

    session: Any = sessions.create(sessions.local_master(4), "springtide-tests")
    yield session
    session.stop()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    counts = {name: len(reporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
