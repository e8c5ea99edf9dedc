"""The manager of the whole application sees all requests together, and grants some of them.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), sections
3.3 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from springtide.model.request import Migrate, RemoveExecutor, Request, Scale, Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import SLACK_S, GrantPolicy, View
from springtide.policy.scale import State
from springtide.policy.scale.bounds import shared_out
from springtide.policy.scale.measured import known_costs


@dataclass(frozen=True)
class ApplicationManager:
    """The state has ``clock``, the sum of the intervals; ``where``, each operator's replicas, and ``changed``, when they last
    changed; ``cost_s``, the cost of a record at each operator; ``response``, the response times since the last round, as their
    sum over time and that time; ``response_ms``, their mean in the last round that had any, unless there was a change since;
    and ``grant``, the state of the granting policy.
    """

    grant: GrantPolicy
    settle_s: float
    bounds_ms: Mapping[str, float]

    def initial(self) -> State:
        return {
            "clock": 0.0, "where": {}, "changed": None, "cost_s": {}, "response": [0.0, 0.0], "response_ms": None,
            "grant": self.grant.initial(),
        }  # fmt: skip

    def seen(self, state: State, snapshot: Snapshot) -> tuple[State, bool]:
        """The state after an interval, and whether to ignore that interval, because a change had not settled when it began."""
        now = state["clock"] + snapshot.interval_s
        # Not the degrees alone: a replica that moved pauses the application too.
        where = {o.name: [o.degree, *(replica.node for replica in o.replicas)] for o in snapshot.operators}
        changed, response_ms = state["changed"], state.get("response_ms")
        if any(_other(state["where"].get(name), home) for name, home in where.items()):
            changed, response_ms = state["clock"], None  # changes are made at the end of a round
        settling = changed is not None and state["clock"] < changed + self.settle_s - SLACK_S
        total, seconds = state["response"]
        if snapshot.latency is not None and math.isfinite(snapshot.latency.mean) and not settling:
            total, seconds = total + snapshot.latency.mean * snapshot.interval_s, seconds + snapshot.interval_s
        costs = state["cost_s"] if settling else known_costs(state["cost_s"], snapshot)
        return {
            **state, "clock": now, "where": where, "changed": changed, "cost_s": costs, "response": [total, seconds],
            "response_ms": response_ms,
        }, settling  # fmt: skip

    def bounds(self, state: State, snapshot: Snapshot) -> dict[str, float]:
        """R_max,op in ms: the option, else the operator's share of the target."""
        if not snapshot.target_s:
            return dict(self.bounds_ms)
        names = [operator.name for operator in snapshot.operators]
        return {**shared_out(snapshot.target_s, names, state["cost_s"]), **self.bounds_ms}

    def judge(self, state: State, requests: Sequence[Request], snapshot: Snapshot) -> tuple[State, tuple[Verdict, ...]]:
        """A round: a verdict on every request. A request is refused if its operator has changed since."""
        outdated = {id(request): reason for request in requests if (reason := _outdated(request, snapshot))}
        fresh = [request for request in requests if id(request) not in outdated]
        view = self._view(state, snapshot)
        grant, found = self.grant.decide(state["grant"], fresh, view)
        if len(found) != len(fresh):
            raise ValueError(f"{self.grant.name!r} gave {len(found)} verdicts on {len(fresh)} requests; it owes each one")
        stale = tuple(Verdict(request, None, outdated[id(request)]) for request in requests if id(request) in outdated)
        return {**state, "grant": grant, "response": [0.0, 0.0], "response_ms": view.response_ms}, (*found, *stale)

    def _view(self, state: State, snapshot: Snapshot) -> View:
        """With rounds of 1 s and batches of 4 s, three of four rounds measure nothing and use the last response time."""
        total, seconds = state["response"]
        target = snapshot.target_s
        executors = [executor for node in snapshot.nodes for executor in node.executors]
        return View(
            now=state["clock"],
            response_ms=total / seconds if seconds > 0 else state.get("response_ms"),
            target_ms=1000 * target if target else None,
            replicas=sum(operator.degree for operator in snapshot.operators),
            executors=len(executors) or None,
        )


def _other(before: Sequence[Any] | None, now: Sequence[Any]) -> bool:
    """Whether an operator's replicas changed: [their number, the node of each, where that is known]."""
    if before is None or before[0] != now[0]:
        return before is not None
    return len(before) == len(now) > 1 and sorted(before[1:]) != sorted(now[1:])


def _outdated(request: Request, snapshot: Snapshot) -> str | None:
    action = request.action
    if isinstance(action, RemoveExecutor):
        there = any(action.executor in node.executors for node in snapshot.nodes)
        return None if there else f"outdated: there is no executor {action.executor!r}"
    if not isinstance(action, Scale | Migrate):
        return None
    operator = snapshot.by_name.get(action.operator)
    if operator is None:
        return f"outdated: there is no operator {action.operator!r}"
    if isinstance(action, Scale):
        same = action.before == operator.degree
        return None if same else f"outdated: {action.operator} has {operator.degree} now, not {action.before}"
    homes = [replica.node for replica in operator.replicas]
    if action.origin not in homes[action.replica : action.replica + 1]:
        return f"outdated: replica {action.replica} of {action.operator} is not on {action.origin} any more"
    return None
