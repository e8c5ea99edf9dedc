"""DABS-Storm's baseline `rlearning`: it stores which degree was enough for which input rate, and uses it again.

Kotto-Kombi, Lumineau, Lamarre, Rivetti, Busnel: DABS-Storm (2019), section 7.2: "mapping input rates to appropriate parallelism
degrees at runtime", with a knowledge base that was "acquired through a training phase carried out using the test data streams".
The input rate is cut into bins of 10 records/s. In a known bin the operator gets the degree that was enough, whatever its
backlog; in an unknown one its degree moves a step by the thresholds of `incremental`.

Two things differ from the authors' code. Knowledge is used at once, not in the next run only. And a degree was enough when the
operator was neither too busy nor too idle with it; the code requires input over executed of at most 1, the highest of which is
the least degree that kept up: here, too, the least degree that was enough is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.by_operator import check_names
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.incremental import ordered, step

Degrees = Mapping[str, int]
"""By bin, as text, the least degree that was enough."""


@dataclass(frozen=True)
class RLearning(ScalePlugin):
    """The degree that was enough for the mean input of the last ``window``, else a step up or down.

    Nothing is learnt in the first interval of a degree, which contains the pause of the change. A degree that is too small or
    too large for its bin is removed, and learnt again step by step.

    The state has ``degrees``: by operator and bin the degree that was enough; ``seen``: by operator the last measurements.
    """

    name = "rlearning"
    source = "DABS-Storm, section 7.2"
    summary = "the degree that was enough when the input was the same, else one step"

    bin: float = parameter(10.0, "records/s", 1e-6, help="the width of a bin of input rates")
    low: float = parameter(0.2, minimum=0, help="a utilisation below it is too low")
    high: float = parameter(0.8, minimum=0, help="a utilisation above it is too high")
    window: float = parameter(60.0, "s", 0, help="the input is averaged over this time; 0: over the interval")
    known: str = parameter("", help="learnt beforehand, such as: enrich 0:1 40:3; classify 0:2 (records/s:degree)")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered(self.name, self.low, self.high)
        _ = self._known  # an invalid text fails here, not in the first interval

    @cached_property
    def _known(self) -> Mapping[str, Degrees]:
        found: dict[str, Degrees] = {}
        for line in filter(None, (line.strip() for line in self.known.split(";"))):
            operator, *words = line.split()
            if not words:
                raise OptionError(f"'rlearning': known, {operator!r} has no rates; write such as '{operator} 0:1 40:3'")
            if operator in found:
                raise OptionError(f"'rlearning': known names {operator!r} twice; write all its rates in one place")
            found[operator] = dict(self._rule(operator, word) for word in words)
        return found

    def _rule(self, operator: str, word: str) -> tuple[str, int]:
        rate, _, degree = word.partition(":")
        if not rate.replace(".", "", 1).isdecimal() or not degree.isdecimal() or int(degree) < 1:
            allowed = "rate:degree, with a rate of 0 or more and a degree of 1 or more"
            raise OptionError(f"'rlearning': known, {operator!r}: {word!r} is not {allowed}")
        return self._bin(float(rate)), int(degree)

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when ``known`` names an operator that does not exist."""
        check_names("'rlearning': known", self._known, operators)

    def initial(self) -> State:
        return {"bin": self.bin, "degrees": {name: dict(rules) for name, rules in self._known.items()}, "seen": {}}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        before = state if state.get("bin") == self.bin else self.initial()  # a state with other bins does not fit
        degrees, seen = dict(before["degrees"]), dict(before["seen"])
        wanted, at = {}, snapshot.at if math.isfinite(snapshot.at) else 0.0
        for operator in snapshot.operators:
            if operator.rate is None:
                continue
            name, last = operator.name, seen.get(operator.name)
            if last is not None and last["degree"] == operator.degree:
                degrees[name] = self._learnt(degrees.get(name, {}), operator, last["backlog"])
            rates = self._recent(last, at, operator.rate)
            seen[name] = {"degree": operator.degree, "backlog": operator.backlog, "rates": rates}
            mean = sum(rate for _, rate in rates) / len(rates)
            wanted[name] = self._degree(degrees.get(name, {}), operator, mean)
        return {"bin": self.bin, "degrees": degrees, "seen": seen}, changes(snapshot, wanted)

    def _degree(self, known: Degrees, operator: OperatorSnapshot, mean: float) -> tuple[int, str]:
        """The wanted degree, and why."""
        enough = known.get(self._bin(mean))
        if enough is not None:
            return enough, f"input {mean:,.1f}/s, for which {enough} was enough"
        degree = operator.degree + step(operator.utilisation, self.low, self.high)
        used = "an unknown part" if operator.utilisation is None else f"{operator.utilisation:.0%}"
        return degree, f"input {mean:,.1f}/s, for which no degree is known, {used} busy: {degree}"

    def _learnt(self, known: Degrees, operator: OperatorSnapshot, backlog: int | None) -> Degrees:
        """The knowledge after an interval without a change of the degree; ``backlog``: at its begin."""
        if operator.rate is None or operator.utilisation is None:
            return known
        its_bin, degree = self._bin(operator.rate), operator.degree
        enough = known.get(its_bin, degree)
        verdict = step(operator.utilisation, self.low, self.high)
        if verdict == 0 or (verdict < 0 and degree == 1):
            return {**known, its_bin: min(enough, degree)}
        drains = operator.backlog is not None and backlog is not None and operator.backlog < backlog
        wrong = enough >= degree if verdict < 0 else enough <= degree and not drains  # a draining backlog explains the load
        return {other: least for other, least in known.items() if not (wrong and other == its_bin)}

    def _recent(self, last: Mapping[str, Any] | None, at: float, rate: float) -> list[list[float]]:
        """Times and rates within the window; times in the future are those of another run."""
        before = last["rates"] if last is not None else []
        return [pair for pair in before if at - self.window < pair[0] < at] + [[at, rate]]

    def _bin(self, rate: float) -> str:
        return str(int(min(rate / self.bin, 1e9)))
