"""A logarithm through the last values: for series whose growth levels off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from springtide.policy.forecast import regression
from springtide.policy.forecast.regression import Curve, CurvePlugin
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Logarithmic(CurvePlugin):
    """The curve a·ln t + b through the last ``window`` values by least squares, t counted from 1; not below 0.

    Until three values are known, the forecast is the last value.

    >>> import math
    >>> logarithmic = Logarithmic()
    >>> state = logarithmic.initial()
    >>> for t in (1, 2, 3, 4):
    ...     state = logarithmic.update(state, 100 + 50 * math.log(t))
    >>> round(logarithmic.ahead(state) or 0, 9) == round(100 + 50 * math.log(5), 9)
    True
    """

    name = "logarithmic"
    source = "DABS-Storm (Kotto-Kombi et al.), section 4.1"
    summary = "a logarithm through the last values"

    window: int = parameter(6, "values", 3, 1_000, "how many values the curve goes through (DABS-Storm: 60 s of 10 s each)")

    def _fit(self, values: Sequence[float], spread: float) -> Curve:
        return regression.logarithmic(values, spread)
