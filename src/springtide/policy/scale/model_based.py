"""EDF's model-based learning: it learns the changes of the input and the probability of being late; the rest is known.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5.2.2. Degrees change as requested, and the costs of replicas and changes are known. It remains to learn P, the transitions of
the input rate between bins, and ĉ_u, the probability that k replicas are late at a rate. All of Q is recomputed from these in
every interval, without trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.policy.scale.learning import ACTIONS, EdfLearner, Seen, Table

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ModelBased(EdfLearner):
    """Algorithm 2: update the estimates, then sweep once over all states and actions.

    A table has ``moves``: counts of transitions from bin to bin; ``late``: ĉ_u by k and bin, unweighted, from 0 to 1; ``q``: by
    k and bin, the row of Q for −1, 0 and +1, whose entries for degrees below 1 or above K_max are meaningless.
    """

    name = "model-based"
    source = "EDF, section 5.2.2"
    summary = "learns how the input moves and when an operator is late, and plans by it"

    def learn(self, table: Table, before: tuple[int, int] | None, now: Seen) -> Table:
        moves = table.get("moves", {})
        if before is not None:
            moves = _counted(moves, before[1], now.bin)
        late = _fitted(table.get("late"), (now.most, self.bins))
        late = monotone(late, now.k - 1, now.bin, (1 - self.alpha) * late[now.k - 1, now.bin] + self.alpha * now.late)
        q = self.backup(_fitted(table.get("q"), (now.most, self.bins, len(ACTIONS))), late, transitions(moves, self.bins))
        return {**table, "moves": moves, "late": late.tolist(), "q": q.tolist()}

    def q(self, table: Table, now: Seen) -> dict[int, float]:
        row = table["q"][now.k - 1][now.bin]
        return {action: row[action + 1] for action in now.actions}

    def backup(self, q: Floats, late: Floats, moves: Floats) -> Floats:
        """Line 4, for all states: Q(s, a) ← Σ over s' of p(s'|s, a)·(c(s, a, s') + γ·min over a' of Q(s', a'))."""
        most = len(q)
        best = q.copy()
        best[0, :, 0] = best[-1, :, 2] = np.inf  # not in A(s')
        ahead = (self.w_perf * late + self.gamma * best.min(axis=2)) @ moves.T  # by k' and the bin before
        swept = np.empty_like(q)
        for column, action in enumerate(ACTIONS):
            to = np.clip(np.arange(most) + action, 0, most - 1)
            known = self.w_rcf * (action != 0) + self.w_res * (to + 1) / most
            swept[:, :, column] = known[:, None] + ahead[to]
        return swept


def transitions(moves: Mapping[str, Mapping[str, int]], bins: int) -> Floats:
    """P: by bin, the shares of its transitions. A bin without transitions leads to itself."""
    found = np.zeros((bins, bins))
    for begin, ends in moves.items():
        for end, times in ends.items():
            found[min(int(begin), bins - 1), min(int(end), bins - 1)] += times
    never = found.sum(axis=1) == 0
    found[never, never] = 1.0
    shares: Floats = found / found.sum(axis=1, keepdims=True)
    return shares


def monotone(late: Floats, row: int, column: int, value: float) -> Floats:
    """ĉ_u with a new value, made monotone: more replicas or less input never increase it.

    >>> monotone(np.zeros((3, 3)), 1, 1, 0.5)
    array([[0. , 0.5, 0.5],
           [0. , 0.5, 0.5],
           [0. , 0. , 0. ]])
    """
    made = late.copy()
    made[row, column] = value
    made[: row + 1, column:] = np.maximum(made[: row + 1, column:], value)
    made[row:, : column + 1] = np.minimum(made[row:, : column + 1], value)
    return made


def _counted(moves: Mapping[str, Mapping[str, int]], begin: int, end: int) -> dict[str, Any]:
    ends = moves.get(str(begin), {})
    return {**moves, str(begin): {**ends, str(end): ends.get(str(end), 0) + 1}}


def _fitted(saved: Any, shape: tuple[int, ...]) -> Floats:
    """A saved table, or zeros. If K_max or the bins have changed, it is cut, or extended by the values at its edge."""
    if saved is None:
        return np.zeros(shape)
    table: Floats = np.array(saved)
    rows, columns = (np.minimum(np.arange(wanted), there - 1) for wanted, there in zip(shape[:2], table.shape[:2], strict=True))
    fitted: Floats = table[rows[:, None], columns]
    return fitted
