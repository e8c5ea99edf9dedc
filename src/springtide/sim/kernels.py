"""Kernels for every record: route, queue, serve, leave. There is no event heap.

The records of one step are rows of columns, in the order of arrival. A replica serves its records in that order, so the start
of a record is known when it is routed (Lindley 1952):

    start = max(arrival, free[replica]),   free[replica] = start + cost

Nothing between two arrivals needs an event. Rows stay until they have left and the grouping has been informed. Records for the
first free replica are routed when they start (``first_free``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.policy.group import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SERVED, LOST, LATE, GONE, REMOVED = 0, 1, 2, 3, 4
"""A row's fate: served, now or later; shed from a full queue; to be removed as too old when it would start. GONE and REMOVED
rows have left, and stay until the grouping is informed."""


class Rows(NamedTuple):
    """The records at one operator, in columns."""

    at: Floats  # arrival time in seconds
    created: Floats  # creation time at its source
    cost: Floats  # seconds of work on a replica of speed 1
    start: Floats
    depart: Floats
    key: npt.NDArray[np.uint64]
    item: Ints  # index among the source's items
    root: Ints  # index of the source's record that it stems from
    target: Ints  # its replica
    origin: Ints  # the node of its sender
    fate: npt.NDArray[np.int8]


class Replicas(NamedTuple):
    """The replicas of one operator; those from ``active`` on only drain their queues."""

    free: Floats  # when a replica will have finished its queue
    queue: Ints  # records in its queue
    factor: Floats  # factor of a record's cost
    node: Ints  # its node


class Network(NamedTuple):
    """The network between nodes."""

    delay: npt.NDArray[np.float64]  # delay in seconds, by pair of nodes
    wire: Floats  # transmission time of a record, by node
    free: Floats  # when each interface becomes free


class Pending(NamedTuple):
    """The unfinished records of each replica as linked lists of rows, and the time when the first of them will be reported."""

    head: Ints
    tail: Ints
    due: Floats
    link: Ints


@kernel
def serve(
    rows: Rows, first: int, last: int, informed: float, until: float, replicas: Replicas, active: int, timeout: float,
    limit: int, feedback: float, network: Any, state: Any, choose: Any, completed: Any, pending: Any,
) -> int:  # fmt: skip
    """Route and serve the rows from ``first`` to ``last``. Returns -1, or the first row with an invalid target.

    The rows before ``first`` are in progress. Without ``pending`` nothing needs completions or queue lengths, and their code is
    not compiled.
    """
    free, queue = replicas.free[:active], replicas.queue[:active]
    if pending is not None:
        _list_pending(pending, rows, first, informed, feedback, replicas)
    for i in range(first, last + 1):
        now = rows.at[i] if i < last else until
        if pending is not None:
            _inform(pending, rows, now, feedback, replicas.queue, active, state, completed)
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
    """Shed the oldest waiting record of a replica, and start those behind it sooner; False if none waits.

    The first record that has not left is being served, or about to be; it stays.
    """
    first = pending.head[target]
    while first >= 0 and rows.depart[first] <= now:
        first = pending.link[first]
    shed = pending.link[first] if first >= 0 else first
    if shed < 0:
        return False
    free, free_before = rows.start[shed], rows.depart[shed]  # depart = start for a record that is too late
    rows.start[shed], rows.depart[shed], rows.fate[shed] = now, now, LOST
    row = pending.link[shed]
    pending.link[first] = row
    if row < 0:
        pending.tail[target] = first
    while row >= 0:
        if rows.start[row] > free_before or free == free_before:
            return True  # the replica waits for this record to arrive, or nothing changes any more
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
    """The arrival at the replica: at once on the same node, else after transmission and delay."""
    if origin < 0 or origin == node:
        return now
    leaves = max(now, network.free[origin]) + network.wire[origin]
    network.free[origin] = leaves
    return float(leaves + network.delay[origin, node])


@kernel
def _list_pending(pending: Pending, rows: Rows, first: int, informed: float, feedback: float, replicas: Replicas) -> None:
    """List the rows before ``first`` that the grouping does not know as finished by ``informed``."""
    for r in range(len(replicas.free)):
        pending.head[r], pending.due[r], replicas.queue[r] = -1, np.inf, 0
    for i in range(first):
        if rows.fate[i] != LOST and rows.depart[i] + feedback > informed:
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
def _inform(
    pending: Pending, rows: Rows, now: float, feedback: float, queue: Ints, active: int, state: Any, completed: Any
) -> None:
    """Report the records finished by ``now`` to the grouping in the order of time, and shorten the queues.

    Records of draining replicas are not reported: their indices would exceed its arrays.
    """
    while True:
        soonest: Any = np.int64(0)  # not a plain 0, or numba would compile the callee for constants as well as for numbers
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
    """List the rows served by ``until`` in ``left``, and return their number.

    ``sums`` grows by: busy seconds since ``since``, seconds from arrival to departure, lost, too late, and waiting at
    ``until``.
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
    """Move the rows that are still needed to the back, in their order. Returns the number of free rows in front.

    Departures are mostly older than the rows that stay, so few rows move: those behind the last departure stay in place.
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
    """Start no record between ``now`` and ``until``; with ``drop`` the waiting ones are lost. Returns their number.

    Records in service continue. The order of each queue stays, so this is Lindley's recursion again.
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
    """Reassign the waiting records to the active replicas, which share a queue: each to the first free one.

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
