"""What the kills came to, gathered over all tests and told at the end."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from crash.outputs import Written
from crash.processes import Kill

REPORT = "SPRINGTIDE_SOAK_REPORT"
"""The environment variable that names the file for the figures."""
PROPERTY = "kills"


class Ledger:
    """Where a test notes its kills, and what they came to. Travels with the test's report."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def add(self, kills: Iterable[Kill], found: Written, expected: Written) -> None:
        landed = [(kill.victim, kill.phase) for kill in kills]
        entry = {"kills": landed, "lost": found.lost(expected), "doubled": found.doubled(expected)}
        self._properties.append((PROPERTY, entry))


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    return Ledger(request.node.user_properties)


def figures(terminalreporter: pytest.TerminalReporter) -> dict[str, Any]:
    """The runs, what was lost and doubled in them, and the phases in which each kind of victim was hit."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    entries: list[Any] = [entry for report in reports for name, entry in report.user_properties if name == PROPERTY]
    victims: dict[str, Counter[str]] = {}
    for entry in entries:
        for victim, phase in entry["kills"]:
            victims.setdefault(victim, Counter())[phase] += 1
    return {
        "runs": len(entries),
        "kills": sum(phases.total() for phases in victims.values()),
        "lost": sum(entry["lost"] for entry in entries),
        "doubled": sum(entry["doubled"] for entry in entries),
        "victims": {victim: dict(sorted(phases.items())) for victim, phases in sorted(victims.items())},
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = figures(terminalreporter)
    if not found["runs"]:
        return
    terminalreporter.section("kills")
    for victim, phases in found["victims"].items():
        by_phase = ", ".join(f"{phase} {count}" for phase, count in phases.items())
        terminalreporter.write_line(f"{victim:<10}{sum(phases.values()):>4}  {by_phase}")
    terminalreporter.write_line("{runs} runs, {kills} kills, {lost} records lost, {doubled} doubled".format(**found))
    if os.environ.get(REPORT):
        Path(os.environ[REPORT]).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
