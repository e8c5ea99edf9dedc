"""Which hosts give up executors: those where the state that has to move is least.

Elasticutor's algorithm 1 (``cores.py``) with two parties: this application, whose executors on a host share what is cached
there, and everybody else, who gets as many as are let go and has no state. One fewer of the x executors on a host, of X in all,
moves s·(X − x) / (X·(X − 1)) bytes, so a host with many gives one up before the last one of another host goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.policy.place.cores import assign


def leaving(there: Sequence[int], count: int) -> list[int]:
    """How many of the executors of each host go. At the same cost those of the first host do.

    >>> leaving([1, 3, 2], 3)
    [0, 2, 1]
    >>> leaving([1, 1, 1], 2)
    [1, 1, 0]
    """
    mine = np.array(there, dtype=np.int64)
    left = int(mine.sum()) - count
    if not count or not left:
        return [number if count else 0 for number in there]
    now = np.stack([mine, np.zeros_like(mine)], axis=1)
    after = assign(np.array([left, count]), now, mine, np.zeros(2, dtype=np.int64), np.array([1.0, 0.0]), np.zeros(2)).cores
    going: list[int] = after[:, 1].tolist()
    return going
