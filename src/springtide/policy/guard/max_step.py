"""Limits the change of an operator's degree in an interval."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import ROUNDING, amended
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class MaxStep(GuardPlugin):
    """In an interval, an operator's degree changes by at most a number of replicas or a share of it, whichever is more.

    Both are needed: a replica at a time is slow for a hundred, and half of one replica is none.

    >>> guard = MaxStep(replicas_out=4, share_out=1.0)
    >>> guard.reach(1), guard.reach(10)
    ((1, 5), (5, 20))
    """

    name = "max-step"
    source = "Kubernetes"
    summary = "limits the change of a degree in an interval, to a number of replicas or a share"

    replicas_out: int = parameter(4, "replicas", 1, help="how many more are always allowed")
    share_out: float = parameter(1.0, "", 0, 1_000, help="or this share of the degree more")
    replicas_in: int = parameter(1, "replicas", 1, help="how many fewer are always allowed")
    share_in: float = parameter(0.5, "", 0, 1, help="or this share of the degree fewer")

    def reach(self, degree: int) -> tuple[int, int]:
        """The least and the most replicas after the next change from this degree."""
        fewer = max(self.replicas_in, int(self.share_in * degree + ROUNDING))
        more = max(self.replicas_out, int(self.share_out * degree + ROUNDING))
        return max(1, degree - fewer), degree + more

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        reviewed = []
        for request in requests:
            operator = snapshot.by_name.get(request.operator)
            within = request if operator is None else self._within_reach(request, operator.degree)
            if operator is None or within.degree != operator.degree:
                reviewed.append(within)
        return state, tuple(reviewed)

    def _within_reach(self, request: Request, has: int) -> Request:
        least, most = self.reach(has)
        degree = min(max(request.degree, least), most)
        return request if degree == request.degree else amended(request, degree, f"at once {has} become {least} to {most}")
