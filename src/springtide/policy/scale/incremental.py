"""DABS-Storm's baseline `incremental`: adds a replica to a busy operator, and removes one from an idle operator.

Kotto-Kombi, Lumineau, Lamarre, Rivetti, Busnel: DABS-Storm (2019), section 7.2: "considering only thresholds on CPU usage". The
authors' code has the thresholds 0.2 and 0.8, but compares them with input over executed records. That ratio is 1 for an
operator that keeps up, which therefore always grows; it shrinks only after executing five times its input.
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
    """A step in every interval in which the measure is outside the thresholds, without forecasts or memory."""

    name = "incremental"
    source = "DABS-Storm, section 7.2"
    summary = "one replica more or less whenever an operator is too busy or too idle"

    low: float = parameter(0.2, minimum=0, help="below it a replica is removed")
    high: float = parameter(0.8, minimum=0, help="above it a replica is added")
    measure: str = parameter(
        "utilisation", help="the measure: utilisation, or ratio, the input over executed records, as in the code"
    )

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
    """+1 above the upper threshold, −1 below the lower one, else 0, also for an unknown value.

    >>> [step(value, 0.2, 0.8) for value in (0.1, 0.2, 0.8, 0.9, None)]
    [-1, 0, 0, 1, 0]
    """
    return 0 if value is None else (value > high) - (value < low)


def ordered(owner: str, low: float, high: float) -> None:
    """Raise OptionError unless ``low`` is below ``high``."""
    if low >= high:
        raise OptionError(f"{owner!r}: low={low:g} is not below high={high:g}")


def _ratio(operator: OperatorSnapshot) -> float | None:
    """The input over executed records; infinite if records came and none was executed."""
    if operator.rows_in is None or operator.served is None or not (operator.rows_in or operator.served):
        return None
    return operator.rows_in / operator.served if operator.served else float("inf")
