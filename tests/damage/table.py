"""The matrix with its counts: moments by verdicts, then every case that does not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from damage.trial import Tried
from damage.verdict import Verdict

PROPERTY = "damage"


def entry(tried: Tried) -> dict[str, str]:
    """A case as a test's report carries it from a worker to the terminal."""
    return {"moment": tried.case.moment, "case": str(tried.case), "verdict": str(tried.verdict), "text": tried.text}


def counts(entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """By moment and verdict, and the sum over all moments."""
    found: dict[str, Counter[str]] = {}
    for one in entries:
        for row in (one["moment"], "all"):
            found.setdefault(row, Counter())[one["verdict"]] += 1
    order = [*sorted(name for name in found if name != "all"), *(["all"] if found else [])]
    return {row: {str(verdict): found[row][verdict] for verdict in Verdict} for row in order}


def lines(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = counts(entries)
    head = f"{'moment':<14}" + "".join(f"{verdict:>10}" for verdict in Verdict) + f"{'cases':>10}"
    body = [
        f"{row:<14}" + "".join(f"{own[verdict]:>10}" for verdict in Verdict) + f"{sum(own.values()):>10}"
        for row, own in rows.items()
    ]
    return [head, *body]


def summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the matrix at the end of a test run that has tried any case."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    entries: list[Any] = [
        one for report in reports for name, found in report.user_properties if name == PROPERTY for one in found
    ]
    if not entries:
        return
    terminalreporter.section("damage")
    for line in lines(entries):
        terminalreporter.write_line(line)
