"""Hierarchical control as one policy: a round of all managers is one decision.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018). The
managers exchange values and share nothing: each operator's manager gets a local view, each node's manager reports its free
capacity, requests go up and verdicts come down. The number of messages in a round is linear in operators and nodes.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from springtide.control.hierarchy.application_manager import ApplicationManager
from springtide.control.hierarchy.gathering import gathered, whole
from springtide.control.hierarchy.local import local_views
from springtide.control.hierarchy.node_manager import NodeManager, hosted_by
from springtide.control.hierarchy.operator_manager import OperatorManager
from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.request import Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import Once, begun
from springtide.policy.by_operator import check_names
from springtide.policy.grant import SLACK_S, GrantPolicy
from springtide.policy.grant.all import All
from springtide.policy.place import Delays, Neighbourhood
from springtide.policy.scale import ScalePolicy, State, check

log = logging.getLogger("springtide.control")

MOST_VERDICTS = 100
"""Limits a round's verdicts in the state, where grants come first, and its reported refusals."""

ENDED_S = 60.0
"""A refusal that did not recur for this long, and the managers' periods, has ended, and is reported when it recurs. A manager
that measures nothing, as in an interval in which no batch ended, requests nothing, and will request it again."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Hierarchy:
    """A manager for each operator, each node and the application, which together are a scaling policy.

    ``policy`` decides for every operator by itself, with a state for each; ``grant`` says which requests are carried out.
    Managers of operators and nodes are asked every ``operator_period_s``, the application's every ``application_period_s``.
    Measurements are ignored for ``settle_s`` after a change. ``bounds_ms``: R_max,op, the wanted response time of an operator;
    the default is the operator's share of the target, by cost. With ``migration`` replicas, or executors,
    move away from nodes of which more than ``migrate_above`` is in use. ``delays``: between nodes, in ms.

    In the state ``verdicts`` are those of the last round, and ``messages`` is their number in it. ``refused`` are the refusals
    to report, each once until it has ended; ``refusing`` has the time when each last recurred.

    >>> from springtide.policy.grant.token_bucket import TokenBucket
    >>> from springtide.policy.scale.threshold import Threshold
    >>> Hierarchy(Threshold(), TokenBucket()).name
    'threshold, granted by token-bucket'
    """

    policy: ScalePolicy
    grant: GrantPolicy = field(default_factory=All)
    operator_period_s: float = 0.0
    application_period_s: float = 0.0
    settle_s: float = 0.0
    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    migration: bool = False
    migrate_above: float = 0.8
    delays: Delays = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.policy.name}, granted by {self.grant.name}"

    def __post_init__(self) -> None:
        for word in ("operator_period_s", "application_period_s", "settle_s"):
            if not 0 <= getattr(self, word) < float("inf"):
                raise OptionError(f"hierarchy: {word}={getattr(self, word)!r} is not allowed; give seconds, at least 0")
        if not 0 <= self.migrate_above <= 1:
            raise OptionError(f"hierarchy: migrate_above={self.migrate_above!r} is not allowed; give a share, from 0 to 1")
        for operator, bound in self.bounds_ms.items():
            if not 0 < bound < float("inf"):
                raise OptionError(f"hierarchy: bounds_ms of {operator!r} is {bound!r}; give milliseconds, more than 0")

    def initial(self) -> State:
        return {
            "application": self._application.initial(), "application_asked": None, "operators_asked": None, "gathered": None,
            "operators": {}, "failing": [], "pending": [], "verdicts": [], "messages": 0,
            "refused": [], "refusing": {},
        }  # fmt: skip

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when the policy, or a bound, names an operator that does not exist."""
        check(self.policy, operators)
        check_names("hierarchy: bounds_ms", self.bounds_ms, operators)

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        seed, watch = int(rng.integers(2**63)), _Watch(Once(state["failing"]))
        application, settling = self._application.seen(state["application"], snapshot)
        state = {**state, "application": application, "messages": 0, "refused": []}
        state, measured = self._measured(state, snapshot, settling)
        requests: list[Request] = []
        if measured is not None:
            state, requests = self._proposed(state, measured, seed, watch)
        state, verdicts = self._judged(state, requests, snapshot, watch)
        return {**state, "failing": list(watch.failing)}, _granted(verdicts)

    def refusals(self, state: State) -> list[Verdict]:
        """The new refusals of the application's manager."""
        return list(map(Verdict.of_refusal, state["refused"]))

    def _measured(self, state: State, snapshot: Snapshot, settling: bool) -> tuple[State, Snapshot | None]:
        """The snapshot for the managers of operators and nodes if their round is due; else it is gathered or ignored."""
        now = state["application"]["clock"]
        if settling:  # the period begins again when the change has settled; earlier measurements no longer apply
            return {**state, "operators_asked": now, "gathered": None}, None
        due = _due(state["operators_asked"], now, self.operator_period_s)
        if due and state["gathered"] is None:
            return {**state, "operators_asked": now}, snapshot
        sums = gathered(state["gathered"], snapshot)
        if due:
            return {**state, "operators_asked": now, "gathered": None}, whole(sums, snapshot)
        return {**state, "gathered": sums}, None

    def _proposed(self, state: State, measured: Snapshot, seed: int, watch: _Watch) -> tuple[State, list[Request]]:
        """Ask every manager, each with its own random source, so that the draws of one do not change those of another."""
        hosted = hosted_by(measured)
        places = tuple(self._nodes.report(node, hosted[node.name]) for node in measured.nodes)
        around = Neighbourhood(places, self.delays)
        operators, requests = dict(state["operators"]), []
        for view in local_views(measured, self._application.bounds(state["application"], measured)):
            name = view.operators[0].name
            who = f"operator {name}"
            found = watch.run(who, self._operators.propose, operators.get(name), view, around, _rng(seed, who))
            if found is not None:
                operators[name] = found[0]
                requests.append(found[1])
        if self.migration:
            for here in places:
                who = f"node {here.node}"
                requests.append(watch.run(who, self._nodes.propose, here, hosted[here.node], around, _rng(seed, who)))
        made = [request for request in requests if request is not None]
        messages = len(measured.operators) + len(places) + len(made)
        return {**state, "operators": operators, "messages": state["messages"] + messages}, made

    def _judged(
        self, state: State, requests: Sequence[Request], snapshot: Snapshot, watch: _Watch
    ) -> tuple[State, tuple[Verdict, ...]]:
        """The application's round, if it is due; until then the newest request of each manager waits."""
        anew = {request.manager for request in requests}
        waiting = [Request.from_json(pending) for pending in state["pending"] if pending["manager"] not in anew]
        waiting += requests
        now = state["application"]["clock"]
        if not _due(state["application_asked"], now, self.application_period_s):
            return {**state, "pending": [request.to_json() for request in waiting]}, ()
        judged = watch.run("the application", self._application.judge, state["application"], waiting, snapshot)
        if judged is None:
            judged = state["application"], tuple(Verdict(request, None, f"{self.grant.name} failed") for request in waiting)
        application, verdicts = judged
        ended_s = ENDED_S + self.operator_period_s + self.application_period_s
        refused, refusing = _newly_refused(state.get("refusing", {}), verdicts, now, ended_s)
        shown = sorted(verdicts, key=lambda verdict: not verdict.granted)[:MOST_VERDICTS]
        return {
            **state, "application": application, "application_asked": now, "pending": [],
            "verdicts": [verdict.to_json() for verdict in shown],
            "messages": state["messages"] + len(verdicts), "refused": refused, "refusing": refusing,
        }, verdicts  # fmt: skip

    @cached_property
    def _application(self) -> ApplicationManager:
        return ApplicationManager(self.grant, self.settle_s, self.bounds_ms)

    @cached_property
    def _operators(self) -> OperatorManager:
        return OperatorManager(self.policy)

    @cached_property
    def _nodes(self) -> NodeManager:
        return NodeManager(self.migrate_above)


@dataclass
class _Watch:
    """A manager may raise anything. It then requests nothing, is logged once until it succeeds, and the others go on."""

    failing: Once

    def run(self, manager: str, ask: Callable[..., _T], *given: object) -> _T | None:
        try:
            answer = ask(*given)
        except Exception:
            if self.failing.begins(manager):
                log.exception("the manager of %s failed; the others go on", manager)
            return None
        self.failing.end(manager)
        return answer


def _due(asked: float | None, now: float, period_s: float) -> bool:
    return asked is None or now - asked >= period_s - SLACK_S


def _rng(seed: int, manager: str) -> np.random.Generator:
    return np.random.default_rng(seed << 32 | zlib.crc32(manager.encode()))


def _granted(verdicts: Sequence[Verdict]) -> tuple[Request, ...]:
    """The granted requests: for each operator the last change of its degree, then the moves."""
    requests = [
        replace(verdict.request, action=verdict.action, reason=f"{verdict.request.reason}; granted: {verdict.reason}")
        for verdict in verdicts
        if verdict.action is not None
    ]
    degrees = {request.operator: request for request in requests if request.operator}
    return *degrees.values(), *(request for request in requests if not request.operator)


def _newly_refused(
    before: Mapping[str, float], verdicts: Sequence[Verdict], now: float, ended_s: float
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The refusals of a round to report, and when each reported refusal that has not ended last recurred."""
    refused = {verdict.subject: verdict for verdict in verdicts if not verdict.granted}
    granted = {verdict.subject for verdict in verdicts if verdict.granted}
    new, refusing = begun(before, refused, now, ended=granted, quiet_s=ended_s, most=MOST_VERDICTS)
    return [refused[subject].refusal() for subject in new], refusing
