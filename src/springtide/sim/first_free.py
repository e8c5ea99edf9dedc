"""Replicas that share a queue: a knockout finds the first free replica when a record starts.

A record that waits for the first free replica needs no replica yet. Each step routes the records that start in it, and the
others wait as they arrived: they cost nothing, and neither does rescaling. On a trace whose bursts leave 30 million records
waiting, scanning all of them in every step took half of the time.

The knockout orders the replicas by the times at which they become free. A replica that receives a record plays again: 6 matches
for 60 replicas instead of 60 comparisons. A replica wins when its record has left, so the winners also give the order of
departures without sorting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from springtide.policy.group import kernel
from springtide.sim.kernels import LATE, SERVED, Floats, Ints, Replicas, Rows, settle


class Knockout(NamedTuple):
    """Node 1 is the final, nodes 2i and 2i + 1 play for node i, and the last half of the nodes are the replicas."""

    free: Floats  # when the winner of each node becomes free
    bits: Ints  # the same bits as integers, whose order is that of the times, as none is negative
    winner: Ints  # the winning replica: of equals the first
    row: Ints  # the last row of each replica, or -1 after it has left


def knockout(replicas: int) -> Knockout:
    leaves = 1 << (replicas - 1).bit_length()
    free = np.full(2 * leaves, np.inf)
    return Knockout(free, free.view(np.int64), np.zeros(2 * leaves, dtype=np.int64), np.full(replicas, -1))


@kernel
def start_waiting(
    rows: Rows, known: int, last: int, since: float, until: float, replicas: Replicas, knock: Knockout, timeout: float,
    left: Ints, order: Ints, sums: Floats,
) -> tuple[int, int, bool]:  # fmt: skip
    """Start the rows from ``known`` on that can start by ``until``; the rows before have started.

    Returns the number of rows with a replica; the number served by ``until``, listed by row in ``left`` and by time in
    ``order``; and whether ``order`` is valid. ``sums`` grows as in ``settle``, in the order of rows.
    """
    served = settle(rows, known, since, until, left, sums)
    in_order = _begin(knock, rows, known, replicas)
    busy, response, late, sent = sums[0], sums[1], 0, 0
    i = known
    r, free = knock.winner[1], knock.free[1]
    while i < last:
        at = rows.at[i]
        start = at if at > free else free
        if start > until:
            break
        rows.start[i], rows.target[i] = start, r
        if start - rows.created[i] > timeout:
            rows.depart[i], rows.fate[i] = start, LATE
            late += 1
        else:
            depart = start + rows.cost[i] * replicas.factor[r]
            rows.depart[i], rows.fate[i] = depart, SERVED
            busy += min(depart, until) - max(start, since)
            if depart <= until:
                left[served] = i
                served += 1
                response += depart - at
            if knock.row[r] >= 0:
                sent = _add(order, sent, knock.row[r], rows.depart)
            knock.row[r] = i
            replicas.free[r] = depart
            r, free = _play(knock, r, depart)
        i += 1
    while free <= until:  # departures from replicas without a further record
        if knock.row[r] >= 0:
            sent = _add(order, sent, knock.row[r], rows.depart)
        r, free = _play(knock, r, np.inf)
    sums[0], sums[1] = busy, response
    sums[3] += late
    sums[4] += last - i
    return i, served, in_order and sent == served


@kernel
def _begin(knock: Knockout, rows: Rows, known: int, replicas: Replicas) -> bool:
    """Play all matches, and note the row of each replica. Returns whether all rows will leave in the replicas' order.

    They will not if replicas drain, or if a pause blocks a replica beyond its record's departure.
    """
    leaves, in_order = len(knock.free) // 2, True
    for r in range(len(knock.row)):
        knock.row[r] = -1
    for i in range(known):
        if rows.fate[i] == SERVED:
            r = rows.target[i]
            if r >= len(knock.row) or knock.row[r] >= 0 or rows.depart[i] != replicas.free[r]:
                in_order = False
            else:
                knock.row[r] = i
    for r in range(leaves):
        knock.free[leaves + r] = replicas.free[r] if r < len(knock.row) else np.inf
        knock.winner[leaves + r] = r
    for node in range(leaves - 1, 0, -1):
        better = 2 * node + (knock.free[2 * node + 1] < knock.free[2 * node])
        knock.free[node], knock.winner[node] = knock.free[better], knock.winner[better]
    return in_order


@kernel
def _play(knock: Knockout, replica: int, free: float) -> tuple[int, float]:
    """Repeat the matches of a replica whose time changed."""
    node, winner, bits = len(knock.free) // 2 + replica, replica, np.float64(free).view(np.int64)
    knock.bits[node] = bits
    while node > 1:
        other, rival = knock.bits[node ^ 1], knock.winner[node ^ 1]
        lost = (other - (node & 1) - bits) >> 63  # all bits, or none; the first of equals wins
        winner ^= (winner ^ rival) & lost
        bits ^= (bits ^ other) & lost
        node >>= 1
        knock.bits[node], knock.winner[node] = bits, winner
    return winner, knock.free[1]


@kernel
def _add(order: Ints, count: int, row: int, depart: Floats) -> int:
    """Append a row to the order of departures; rows that leave at the same time are in the order of rows."""
    place = count
    while place > 0 and order[place - 1] > row and depart[order[place - 1]] == depart[row]:
        order[place] = order[place - 1]
        place -= 1
    order[place] = row
    return count + 1
