"""What the kills came to, gathered over all tests and told at the end."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crash.outputs import Written
from crash.processes import Kill

REPORT = "SPRINGTIDE_SOAK_REPORT"
"""The environment variable that names the file for the figures."""


@dataclass
class Figures:
    """What became of the runs with one kind of victim."""

    runs: int = 0
    kills: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0


@dataclass
class Ledger:
    """The figures by victim."""

    figures: dict[str, Figures] = field(default_factory=dict)

    def add(self, victim: str, kills: Iterable[Kill], found: Written, expected: Written) -> None:
        mine = self.figures.setdefault(victim, Figures())
        landed = list(kills)
        mine.runs += 1
        mine.kills += len(landed)
        mine.phases.update(kill.phase for kill in landed)
        mine.lost += found.lost(expected)
        mine.doubled += found.doubled(expected)

    def document(self) -> dict[str, dict[str, object]]:
        return {victim: {**vars(mine), "phases": dict(mine.phases)} for victim, mine in self.figures.items()}


_LEDGER = pytest.StashKey[Ledger]()


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash.setdefault(_LEDGER, Ledger())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(_LEDGER, Ledger()).figures
    if not figures:
        return
    terminalreporter.section("kills")
    terminalreporter.write_line(f"{'victim':<12}{'runs':>6}{'kills':>7}{'lost':>6}{'doubled':>9}  phases hit")
    for victim, mine in figures.items():
        phases = ", ".join(f"{phase} {count}" for phase, count in sorted(mine.phases.items()))
        terminalreporter.write_line(f"{victim:<12}{mine.runs:>6}{mine.kills:>7}{mine.lost:>6}{mine.doubled:>9}  {phases}")
    if os.environ.get(REPORT):
        document = config.stash[_LEDGER].document()
        Path(os.environ[REPORT]).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
