"""Erlang's formulas: how long records wait before k replicas that share one queue (M/M/k).

Records come at random at a rate λ, and each takes 1/μ on average, exponentially spread. ``offered`` (a = λ/μ) is the load in
replicas: so many are busy on average. With a ≥ k the queue grows for ever.

Factorials are avoided: 171! no longer fits a float. Errors stay below 1e-11, relatively, for up to 10,000 servers.

>>> round(waiting_share(8.0, 10, erlang_b(8.0, 10)), 4)  # four records in ten wait
0.4092
"""

from __future__ import annotations

import math


def erlang_b(offered: float, servers: int) -> float:
    """The share of records turned away when nobody may wait: B.

    It is the recursion 1/B(k) = 1 + (k/a)·1/B(k-1) with 1/B(0) = 1, unrolled from the top: 1 + (k/a)·(1 + ((k-1)/a)·(1 + …)).
    So it ends as soon as the rest no longer matters: at a = k = 10,000 after 818 terms. For k far above a the sum overflows to
    infinity, and B is 0 as it should be: it is below 1e-308.
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
    """B of ``servers`` from the B of one server fewer: one step of the recursion, for those who add servers one by one."""
    return offered * blocking / (servers + offered * blocking)


def waiting_share(offered: float, servers: int, blocking: float) -> float:
    """The share of records that have to wait, from B: C = k·B / (k - a·(1 - B)); all of them when the load is too much."""
    if offered >= servers:
        return 1.0
    return servers * blocking / (servers - offered * (1.0 - blocking))


def queue_length(offered: float, servers: int, blocking: float) -> float:
    """How many records wait on average, from B: a·C/(k - a); infinite when the load is too much.

    By Little's law it is rate × mean wait. It falls with every server, and by less each time.
    """
    if offered >= servers:
        return math.inf
    return offered * waiting_share(offered, servers, blocking) / (servers - offered)


def least_stable(offered: float) -> int:
    """The fewest servers that keep up: ⌊a⌋ + 1. A load within 1e-9 of a whole number counts as that number."""
    return math.floor(offered * (1.0 + 1e-9)) + 1
