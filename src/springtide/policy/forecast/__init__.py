"""The forecasters, with which scaling policies look ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from springtide.policy.plugin import Plugin

State = Mapping[str, Any]
"""What a forecaster has learned of a series; any JSON."""


class Forecaster(Protocol):
    """Forecasts a series of numbers, a value per interval. It is frozen: all that it learns is in the state, which the caller
    stores.

    All three methods are pure functions of their arguments. Values and forecasts are finite and not negative.
    """

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first value."""

    def update(self, state: State, value: float) -> State:
        """The state after another value; the given state is not changed."""

    def ahead(self, state: State, steps: int = 1) -> float | None:
        """The forecast of the value ``steps`` intervals after the last; None before the first value."""


class ForecastPlugin(Plugin):
    kind = "forecast"
