"""Delays scale-ins: a short lull changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import SLACK_S, amended, clock
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Stabilisation(GuardPlugin):
    """An operator scales in only to the largest degree that was wanted in the last window; scale-outs pass at once.

    Without a request, the present degree counts as wanted. So does the first degree of an operator, as in Kubernetes: a
    restart is no reason to scale in.

    With a window of 60 s and 8, 3, 5 and 4 replicas wanted at 30, 40, 50 and 60 s: at 90 s the largest of these still is 8, at
    100 s it is 5.
    """

    name = "stabilisation"
    source = "Kubernetes"
    summary = "scale-in only to the largest degree wanted in the last window"

    window: float = parameter(300.0, "s", 0, help="how far back wanted degrees count")

    def initial(self) -> State:
        return {"clock": 0.0, "wanted": {}}

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        now = clock(state, snapshot)
        asked = {request.operator: request.degree for request in requests}
        wanted = {}
        for operator in snapshot.operators:
            before = state["wanted"].get(operator.name, [[now, operator.degree]])
            recent = [[at, degree] for at, degree in before if at >= now - self.window - SLACK_S]
            wanted[operator.name] = _and(recent, now, asked.get(operator.name, operator.degree))
        reviewed = []
        for request in requests:
            found = snapshot.by_name.get(request.operator)
            if found is None or request.degree >= found.degree:
                reviewed.append(request)
                continue
            largest = int(wanted[request.operator][0][1])
            if largest < found.degree:
                why = f"that many were wanted in the last {self.window:g} s"
                reviewed.append(request if largest == request.degree else amended(request, largest, why))
        return {"clock": now, "wanted": wanted}, tuple(reviewed)

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        largest = int(state["wanted"][request.operator][0][1])
        return f"{largest} were wanted in the last {self.window:g} s, it has {snapshot[request.operator].degree}"


def _and(recent: list[list[float]], now: float, degree: int) -> list[list[float]]:
    """The wanted degrees with a new one. Earlier ones that are not larger are removed, so the first is the largest."""
    larger = list(recent)
    while larger and larger[-1][1] <= degree:
        larger.pop()
    return [*larger, [now, degree]]
