"""The measurements of every step of ``engine``, and the latencies that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from springtide.papers.elasticutor.state import ExecutorState

Floats = npt.NDArray[np.float64]


class History:
    """By step and executor: tuples ``sent`` and ``served``. By step: the senders' ``rate`` and ``backlog``, the source tuples
    ``done`` per second, the bytes of migrated state (``taken``), and the bytes per second of tuples to ``remote`` cores."""

    def __init__(self, steps: int, stations: int) -> None:
        self.sent, self.served, self.cost_s = (np.zeros((steps, stations)) for _ in range(3))
        self.rate, self.backlog, self.done, self.taken, self.remote = (np.zeros(steps) for _ in range(5))

    def add(self, step: int, state: ExecutorState, taken: float) -> None:
        self.sent[step], self.served[step], self.cost_s[step] = state.sent, state.served, state.mean_cost_s
        self.rate[step], self.backlog[step], self.taken[step] = state.last_rate, state.backlog, taken
        self.done[step] = state.served.sum() / state.per_tuple.sum() / state.step_s
        self.remote[step] = self.done[step] * state.remote_bytes

    def latencies(self, step_s: float) -> tuple[Floats, Floats]:
        """The waiting times in seconds of tuples sent in each step: at their sender, and at each executor, which are FIFO
        queues.

        The n-th tuple to arrive is the n-th to leave.
        """
        at = step_s * np.arange(len(self.rate) + 1, dtype=np.float64)
        sent = np.append(0.0, np.cumsum(self.rate * step_s))
        made = np.maximum.accumulate(sent + np.append(0.0, self.backlog))
        blocked = np.maximum(at[1:] - _reached(sent[1:], made, at), 0.0)
        inside = np.empty_like(self.sent)
        for j in range(inside.shape[1]):
            came, left = np.cumsum(self.sent[:, j]), np.append(0.0, np.cumsum(self.served[:, j]))
            inside[:, j] = np.maximum(_reached(came, left, at) - at[1:], 0.0)
        return blocked, inside + self.cost_s


def _reached(counts: Floats, grown: Floats, at: Floats) -> Floats:
    """The times at which a non-decreasing number first reached each of the counts."""
    found: Floats = np.interp(counts * (1 - 1e-12), grown, at)  # at a count, ``interp`` returns the end of a plateau
    return found


def percentile(values: Floats, weights: Floats, share: float) -> float:
    """
    >>> percentile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 8.0, 1.0]), 0.85)
    2.0
    """
    some = weights > 0
    if not some.any():
        return float("nan")
    found, counts = values[some], weights[some]
    order = np.argsort(found)
    heights = np.cumsum(counts[order])
    return float(found[order][min(len(found) - 1, int(np.searchsorted(heights, share * heights[-1])))])
