"""Degrees that never change: the baseline for every other policy, and the way to pin what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from springtide.errors import OptionError, nearest
from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.registry import parameter, validate
from springtide.policy.scale import State, changes


@dataclass(frozen=True)
class Static:
    """Every operator gets ``degree`` replicas, or what ``degrees`` says for it.

    It asks for the difference between that and what an operator has, and is silent once there is none.

    >>> Static(degree=2, degrees="enrich=4, classify=1").wanted("enrich")
    4
    """

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "static"
    source: ClassVar[str] = "Springtide"
    summary: ClassVar[str] = "the same degrees all the time"

    degree: int = parameter(1, "replicas", 1, help="the degree of every operator that degrees does not name")
    degrees: str = parameter("", help="degrees by operator, such as enrich=4,classify=1")

    def __post_init__(self) -> None:
        validate(self)
        _ = self._by_name  # a wrong text fails here, not in the first interval

    @cached_property
    def _by_name(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in self.degrees.split(","))):
            operator, _, degree = (word.strip() for word in part.rpartition("="))
            if not operator or not degree.isdecimal() or int(degree) < 1:
                allowed = "operator=degree with a degree of 1 or more"
                raise OptionError(f"'static': degrees={self.degrees!r}: {part!r} is not {allowed}")
            if operator in found:
                raise OptionError(f"'static': degrees={self.degrees!r} names {operator!r} twice")
            found[operator] = int(degree)
        return found

    def wanted(self, operator: str) -> int:
        """The degree that an operator is to have."""
        return self._by_name.get(operator, self.degree)

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when ``degrees`` names an operator that does not exist."""
        for operator in self._by_name:
            if operator not in operators:
                hint = nearest(operator, operators)
                raise OptionError(f"'static': degrees names {operator!r}, which is no operator; {hint}")

    def initial(self) -> State:
        return {}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        wanted = {
            o.name: (self.wanted(o.name), f"the degree is set to {self.wanted(o.name)}, it has {o.degree}")
            for o in snapshot.operators
        }
        return state, changes(snapshot, wanted)
