"""Published claims, measured values, and the verdict on each claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

REPRODUCED, BETTER, NOT_REPRODUCED = "reproduced", "better", "not reproduced"


@dataclass(frozen=True)
class Claim:
    """A published number, or None if the paper has only a plot or a tendency, and the limits of a reproduction.

    A mean from ``low`` to ``high`` is reproduced; outside, it is better on the good side and not reproduced on the other. The
    standard error is reported beside the mean, but does not change the verdict. ``note`` explains the limits, ``reason`` why
    the number is not reproduced, as far as that is known.
    """

    published: float | None
    low: float
    high: float
    note: str = ""
    reason: str = ""
    more_is_better: bool = True

    def verdict(self, measured: float) -> str:
        """
        >>> [Claim(1.26, 1.21, 1.31).verdict(measured) for measured in (1.2, 1.22, 1.4)]
        ['not reproduced', 'reproduced', 'better']
        """
        if self.low <= measured <= self.high:
            return REPRODUCED
        return BETTER if (measured > self.high) == self.more_is_better else NOT_REPRODUCED

    def remark(self, measured: float) -> str:
        missed = self.reason if self.verdict(measured) == NOT_REPRODUCED else ""
        return "; ".join(part for part in (self.note, missed) if part)


@dataclass(frozen=True)
class Row:
    """A line of the output of ``springtide papers``: the mean over the seeds, and its spread."""

    paper: str
    experiment: str
    row: str
    series: str
    x: float | None
    published: float | None
    measured: float
    unit: str
    verdict: str
    note: str
    min: float
    max: float
    error: float  # the standard error of the mean
    seeds: int
    completion_ms: tuple[float, float, float] | None = None  # least, mean and greatest of the seeds

    def as_json(self) -> dict[str, Any]:
        shown = {name: _short(value) for name, value in vars(self).items()}
        if self.completion_ms is not None:
            shown["completion_ms"] = dict(zip(("min", "mean", "max"), map(_short, self.completion_ms), strict=True))
        return shown


def row(
    paper: str, experiment: str, name: str, series: str, x: float | None, values: Sequence[float], unit: str, claim: Claim,
    completion_s: Sequence[float] = (),
) -> Row:  # fmt: skip
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    times = tuple(1000 * float(part(completion_s)) for part in (np.min, np.mean, np.max)) if len(completion_s) else None
    return Row(
        paper, experiment, name, series, x, claim.published, mean, unit, claim.verdict(mean), claim.remark(mean),
        float(np.min(values)), float(np.max(values)), error, len(values), times,  # type: ignore[arg-type]
    )  # fmt: skip


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
