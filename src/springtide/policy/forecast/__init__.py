"""How a series goes on: the forecasters that scaling policies look ahead with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

State = Mapping[str, Any]
"""What a forecaster remembers of a series: whatever JSON can carry."""


class Forecaster(Protocol):
    """Follows one series of numbers, a value per interval. Frozen; what it remembers is in the state, which the caller keeps.

    All three are pure functions of their arguments. A value is finite and not negative, and so is a forecast.
    """

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first value."""
        ...

    def update(self, state: State, value: float) -> State:
        """The state after one more value; the state that came in is not changed."""
        ...

    def ahead(self, state: State, steps: int = 1) -> float | None:
        """The value so many intervals after the last one; None before the first."""
        ...
