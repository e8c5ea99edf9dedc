"""More replicas that bring nothing: the bottleneck is elsewhere, and more of them will not help either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.guard import State
from springtide.policy.guard.shared import SLACK_S, clock
from springtide.policy.registry import parameter, validate


@dataclass(frozen=True)
class Effectiveness:
    """A scale-out that changed nothing is not followed by another one for a while.

    From p to p' replicas, an operator that served s records/s is expected to serve s·(p'/p − 1) more. In the first interval
    that begins when the new replicas are there, it is compared with what it did serve. The scale-out changed nothing if the
    rise is below ``threshold`` of that, while at the end of the interval at least as many records waited as were expected to
    be served: with fewer, there was nothing to serve. Flink's autoscaler has such a rule, without the look at the backlog.

    From 2 to 4 replicas at 100/s, intervals of 10 s: 100/s more are expected. At 105/s with 3,000 records waiting, the rise
    of 5/s is less than a tenth of 100/s, and 3,000 ≥ 100/s · 10 s: no more scale-outs for ten minutes.
    """

    kind: ClassVar[str] = "guard"
    name: ClassVar[str] = "effectiveness"
    source: ClassVar[str] = "Flink autoscaler"
    summary: ClassVar[str] = "a scale-out that changed nothing is not repeated for a while"

    threshold: float = parameter(0.1, "", 0, 1, help="the least rise of what is served, as a share of what was expected")
    settle: float = parameter(0.0, "s", 0, help="until new replicas count; at least what the run says that they take to come")
    pause: float = parameter(600.0, "s", 0, help="for how long scale-outs of the operator are held back")

    def __post_init__(self) -> None:
        validate(self)

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
        """What is remembered of an operator: its degree, what it last served in a second, a scale-out on trial, and until when
        scale-outs are held back.

        A scale-out during a trial changes nothing in it: more replicas only make it easier to pass.
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
