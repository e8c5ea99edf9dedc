"""Rows of Elasticutor's figures and tables, and their claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from springtide.papers.elasticutor.engine import Elastic
from springtide.papers.elasticutor.setup import Lab
from springtide.papers.rows import Claim, Row, row

PAPER, RATE = "elasticutor", "tuples/s"


def above(low: float, note: str, reason: str = "", published: float | None = None) -> Claim:
    return Claim(published, low, math.inf, note, reason)


def below(high: float, note: str, reason: str = "", published: float | None = None) -> Claim:
    return Claim(published, -math.inf, high, note, reason, more_is_better=False)


class Between(Claim):
    """A claim without a good side, because the same system is measured again."""

    def verdict(self, measured: float) -> str:
        return "reproduced" if self.low <= measured <= self.high else "not reproduced"


def between(low: float, high: float, note: str, reason: str = "", published: float | None = None) -> Claim:
    return Between(published, low, high, note, reason)


def found(
    experiment: int | str, name: str, series: str, x: float | None, values: Sequence[float], unit: str, claim: Claim
) -> Row:
    title = f"figure {experiment}" if isinstance(experiment, int) else experiment
    return row(PAPER, title, name, series, x, list(values), unit, claim)


def panel(
    lab: Lab, figure: int, name: str, point: str, x: float, setups: Mapping[str, Elastic], claims: Mapping[str, Claim],
    measure: Callable[[Lab, Elastic], list[float]], unit: str,
) -> list[Row]:  # fmt: skip
    """A row for every series at a point of a plot."""
    return [
        found(figure, f"{name}: {point}", series, x, measure(lab, setup), unit, claims[series])
        for series, setup in setups.items()
    ]
