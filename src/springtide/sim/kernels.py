"""What the simulator does with every record, as kernels: route, queue, serve, leave. No event heap.

The records of one step are rows of columns, in the order in which they were sent. A replica serves its records in that
order, so when a record starts is known as soon as it is routed: when it is there and the replica is free (Lindley 1952),

    start = max(arrival, free[replica]),   free[replica] = start + cost

and what happens between two arrivals needs no event. Rows stay until they have left, and until the grouping was told.
Where a record goes to the replica that is free first, all that is left to the moment at which it starts (``first_free``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.policy.group import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SERVED, LOST, LATE, GONE, REMOVED = 0, 1, 2, 3, 4
"""A row's fate: it is or will be served; it was shed from a full queue; it will be removed, too old, when it would start. The
last two have left, one way or the other, and stay only until the grouping is told."""


class Rows(NamedTuple):
    """Records at one operator, a column for each thing that is known of them."""

    at: Floats  # when it was sent here, in seconds
    created: Floats  # when its source made it
    cost: Floats  # seconds of work on a replica of speed 1
    start: Floats
    depart: Floats
    key: npt.NDArray[np.uint64]
    item: Ints  # which of the source's items it is
    root: Ints  # which of the source's records it comes from
    target: Ints  # its replica
    origin: Ints  # the node that sent it
    fate: npt.NDArray[np.int8]


class Replicas(NamedTuple):
    """The replicas of one operator; those from ``active`` on only drain their queues."""

    free: Floats  # when a replica will have done all that it was given
    queue: Ints  # how many records that is
    factor: Floats  # what a record's cost is multiplied by
    node: Ints  # where it is


class Network(NamedTuple):
    """What is between the nodes."""

    delay: npt.NDArray[np.float64]  # seconds, from node to node
    wire: Floats  # seconds that a record takes on each node's interface
    free: Floats  # until when each interface is taken


class Pending(NamedTuple):
    """The records that each replica has yet to finish, as lists through the rows, and when the first of each will be known."""

    head: Ints
    tail: Ints
    due: Floats
    link: Ints


@kernel
def serve(
    rows: Rows, first: int, last: int, told: float, until: float, replicas: Replicas, active: int, timeout: float,
    limit: int, feedback: float, network: Any, state: Any, choose: Any, completed: Any, pending: Any,
) -> int:  # fmt: skip
    """Route and serve the rows from ``first`` to ``last``; -1, or the row that was routed nowhere.

    The rows before ``first`` are under way. With ``pending`` None nobody asks for completions or queue lengths, and
    whatever keeps account of them is not even compiled.
    """
    free, queue = replicas.free[:active], replicas.queue[:active]
    if pending is not None:
        _under_way(pending, rows, first, told, feedback, replicas)
    for i in range(first, last + 1):
        now = rows.at[i] if i < last else until
        if pending is not None:
            _tell(pending, rows, now, feedback, replicas.queue, active, state, completed)
        if i == last:
            break
        target = choose(state, rows.key[i], now, free, queue)
        if target < 0 or target >= active:
            return i
        arrival = now if network is None else _sent(network, rows.origin[i], replicas.node[target], now)
        rows.target[i] = target
        if pending is not None and queue[target] > limit:
            if not _shed_oldest(pending, rows, target, now, timeout, replicas):
                rows.start[i], rows.depart[i], rows.fate[i] = now, now, LOST
                continue
            queue[target] -= 1
        start = max(arrival, free[target])
        rows.start[i] = start
        if start - rows.created[i] > timeout:
            rows.depart[i], rows.fate[i] = start, LATE
        else:
            depart = start + rows.cost[i] * replicas.factor[target]
            rows.depart[i], rows.fate[i] = depart, SERVED
            free[target] = depart
        if pending is not None:
            _append(pending, i, target, rows.depart[i] + feedback)
            queue[target] += 1
    return -1


@kernel
def _shed_oldest(pending: Pending, rows: Rows, target: int, now: float, timeout: float, replicas: Replicas) -> bool:
    """Shed the oldest record that waits for a replica, and start those behind it sooner; False if none waits.

    The first that has not left is the one being served, or about to be; it stays.
    """
    first = pending.head[target]
    while first >= 0 and rows.depart[first] <= now:
        first = pending.link[first]
    shed = pending.link[first] if first >= 0 else first
    if shed < 0:
        return False
    free, free_before = rows.start[shed], rows.depart[shed]  # depart = start where it would have been too late
    rows.start[shed], rows.depart[shed], rows.fate[shed] = now, now, LOST
    row = pending.link[shed]
    pending.link[first] = row
    if row < 0:
        pending.tail[target] = first
    while row >= 0:
        if rows.start[row] > free_before or free == free_before:
            return True  # the replica waits for this one, which is still on its way, or nothing changes any more
        rows.start[row], free_before = free, rows.depart[row]
        if free - rows.created[row] > timeout:
            rows.depart[row], rows.fate[row] = free, LATE
        else:
            free += rows.cost[row] * replicas.factor[target]
            rows.depart[row], rows.fate[row] = free, SERVED
        row = pending.link[row]
    replicas.free[target] = free
    return True


@kernel
def _sent(network: Network, origin: int, node: int, now: float) -> float:
    """When a record is at its replica: at once on the same node, else after the interface and the way."""
    if origin < 0 or origin == node:
        return now
    leaves = max(now, network.free[origin]) + network.wire[origin]
    network.free[origin] = leaves
    return float(leaves + network.delay[origin, node])


@kernel
def _under_way(pending: Pending, rows: Rows, first: int, told: float, feedback: float, replicas: Replicas) -> None:
    """Make the lists of those rows before ``first`` that the grouping was not told of by ``told``."""
    for r in range(len(replicas.free)):
        pending.head[r], pending.due[r], replicas.queue[r] = -1, np.inf, 0
    for i in range(first):
        if rows.fate[i] != LOST and rows.depart[i] + feedback > told:
            _append(pending, i, rows.target[i], rows.depart[i] + feedback)
            replicas.queue[rows.target[i]] += 1


@kernel
def _append(pending: Pending, row: int, target: int, due: float) -> None:
    if pending.head[target] < 0:
        pending.head[target] = row
        pending.due[target] = due
    else:
        pending.link[pending.tail[target]] = row
    pending.tail[target], pending.link[row] = row, -1


@kernel
def _tell(
    pending: Pending, rows: Rows, now: float, feedback: float, queue: Ints, active: int, state: Any, completed: Any
) -> None:
    """Hand what was done by ``now`` to the grouping, in the order of time, and shorten the queues.

    It knows of active replicas only: what others finish, which merely drain their queues, would be beyond its arrays.
    """
    while True:
        soonest: Any = np.int64(0)  # not a plain 0, or numba would compile what gets it for 0 and for numbers
        for r in range(1, len(pending.due)):
            if pending.due[r] < pending.due[soonest]:
                soonest = r
        when = pending.due[soonest]
        if when > now or pending.head[soonest] < 0:
            return
        row = pending.head[soonest]
        after = pending.link[row]
        pending.head[soonest] = after
        pending.due[soonest] = np.inf if after < 0 else rows.depart[after] + feedback
        queue[soonest] -= 1
        if completed is not None and soonest < active and rows.fate[row] != LATE and rows.fate[row] != REMOVED:
            completed(state, soonest, rows.key[row], rows.depart[row] - rows.start[row], when)


@kernel
def settle(rows: Rows, last: int, since: float, until: float, left: Ints, sums: Floats) -> int:
    """Find what has left by ``until``: how many rows were served, and in ``left`` which.

    ``sums`` grows by: busy seconds since ``since``, seconds from arrival to departure, lost, too late, and how many wait
    for a replica at ``until``.
    """
    served = 0
    for i in range(last):
        fate, start, depart = rows.fate[i], rows.start[i], rows.depart[i]
        if fate == SERVED:
            if start <= until:
                sums[0] += min(depart, until) - max(start, since)
            else:
                sums[4] += 1
            if depart <= until:
                left[served] = i
                served += 1
                sums[1] += depart - rows.at[i]
        elif fate == LOST:
            sums[2] += 1
        elif fate == LATE:
            sums[3 if depart <= until else 4] += 1
    return served


@kernel
def keep(rows: Rows, last: int, until: float, feedback: float) -> int:
    """Move the rows that are still of interest to the back, in their order; how many places in front of them are free.

    Most that leave came before most that stay, so only a few have to move: what is behind the last that left stays where it is.
    """
    place = last
    for i in range(last - 1, -1, -1):
        fate, depart = rows.fate[i], rows.depart[i]
        if fate == LOST or depart + feedback <= until:
            continue
        place -= 1
        if depart <= until:
            rows.fate[i] = REMOVED if fate in (LATE, REMOVED) else GONE
        if place == i:
            continue
        rows.fate[place], rows.depart[place], rows.start[place] = rows.fate[i], depart, rows.start[i]
        rows.at[place], rows.created[place], rows.cost[place] = rows.at[i], rows.created[i], rows.cost[i]
        rows.key[place], rows.item[place], rows.root[place] = rows.key[i], rows.item[i], rows.root[i]
        rows.target[place], rows.origin[place] = rows.target[i], rows.origin[i]
    return place


@kernel
def defer(rows: Rows, last: int, now: float, until: float, timeout: float, replicas: Replicas, drop: bool) -> int:
    """Let no record start before ``until``, from ``now`` on; with ``drop`` those that wait are lost: how many.

    What is being served goes on. The order in each queue stays, so this is Lindley's recursion once more.
    """
    dropped = 0
    replicas.free[:] = until
    for i in range(last):
        fate, r = rows.fate[i], rows.target[i]
        if fate > LATE:
            continue
        if fate == SERVED and rows.start[i] <= now:
            replicas.free[r] = max(replicas.free[r], rows.depart[i])
        elif drop:
            rows.fate[i], rows.depart[i] = LOST, now
            dropped += 1
        else:
            start = max(rows.at[i], replicas.free[r])
            rows.start[i] = start
            if start - rows.created[i] > timeout:
                rows.depart[i], rows.fate[i] = start, LATE
            else:
                rows.depart[i], rows.fate[i] = start + rows.cost[i] * replicas.factor[r], SERVED
                replicas.free[r] = rows.depart[i]
    return dropped


@kernel
def share_out(
    rows: Rows, last: int, now: float, begin: float, timeout: float, replicas: Replicas, active: int
) -> None:  # fmt: skip
    """Hand what waits to the active replicas anew, each record to the one that is free first: they have one queue.

    None starts before ``begin``: now, or the end of a pause.
    """
    free = replicas.free
    free[:] = begin
    for i in range(last):
        if rows.fate[i] == SERVED and rows.start[i] <= now:
            free[rows.target[i]] = max(free[rows.target[i]], rows.depart[i])
    for i in range(last):
        if rows.fate[i] > LATE or (rows.fate[i] == SERVED and rows.start[i] <= now):
            continue
        r = 0
        for other in range(1, active):
            if free[other] < free[r]:
                r = other
        rows.target[i], rows.start[i] = r, free[r]
        if rows.start[i] - rows.created[i] > timeout:
            rows.depart[i], rows.fate[i] = rows.start[i], LATE
        else:
            rows.depart[i], rows.fate[i] = rows.start[i] + rows.cost[i] * replicas.factor[r], SERVED
            free[r] = rows.depart[i]
