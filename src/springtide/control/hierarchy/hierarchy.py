"""Hierarchical control as one policy: a round of all managers is one decision.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018). The
managers exchange values and share nothing: a local view goes to each operator's manager, what a node has left comes from each
node's manager, proposals go up and verdicts come down. So many messages a round are linear in operators and nodes.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from springtide.control.hierarchy.application_manager import ApplicationManager
from springtide.control.hierarchy.gathering import gathered, whole
from springtide.control.hierarchy.local import local_views
from springtide.control.hierarchy.node_manager import NodeManager, hosted_by
from springtide.control.hierarchy.operator_manager import OperatorManager
from springtide.errors import OptionError, nearest
from springtide.model.plan import Request
from springtide.model.request import Proposal, Scale, Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import SLACK_S, GrantPolicy
from springtide.policy.grant.all import All
from springtide.policy.place import Delays, Neighbourhood
from springtide.policy.scale import ScalePolicy, State, check

log = logging.getLogger("springtide.control")

KEPT = 100
"""So many verdicts of a round are kept in the state, those that granted something first; so many refusals are told in one."""

ENDED_S = 60.0
"""A request that was not refused for so long, and the managers' periods, is no longer; told again if it comes again. A manager
that measures nothing, as in an interval in which no batch ended, asks for nothing, and will ask again."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Hierarchy:
    """A manager for each operator, one for each node, one for the application; put together they are a scaling policy.

    ``policy`` decides for every operator by itself, with a state for each; ``grant`` says which proposals are carried out.
    Managers of operators and nodes are asked every ``operator_period_s``, the application's every ``application_period_s``.
    After a change what is measured is held back for ``settle_s``. ``bounds_ms``: R_max,op, the response time that is wanted of
    an operator; where it is not given, the operator's share of the target, by cost. With ``migration`` replicas, or executors,
    move away from nodes of which more than ``migrate_above`` is in use. ``delays``: between nodes, in ms.

    In the state ``verdicts`` are those of the last round, and ``messages`` how many were exchanged in it. ``refused`` are the
    refusals that are to be told, each once, and again when it had ended in between; ``refusing`` says when those that go on
    were last refused.

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

    if TYPE_CHECKING:
        name: ClassVar[str]
    else:

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
        for name in self.bounds_ms:
            if name not in operators:
                raise OptionError(f"hierarchy: bounds_ms names {name!r}, which is no operator; {nearest(name, operators)}")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        seed, watch = int(rng.integers(2**63)), _Watch(state["failing"])
        application, held = self._application.seen(state["application"], snapshot)
        state = {**state, "application": application, "messages": 0, "refused": []}
        state, measured = self._measured(state, snapshot, held)
        proposals: list[Proposal] = []
        if measured is not None:
            state, proposals = self._proposed(state, measured, seed, watch)
        state, verdicts = self._judged(state, proposals, snapshot, watch)
        return {**state, "failing": watch.failing}, _requests(verdicts)

    def refusals(self, state: State) -> list[Mapping[str, Any]]:
        """What the application's manager newly refused."""
        return list(state["refused"])

    def _measured(self, state: State, snapshot: Snapshot, held: bool) -> tuple[State, Snapshot | None]:
        """What managers of operators and nodes see, when they are to be asked; else it is gathered, or held back."""
        now = state["application"]["clock"]
        if held:  # the period begins again when the change has settled, and what was before it tells nothing any more
            return {**state, "operators_asked": now, "gathered": None}, None
        due = _due(state["operators_asked"], now, self.operator_period_s)
        if due and state["gathered"] is None:
            return {**state, "operators_asked": now}, snapshot
        sums = gathered(state["gathered"], snapshot)
        if due:
            return {**state, "operators_asked": now, "gathered": None}, whole(sums, snapshot)
        return {**state, "gathered": sums}, None

    def _proposed(self, state: State, measured: Snapshot, seed: int, watch: _Watch) -> tuple[State, list[Proposal]]:
        """Every manager is asked, with a random source of its own, so that what one draws changes nothing for the others."""
        hosted = hosted_by(measured)
        places = tuple(self._nodes.tell(node, hosted[node.name]) for node in measured.nodes)
        around = Neighbourhood(places, self.delays)
        operators, proposals = dict(state["operators"]), []
        for view in local_views(measured, self._application.bounds(state["application"], measured)):
            name = view.operators[0].name
            who = f"operator {name}"
            found = watch.run(who, self._operators.propose, operators.get(name), view, around, _rng(seed, who))
            if found is not None:
                operators[name] = found[0]
                proposals.append(found[1])
        if self.migration:
            for here in places:
                who = f"node {here.node}"
                proposals.append(watch.run(who, self._nodes.propose, here, hosted[here.node], around, _rng(seed, who)))
        made = [proposal for proposal in proposals if proposal is not None]
        messages = len(measured.operators) + len(places) + len(made)
        return {**state, "operators": operators, "messages": state["messages"] + messages}, made

    def _judged(
        self, state: State, proposals: Sequence[Proposal], snapshot: Snapshot, watch: _Watch
    ) -> tuple[State, tuple[Verdict, ...]]:
        """The application's round, if it is time for one; till then proposals wait, of each manager the newest."""
        anew = {proposal.manager for proposal in proposals}
        waiting = [Proposal.from_json(one) for one in state["pending"] if one["manager"] not in anew]
        waiting += proposals
        now = state["application"]["clock"]
        if not _due(state["application_asked"], now, self.application_period_s):
            return {**state, "pending": [proposal.to_json() for proposal in waiting]}, ()
        judged = watch.run("the application", self._application.judge, state["application"], waiting, snapshot)
        if judged is None:
            judged = state["application"], tuple(Verdict(one, None, f"{self.grant.name} failed") for one in waiting)
        application, verdicts = judged
        ended_s = ENDED_S + self.operator_period_s + self.application_period_s
        told, refusing = _refused(state.get("refusing", {}), verdicts, now, ended_s)
        kept = sorted(verdicts, key=lambda verdict: not verdict.granted)[:KEPT]
        return {
            **state, "application": application, "application_asked": now, "pending": [],
            "verdicts": [verdict.to_json() for verdict in kept],
            "messages": state["messages"] + len(verdicts), "refused": told, "refusing": refusing,
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


class _Watch:
    """Managers are anybody's code: one that raises proposes nothing, is told of once, and the others go on."""

    def __init__(self, before: Sequence[str]) -> None:
        self._last: dict[str, bool] = dict.fromkeys(before, True)  # of those that are not asked now, too
        self._logged = frozenset(before)

    @property
    def failing(self) -> list[str]:
        return [manager for manager, failed in self._last.items() if failed]

    def run(self, manager: str, ask: Callable[..., _T], *given: object) -> _T | None:
        try:
            answer = ask(*given)
        except Exception:
            if manager not in self._logged:
                log.exception("the manager of %s failed; the others go on", manager)
            self._last[manager] = True
            return None
        if manager in self._logged:
            self._last[manager] = False
        return answer


def _due(asked: float | None, now: float, period_s: float) -> bool:
    return asked is None or now - asked >= period_s - SLACK_S


def _rng(seed: int, manager: str) -> np.random.Generator:
    return np.random.default_rng(seed << 32 | zlib.crc32(manager.encode()))


def _requests(verdicts: Sequence[Verdict]) -> tuple[Request, ...]:
    """What was granted; the reason has the verdict's too. A scaling that says nothing of places is its degree."""
    degrees, moves = {}, []
    for verdict in verdicts:
        action, score = verdict.action, verdict.proposal.score
        reason = f"{verdict.proposal.reason}; granted: {verdict.reason}"
        if isinstance(action, Scale):
            placed = action if action.nodes else None
            degrees[action.operator] = Request(action.operator, action.after, reason, score, placed)
        elif action is not None:
            moves.append(Request("", 0, reason, score, action))
    return *degrees.values(), *moves


def _refused(
    before: Mapping[str, float], verdicts: Sequence[Verdict], now: float, ended_s: float
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """What is to be told of a round, and when each that was told, and has not ended, was last refused."""
    found = {_what(verdict.proposal): verdict for verdict in verdicts if not verdict.granted}
    granted = {_what(verdict.proposal) for verdict in verdicts if verdict.granted}
    going_on = {what: last for what, last in before.items() if what not in granted and now - last <= ended_s}
    new = [what for what in found if what not in going_on][:KEPT]
    told = [{"refused": found[what].proposal.to_json(), "reason": found[what].reason} for what in new]
    return told, {**going_on, **{what: now for what in found if what in going_on}, **dict.fromkeys(new, now)}


def _what(proposal: Proposal) -> str:
    """Who wants which kind of change; not how much of it, or why: the numbers are others in every round."""
    return f"{proposal.manager}: {proposal.action.kind}"
