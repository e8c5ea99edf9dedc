"""DABS-Storm's baseline `incremental`: one replica more when an operator is busy, one less when it is idle.

Kotto-Kombi, Lumineau, Lamarre, Rivetti, Busnel: DABS-Storm (2019), section 7.2: "considering only thresholds on CPU usage". The
authors' code has the thresholds, 0.2 and 0.8, but compares them with input over executed records. Of an operator that keeps up
that is 1, so that it always grows; it shrinks only where five times as much was executed as came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from springtide.errors import OptionError, nearest
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes

MEASURES = ("utilisation", "ratio")


@dataclass(frozen=True)
class Incremental(ScalePlugin):
    """A step in every interval in which the measure is outside the thresholds; nothing is predicted, nothing remembered."""

    name = "incremental"
    source = "DABS-Storm, section 7.2"
    summary = "one replica more or less whenever an operator is too busy or too idle"

    low: float = parameter(0.2, minimum=0, help="below it a replica goes")
    high: float = parameter(0.8, minimum=0, help="above it a replica comes")
    measure: str = parameter("utilisation", help="what is compared: utilisation, or ratio: input over executed, as in the code")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered(self.name, self.low, self.high)
        if self.measure not in MEASURES:
            raise OptionError(f"'incremental': measure={self.measure!r} is not allowed; {nearest(self.measure, MEASURES)}")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        wanted = {}
        for operator in snapshot.operators:
            value = operator.utilisation if self.measure == "utilisation" else _ratio(operator)
            move = step(value, self.low, self.high)
            if move:
                beyond = f"above {self.high:g}" if move > 0 else f"below {self.low:g}"
                said = f"{self.measure} {value:.2f}, {beyond}: {operator.degree + move}"
                wanted[operator.name] = operator.degree + move, said
        return state, changes(snapshot, wanted)


def step(value: float | None, low: float, high: float) -> int:
    """+1 above the upper threshold, −1 below the lower one, 0 between them and for what is not known.

    >>> [step(value, 0.2, 0.8) for value in (0.1, 0.2, 0.8, 0.9, None)]
    [-1, 0, 0, 1, 0]
    """
    return 0 if value is None else (value > high) - (value < low)


def ordered(owner: str, low: float, high: float) -> None:
    """Raise OptionError unless the lower threshold is the lower one."""
    if low >= high:
        raise OptionError(f"{owner!r}: low={low:g} is not below high={high:g}")


def _ratio(operator: OperatorSnapshot) -> float | None:
    """Input over executed records; infinite where records came and none was executed."""
    if operator.rows_in is None or operator.served is None or not (operator.rows_in or operator.served):
        return None
    return operator.rows_in / operator.served if operator.served else float("inf")
