"""Blocks scale-outs of an operator whose last scale-out had no effect, because the bottleneck is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import SLACK_S, clock
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Effectiveness(GuardPlugin):
    """After a scale-out without effect, scale-outs of the operator are refused for a while.

    From p to p' replicas, an operator that served s records/s is expected to serve s·(p'/p − 1) more. That is compared with
    the first interval that begins with the new replicas. The scale-out had no effect if the rise is below ``threshold`` of the
    expected one, while the backlog at the end of the interval was at least the expected rise: with a smaller backlog, there
    was nothing to serve. Flink's autoscaler has such a rule, without the backlog.

    From 2 to 4 replicas at 100/s, intervals of 10 s: 100/s more are expected. At 105/s with 3,000 records waiting, the rise
    of 5/s is less than a tenth of 100/s, and 3,000 ≥ 100/s · 10 s: no more scale-outs for ten minutes.
    """

    name = "effectiveness"
    source = "Flink autoscaler"
    summary = "no further scale-out for a while after one without effect"

    threshold: float = parameter(0.1, "", 0, 1, help="the least rise of the served records, as a share of the expected rise")
    settle: float = parameter(0.0, "s", 0, help="until new replicas count; at least the start-up time of a replica")
    pause: float = parameter(600.0, "s", 0, help="how long scale-outs of the operator are refused")

    def initial(self) -> State:
        return {"clock": 0.0, "operators": {}}

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        now = clock(state, snapshot)
        before = state["operators"]
        known = {o.name: self._observed(before.get(o.name), o, snapshot, state["clock"], now) for o in snapshot.operators}
        passed = tuple(
            request
            for request in requests
            if request.operator not in known
            or request.degree <= snapshot[request.operator].degree
            or now >= known[request.operator]["until"] - SLACK_S
        )
        return {"clock": now, "operators": known}, passed

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        left = state["operators"][request.operator]["until"] - state["clock"]
        return f"its last scale-out changed nothing; none for another {left:g} s"

    def _observed(
        self, before: Mapping[str, Any] | None, operator: OperatorSnapshot, snapshot: Snapshot, began: float, now: float
    ) -> dict[str, Any]:
        """The state of an operator: its degree, its last records/s, a scale-out on trial, and the end of its pause.

        A scale-out during a trial does not change the trial: more replicas only make it easier to pass.
        """
        known = before or {"degree": operator.degree, "served": None, "trial": None, "until": 0.0}
        last, trial, until = known["served"], known["trial"], known["until"]
        if operator.degree < known["degree"]:
            trial = None
        elif operator.degree > known["degree"] and trial is None and last:
            expected = last * (operator.degree / max(1, known["degree"]) - 1)
            trial = {"served": last, "expected": expected, "due": began + max(self.settle, snapshot.starting_s or 0.0)}
        served = operator.served / snapshot.interval_s if operator.served is not None and now - began > SLACK_S else None
        if trial and began >= trial["due"] - SLACK_S and served is not None and operator.backlog is not None:
            waited = operator.backlog >= trial["expected"] * snapshot.interval_s
            if waited and served - trial["served"] < self.threshold * trial["expected"]:
                until = now + self.pause
            trial = None
        return {"degree": operator.degree, "served": last if served is None else served, "trial": trial, "until": until}
