"""A Markov chain of rates: EDF's estimate of the transitions between bins of rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.policy.forecast import ForecastPlugin, State
from springtide.policy.forecast.window import LARGEST
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Markov(ForecastPlugin):
    """The expected next rate, by counts of the transitions between bins: EDF, section 5.2.2.

    A rate λ is in bin j = ⌊λ/quantum⌋, at most ``bins`` − 1. The estimate of P_jj' is n_jj' / Σ_l n_jl, the share of the
    transitions from bin j that went to bin j'. For several steps ahead, P is applied as many times. EDF needs only bins. A
    forecast needs a rate: the mean of the rates seen in the bin, because j'·quantum would be half a bin too low. If the last
    rate's bin has no transition yet, the forecast is the last rate.

    >>> markov = Markov()
    >>> state = markov.initial()
    >>> for rate in (10, 60, 20, 110, 30):  # after the bin of 0 to 50: 60 and 110
    ...     state = markov.update(state, rate)
    >>> markov.ahead(state), markov.ahead(state, 2)  # 2 steps: both go back to the bin of 10, 20 and 30
    (85.0, 20.0)
    """

    name = "markov"
    source = "EDF (Cardellini et al., 2018), section 5.2.2"
    summary = "the mean of the rates that followed rates like the present"

    quantum: float = parameter(50.0, "records/s", 1e-9, help="the width of a bin of rates, λ̄")
    bins: int = parameter(200, "bins", 1, 2_000, "the number of bins; the last bin includes all higher rates")

    def initial(self) -> State:
        return {"last": None, "counts": {}, "seen": {}}

    def update(self, state: State, value: float) -> State:
        """``counts``: n_jj' by j and j'. ``seen``: by bin, the number of rates in it and their mean."""
        value = min(float(value), LARGEST)
        here = self._bin(value)
        number, mean = state["seen"].get(here, (0, 0.0))
        seen = {**state["seen"], here: [number + 1, mean + (value - mean) / (number + 1)]}
        counts = state["counts"]
        if state["last"] is not None:
            before = self._bin(state["last"])
            row = counts.get(before, {})
            counts = {**counts, before: {**row, here: row.get(here, 0) + 1}}
        return {"last": value, "counts": counts, "seen": seen}

    def ahead(self, state: State, steps: int = 1) -> float | None:
        if state["last"] is None:
            return None
        here = self._bin(state["last"])
        if here not in state["counts"]:
            return float(state["last"])
        chances = {here: 1.0}
        for _ in range(steps):
            chances = _followed(chances, state["counts"])
        return sum(chance * float(state["seen"][j][1]) for j, chance in chances.items())

    def _bin(self, value: float) -> str:
        """The bin of a rate, as text, because it is a key in JSON."""
        return str(int(min(value / self.quantum, self.bins - 1)))


def _followed(chances: Mapping[str, float], counts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The probabilities of the bins a step later. Every bin has a transition, except possibly that of the last value."""
    after: dict[str, float] = {}
    for j, chance in chances.items():
        row = counts[j]
        total = sum(row.values())
        for k, count in row.items():
            after[k] = after.get(k, 0.0) + chance * count / total
    return after
