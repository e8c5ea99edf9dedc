"""The next value is the last one: what every other forecaster has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from springtide.policy.forecast import State
from springtide.policy.registry import validate


@dataclass(frozen=True)
class Last:
    """Forecasts the last value, however far ahead.

    >>> last = Last()
    >>> last.ahead(last.update(last.update(last.initial(), 3.0), 5.0))
    5.0
    """

    kind: ClassVar[str] = "forecast"
    name: ClassVar[str] = "last"
    source: ClassVar[str] = "Springtide"
    summary: ClassVar[str] = "the last value"

    def __post_init__(self) -> None:
        validate(self)

    def initial(self) -> State:
        return {"last": None}

    def update(self, state: State, value: float) -> State:
        return {"last": float(value)}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        last: float | None = state["last"]
        return last
