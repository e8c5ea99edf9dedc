"""A pause after every change, so that its effect shows before the next change."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import SLACK_S, clock
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Cooldown(GuardPlugin):
    """After a change of an operator, its next scale-out and its next scale-in each wait for their time.

    Only a change that happened counts: the degree differs from that of the previous interval. A refused request starts no
    pause.
    """

    name = "cooldown"
    source = "common practice"
    summary = "no second change of an operator for a while"

    before_out: float = parameter(30.0, "s", 0, help="from a change of an operator to its next scale-out")
    before_in: float = parameter(300.0, "s", 0, help="from a change of an operator to its next scale-in")

    def initial(self) -> State:
        return {"clock": 0.0, "degrees": {}, "changed": {}}

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        now, degrees = clock(state, snapshot), state["degrees"]
        changed = dict(state["changed"])
        for operator in snapshot.operators:
            if degrees.get(operator.name, operator.degree) != operator.degree:
                changed[operator.name] = state["clock"]  # changes are made after a review
        passed = tuple(request for request in requests if self._rested(request, snapshot, changed.get(request.operator), now))
        return {"clock": now, "degrees": {o.name: o.degree for o in snapshot.operators}, "changed": changed}, passed

    def _rested(self, request: Request, snapshot: Snapshot, changed: float | None, now: float) -> bool:
        if changed is None or request.operator not in snapshot.by_name:
            return True
        return now - changed >= self._rest(request, snapshot) - SLACK_S

    def _rest(self, request: Request, snapshot: Snapshot) -> float:
        return self.before_out if request.degree > snapshot[request.operator].degree else self.before_in

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        passed = state["clock"] - state["changed"].get(request.operator, 0.0)
        return f"it changed {passed:g} s ago, and rests for {self._rest(request, snapshot):g} s"
