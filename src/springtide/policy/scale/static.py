"""Degrees that never change: the baseline for every other policy, and a way to pin degrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.by_operator import by_operator, check_names
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes


@dataclass(frozen=True)
class Static(ScalePlugin):
    """Every operator gets ``degree`` replicas, or its number in ``degrees``. It requests nothing for operators that have it.

    >>> Static(degree=2, degrees="enrich=4, classify=1").wanted("enrich")
    4
    """

    name = "static"
    source = "Springtide"
    summary = "the same degrees all the time"

    degree: int = parameter(1, "replicas", 1, help="the degree of every operator that degrees does not name")
    degrees: str = parameter("", help="degrees by operator, such as enrich=4,classify=1")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._by_name  # an invalid text fails here, not in the first interval

    @cached_property
    def _by_name(self) -> Mapping[str, int]:
        return by_operator("'static': degrees", self.degrees, _degree, "degree with a degree of 1 or more")

    def wanted(self, operator: str) -> int:
        return self._by_name.get(operator, self.degree)

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when ``degrees`` names an operator that does not exist."""
        check_names("'static': degrees", self._by_name, operators)

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        wanted = {
            o.name: (self.wanted(o.name), f"the degree is set to {self.wanted(o.name)}, it has {o.degree}")
            for o in snapshot.operators
        }
        return state, changes(snapshot, wanted)


def _degree(word: str) -> int | None:
    return int(word) if word.isdecimal() and int(word) >= 1 else None
