"""The greedy scheduler: every record goes to the target that will be free first (POSG, section III-A).

Its makespan is at most (2 − 1/k) times the optimum, whatever the order of the records (theorem 4.2); with the longest record
first, at most 4/3 − 1/(3k) times (Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
"""

from __future__ import annotations

from heapq import heapreplace

import numpy as np
import numpy.typing as npt

from springtide.policy.group import Share, Targets

Costs = npt.NDArray[np.float64]


def in_turn(share: Share) -> Targets:
    """Targets in turn. The first target differs from task to task and from batch to batch."""
    start = (share.origin + share.batch) % share.width
    return np.arange(start, start + share.rows, dtype=np.int64) % share.width


def in_order(costs: Costs, share: Share, factors: Costs) -> Targets:
    """Each record, in the given order, to the target with the least work. On a target it costs ``factors`` times as much."""
    start = (share.origin + share.batch) % share.width
    heap = [(0.0, place) for place in range(share.width)]  # (seconds of work, distance from the first target)
    speeds = np.roll(factors, -start).tolist()
    places = []
    for cost in costs.tolist():
        load, place = heap[0]
        places.append(place)
        heapreplace(heap, (load + cost * speeds[place], place))
    return (np.array(places, dtype=np.int64) + start) % share.width


def longest_first(costs: Costs, share: Share, factors: Costs) -> Targets:
    """The same with the longest record first, which needs all records at once."""
    order = np.argsort(-costs, kind="stable")
    targets = np.empty(share.rows, dtype=np.int64)
    targets[order] = in_order(costs[order], share, factors)
    return targets
