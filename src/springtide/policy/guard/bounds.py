"""Limits on the replicas of every operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.by_operator import by_operator, check_names
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import amended
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Bounds(GuardPlugin):
    """No operator has fewer replicas than its least or more than its most, whatever the policy requests.

    An operator outside its bounds is brought back at once. If it cannot use its least, it gets the most that it can use.

    >>> Bounds(least=2, by_name="enrich=4-8, classify=1-1").of("enrich"), Bounds(least=2).of("enrich")
    ((4, 8), (2, 200))
    """

    name = "bounds"
    source = "common practice"
    summary = "the least and the most replicas of every operator"

    least: int = parameter(1, "replicas", 1, help="the least of every operator that by_name does not name")
    most: int = parameter(200, "replicas", 1, help="the most of every operator that by_name does not name")
    by_name: str = parameter("", help="least-most by operator, such as enrich=2-8,classify=1-4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise OptionError(f"'bounds': least={self.least} is above most={self.most}")
        _ = self._named  # a wrong text fails here, not in the first interval

    @cached_property
    def _named(self) -> Mapping[str, tuple[int, int]]:
        allowed = "least-most with 1 or more replicas, and most not below least"
        return by_operator("'bounds': by_name", self.by_name, _ends, allowed)

    def of(self, operator: str) -> tuple[int, int]:
        """The least and the most replicas of an operator."""
        return self._named.get(operator, (self.least, self.most))

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when ``by_name`` names an operator that does not exist."""
        check_names("'bounds': by_name", self._named, operators)

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        reviewed = []
        silent = dict(snapshot.by_name)
        for request in requests:
            operator = silent.pop(request.operator, None)
            within = request if operator is None else self._within(operator, request)
            if operator is None or within.degree != operator.degree:
                reviewed.append(within)
        for operator in silent.values():
            has = Request(operator.name, operator.degree, f"it has {operator.degree}")
            within = self._within(operator, has)
            if within is not has:
                reviewed.append(within)
        return state, tuple(reviewed)

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        least, most = self.of(request.operator)
        return f"its bounds are {least} to {most}"

    def _within(self, operator: OperatorSnapshot, request: Request) -> Request:
        least, most = self.of(operator.name)
        least = least if operator.limit is None else min(least, max(1, operator.limit))
        degree = min(max(request.degree, least), most)
        return request if degree == request.degree else amended(request, degree, f"its bounds are {least} to {most}")


def _ends(word: str) -> tuple[int, int] | None:
    least, _, most = (end.strip() for end in word.partition("-"))
    valid = least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)
    return (int(least), int(most)) if valid else None
