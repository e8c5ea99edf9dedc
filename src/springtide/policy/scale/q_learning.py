"""EDF's Q-learning: it learns the costs of actions by trying them, without a model of the operator.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5.2.1. Q starts at 0, below every real cost, so that every action of a state is tried at least once. That takes long: in the
paper's 12 hours it never stopped changing degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from springtide.policy.registry import parameter
from springtide.policy.scale.learning import ACTIONS, EdfLearner, Seen, Table


@dataclass(frozen=True)
class QLearning(EdfLearner):
    """Equation 2: Q(s, a) ← (1 − α)·Q(s, a) + α·(c + γ·min over a' of Q(s', a')), for the action that took effect.

    A table has ``q``: by state, written as "k,bin", the row of Q for −1, 0 and +1. It omits states that were never left.
    """

    name = "q-learning"
    source = "EDF, section 5.2.1"
    summary = "learns by trying what a replica more or less costs in the long run"

    epsilon: float = parameter(0.05, minimum=0, maximum=1, help="ε: the probability of a random action instead of the best")

    def learn(self, table: Table, before: tuple[int, int] | None, now: Seen) -> Table:
        if before is None or now.k - before[0] not in ACTIONS:  # not a change by this learner
            return table
        action = now.k - before[0]
        row = list(_row(table, *before))
        ahead = self.cost(action, now) + self.gamma * min(self.q(table, now).values())
        row[action + 1] = (1 - self.alpha) * row[action + 1] + self.alpha * ahead
        return {**table, "q": {**table.get("q", {}), _key(*before): row}}

    def q(self, table: Table, now: Seen) -> dict[int, float]:
        row = _row(table, now.k, now.bin)
        return {action: row[action + 1] for action in now.actions}

    def explores(self, rng: np.random.Generator) -> bool:
        return bool(rng.random() < self.epsilon)


def _key(k: int, rate_bin: int) -> str:
    return f"{k},{rate_bin}"


def _row(table: Table, k: int, rate_bin: int) -> list[float]:
    row: list[float] = table.get("q", {}).get(_key(k, rate_bin), [0.0, 0.0, 0.0])
    return row
