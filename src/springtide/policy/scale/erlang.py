"""Erlang's formulas: the waits before k replicas that share a queue (M/M/k).

Records arrive at random at a rate λ, and each takes 1/μ on average, exponentially distributed. ``offered`` (a = λ/μ) is the
load in replicas, i.e. the mean number of busy replicas. With a ≥ k the queue grows without bound.

There are no factorials, because 171! does not fit a float. Relative errors are below 1e-11 for up to 10,000 servers.

>>> round(waiting_share(8.0, 10, erlang_b(8.0, 10)), 4)  # four records in ten wait
0.4092
"""

from __future__ import annotations

import math


def erlang_b(offered: float, servers: int) -> float:
    """B: the share of records that are lost if none may wait.

    The recursion 1/B(k) = 1 + (k/a)·1/B(k-1) with 1/B(0) = 1 is unrolled from the top: 1 + (k/a)·(1 + ((k-1)/a)·(1 + …)). It
    ends when the remaining terms no longer matter: at a = k = 10,000 after 818 terms. For k far above a the sum overflows to
    infinity, and B is rightly 0: it is below 1e-308.
    """
    if servers <= 0:
        return 1.0
    if offered <= 0:
        return 0.0
    total = term = 1.0
    for left in range(servers, 0, -1):
        term *= left / offered
        total += term
        if (left <= offered and term < 1e-17 * total) or math.isinf(total):  # terms grow until left = a, then shrink
            break
    return 1.0 / total


def erlang_b_next(offered: float, servers: int, blocking: float) -> float:
    """B of ``servers`` from the B of one server fewer: a step of the recursion."""
    return offered * blocking / (servers + offered * blocking)


def waiting_share(offered: float, servers: int, blocking: float) -> float:
    """C, the share of records that wait, from B: k·B / (k - a·(1 - B)); 1 if the load is too high."""
    if offered >= servers:
        return 1.0
    return servers * blocking / (servers - offered * (1.0 - blocking))


def queue_length(offered: float, servers: int, blocking: float) -> float:
    """The mean number of waiting records, from B: a·C/(k - a); infinite if the load is too high.

    By Little's law it equals rate × mean wait. It decreases with every server, and by less each time.
    """
    if offered >= servers:
        return math.inf
    return offered * waiting_share(offered, servers, blocking) / (servers - offered)


def least_stable(offered: float) -> int:
    """The minimum number of servers that keep up: ⌊a⌋ + 1. A load within 1e-9 of a whole number counts as that number."""
    return math.floor(offered * (1.0 + 1e-9)) + 1
