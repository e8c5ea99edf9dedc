"""The common part of EDF's two learners: the states, the actions, the cost, the bounds of the operators, and algorithm 1.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5.2. An operator's state is s = (k, λ): its replicas, and the bin of its input rate. In every interval it may add or remove a
replica, or do neither; Q(s, a) is the long-run cost of action a, and the action with the least cost is chosen.

A request may be refused. Therefore the action that took effect is learned: the difference between the degrees of two intervals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.by_operator import by_operator, check_names
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.bounds import shared_out
from springtide.policy.scale.measured import known_costs
from springtide.policy.scale.tide import DEFAULT_TARGET_S

ACTIONS = (-1, 0, 1)
"""One replica less, no change, one replica more: the columns of Q."""

MAX_REPLICAS = 512
"""Limits K_max: a larger table would take too long to learn."""

Table = Mapping[str, Any]
"""The knowledge about an operator. ``last``: the state [k, bin] of the previous interval; ``gain``: the largest gain so far."""


@dataclass(frozen=True)
class Seen:
    """An operator in an interval: its state, whether its response time was above its bound, and K_max."""

    k: int
    bin: int
    late: bool
    most: int

    @property
    def actions(self) -> tuple[int, ...]:
        """A(s): from one replica to K_max."""
        return tuple(action for action in ACTIONS if 1 <= self.k + action <= self.most)


@dataclass(frozen=True)
class EdfLearner(ScalePlugin, ABC):
    """Algorithm 1, for every operator separately; subclasses learn Q (line 5).

    An operator is skipped in intervals in which its rate, response time or bound is unknown, and the next state is then not
    learned as an outcome. An operator limited to one replica has nothing to learn.
    """

    target_ms: float = parameter(0.0, "ms", 0, help="R_max,op of every operator; 0: the run's target, or 1 s, divided by cost")
    targets: str = parameter("", help="R_max,op by operator, in ms, such as parser=5,partialRank=210")
    most: int = parameter(8, "replicas", 1, help="K_max of operators without a limit")
    bin: float = parameter(50.0, "records/s", 1e-6, help="λ̄: the width of a bin of input rates")
    bins: int = parameter(20, minimum=1, maximum=10_000, help="the number of bins; the last one contains all higher rates")
    w_perf: float = parameter(0.4, minimum=0, maximum=1, help="the cost of an interval above the bound")
    w_res: float = parameter(0.4, minimum=0, maximum=1, help="the cost of K_max replicas for an interval")
    w_rcf: float = parameter(0.2, minimum=0, maximum=1, help="the cost of a change; the three weights sum to 1")
    alpha: float = parameter(0.1, minimum=0, maximum=1, help="α: the weight of the latest interval")
    gamma: float = parameter(0.99, minimum=0, maximum=0.999999, help="γ: the weight of a cost an interval later")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._named  # an invalid text fails here, not in the first interval
        total = self.w_perf + self.w_res + self.w_rcf
        if not math.isclose(total, 1, abs_tol=1e-6):
            weights = f"w_perf={self.w_perf:g}, w_res={self.w_res:g}, w_rcf={self.w_rcf:g}"
            raise OptionError(f"{self.name!r}: {weights} sum to {total:g}; they have to sum to 1")

    @abstractmethod
    def learn(self, table: Table, before: tuple[int, int] | None, now: Seen) -> Table:
        """The table after an interval; ``before``: the previous state, None if it is unknown."""

    @abstractmethod
    def q(self, table: Table, now: Seen) -> dict[int, float]:
        """Q(s, a) of the possible actions."""

    def explores(self, rng: np.random.Generator) -> bool:
        """Whether to take a random action now instead of the best."""
        return False

    def cost(self, action: int, now: Seen) -> float:
        """Equation 1 for the interval in which ``now`` was measured, and the action before it: now.k is k + a."""
        return self.w_rcf * (action != 0) + self.w_perf * now.late + self.w_res * now.k / now.most

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when ``targets`` names an operator that does not exist."""
        check_names(f"{self.name!r}: targets", self._named, operators)

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        costs = known_costs(state.get("cost_s", {}), snapshot)
        bounds = self.bounds(snapshot, costs)
        tables = dict(state.get("tables", {})) if state.get("bin") == self.bin else {}  # tables with other bins are useless
        wanted, scores = {}, {}
        for operator in snapshot.operators:
            name, bound = operator.name, bounds.get(operator.name)
            table, now = tables.get(name, {}), self._seen(operator, bound, snapshot.slots)
            if now is None:
                if table:
                    tables[name] = {**table, "last": None}
                continue
            last = table.get("last")
            table = self.learn(table, (last[0], last[1]) if last else None, now)
            q = self.q(table, now)
            action, how = self._choose(q, rng)
            gain = max(1.0, table.get("gain", 1.0), *(q[0] - value for value in q.values()))
            tables[name] = {**table, "last": [now.k, now.bin], "gain": gain}
            if action:
                scores[name] = (q[0] - q[action]) / gain
                wanted[name] = operator.degree + action, f"{_described(operator, bound, q)}, {how}: {operator.degree + action}"
        requests = tuple(replace(request, score=scores[request.operator]) for request in changes(snapshot, wanted))
        return {"bin": self.bin, "tables": tables, "cost_s": costs}, requests

    def bounds(self, snapshot: Snapshot, cost_s: Mapping[str, float]) -> dict[str, float]:
        """R_max,op in ms: the parameter, or the operator's share of the run's target, or of ``tide``'s default of 1 s."""
        names = [operator.name for operator in snapshot.operators]
        target_s = snapshot.target_s or DEFAULT_TARGET_S
        rest = dict.fromkeys(names, self.target_ms) if self.target_ms else shared_out(target_s, names, cost_s)
        return {**rest, **self._named}

    @cached_property
    def _named(self) -> Mapping[str, float]:
        return by_operator(f"{self.name!r}: targets", self.targets, _bound, "milliseconds, with more than 0 of them")

    def _seen(self, operator: OperatorSnapshot, bound: float | None, slots: int | None) -> Seen | None:
        most = min(operator.limit or self.most, slots or MAX_REPLICAS, MAX_REPLICAS)
        late = None if bound is None else _late(operator, bound)
        if operator.rate is None or late is None or most < 2:
            return None
        k = max(1, min(operator.degree, most))
        return Seen(k, int(min(operator.rate / self.bin, self.bins - 1)), late, most)

    def _choose(self, q: Mapping[int, float], rng: np.random.Generator) -> tuple[int, str]:
        """Line 3: the best action, or a random one. Ties prefer no change, then more replicas."""
        if self.explores(rng):
            return tuple(q)[rng.integers(len(q))], "tried"
        return min(q, key=lambda action: (q[action], abs(action), -action)), "the least"


def _bound(word: str) -> float | None:
    try:
        bound = float(word)
    except ValueError:
        return None
    return bound if 0 < bound < math.inf else None


def _late(operator: OperatorSnapshot, bound_ms: float) -> bool | None:
    """Whether the response time exceeded the bound; False without arrivals and backlog."""
    if operator.latency_ms is not None:
        return operator.latency_ms > bound_ms
    return False if operator.rate == 0 and operator.backlog == 0 else None


def _described(operator: OperatorSnapshot, bound: float | None, q: Mapping[int, float]) -> str:
    took = "nothing came" if operator.latency_ms is None else f"{operator.latency_ms:,.1f} ms of {bound:,.1f} ms"
    costs = ", ".join(f"{value:.3f} with {operator.degree + action}" for action, value in q.items())
    return f"input {operator.rate:,.0f}/s, {took}, expected cost {costs}"
