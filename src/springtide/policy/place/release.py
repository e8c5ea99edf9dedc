"""The hosts whose executors are released: those where the least state has to move.

Elasticutor's algorithm 1 (``cores.py``) with two parties: this application, whose executors on a host share its cache, and all
others, which get the released executors and have no state. Releasing one of x executors on a host, of X in all, moves
s·(X − x) / (X·(X − 1)) bytes, so a host with many releases an executor before another host loses its last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.policy.place.cores import assign


def leaving(there: Sequence[int], count: int) -> list[int]:
    """The number of executors that each host releases. At equal cost the first host comes first.

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
