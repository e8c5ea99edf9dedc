"""Refuses small changes, which are not worth their price."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import ROUNDING
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Hysteresis(GuardPlugin):
    """A change passes only if it is at least ``share`` of the operator's degree.

    At 0.1, ten replicas may become nine or eleven, but twenty have to become eighteen or fewer, or 22 or more.
    """

    name = "hysteresis"
    source = "common practice"
    summary = "no changes that are small relative to the degree"

    share: float = parameter(0.1, "", 0, 1, help="the least change that passes, as a share of the degree")

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        return state, tuple(request for request in requests if self._worth_it(request, snapshot))

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        degree = snapshot[request.operator].degree
        return f"a change by {abs(request.degree - degree)} is less than {self.share:g} of {degree}"

    def _worth_it(self, request: Request, snapshot: Snapshot) -> bool:
        operator = snapshot.by_name.get(request.operator)
        return operator is None or abs(request.degree - operator.degree) >= self.share * operator.degree - ROUNDING
