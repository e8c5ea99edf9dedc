"""Tide's model of operators: it plays possible inputs on numbers of replicas, part by part of an interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.snapshot import Snapshot
from springtide.policy.scale.queueing import shared_out
from springtide.policy.scale.slots import taken

Floats = npt.NDArray[np.float64]

TARGET_SHARE = 0.65
"""Plan with this part of the target: the measured latency is a mean. At 0.7, by a fluid model, DABS-Storm's S1 is late for 23 s
instead of 13."""
MAX_CANDIDATES = 48
"""Limits the numbers of replicas that are tried."""
BATCH_LATENCY = 1.5
"""Batches that a record waits for: half a batch on average, and then its own."""

MIN_WORK_SHARE = 0.5
"""At least this part of a batch's time is work: if the fixed part leaves less, batches get longer."""


def reachable(target_s: float, batch_overhead_s: float | None) -> float:
    """The target to plan with. With less than half of a batch's planned time left for work, tide would ask for several times
    the replicas that the work takes, or give up; so the target is at least 4.6 times the fixed part of a batch. Planned with
    ``TARGET_SHARE``, records then take 3 times the fixed part.
    """
    return max(target_s, BATCH_LATENCY / (TARGET_SHARE * MIN_WORK_SHARE) * (batch_overhead_s or 0.0))


class Graph(NamedTuple):
    """The operators of which enough is known."""

    names: list[str]
    work_s: Floats  # seconds of work at each operator for a record of the sources
    cost_s: Floats  # and for a record of its own
    limits: npt.NDArray[np.int64]
    degrees: npt.NDArray[np.int64]  # that they have
    uneven: Floats  # the part of M/M/k's wait that there is: 1 if records come and are served by chance, 0 if evenly
    backlog: float  # what waits anywhere, in records of the sources


def paid(graph: Graph, degrees: npt.NDArray[np.int64], rate: float, in_turns: bool) -> npt.NDArray[np.int64]:
    """By candidate, its price in replicas: all of them, or the slots on which stages take turns."""
    return taken(degrees, rate * graph.work_s) if in_turns else degrees.sum(axis=1)


def candidates(graph: Graph, forecast: float, slots: int | None, in_turns: bool) -> npt.NDArray[np.int64]:
    """[candidates, operators] Possible degrees: a number of replicas for the most work, the others in proportion."""
    heaviest = max(float(graph.work_s.max()), 1e-12)
    least, most = max(1, int(0.5 * forecast * heaviest)), max(2, math.ceil(8 * (forecast + graph.backlog) * heaviest) + 1)
    most = max(least, min(most, int(graph.limits.max())))
    steps = np.arange(least, most + 1)
    if len(steps) > MAX_CANDIDATES:
        steps = np.unique(np.geomspace(least, most, MAX_CANDIDATES).round().astype(np.int64))
    loads = steps[:, None] / heaviest
    degrees = np.clip(np.ceil(loads * graph.work_s - 1e-9), 1, graph.limits).astype(np.int64)
    fitting: npt.NDArray[np.int64] = degrees[paid(graph, degrees, forecast, in_turns) <= (slots or 10**9)]
    if len(fitting):
        return fitting
    work = (forecast * graph.work_s).tolist()  # too much for the slots: they are dealt out in proportion
    ones, limits = [1] * len(work), graph.limits.tolist()
    return np.array([shared_out(work, ones, limits, max(0, (slots or 0) - len(work)))], dtype=np.int64)


def record_by_record(
    snapshot: Snapshot, graph: Graph, degrees: npt.NDArray[np.int64], rate: float, target_s: float
) -> tuple[Floats, Floats]:
    """By candidate, the sources' records/s that it can do, and a record's latency with no queue but chance's: M/M/k.

    Each operator's waits are shortened by how even its records come and are served (``Graph.uneven``).
    """
    work = np.maximum(graph.work_s, 1e-12)
    reach = graph.work_s / graph.cost_s
    waits = graph.uneven * waiting(rate * work / graph.cost_s, graph.cost_s, degrees, snapshot.interval_s)
    return (degrees / work).min(axis=1), (reach * (graph.cost_s + waits)).sum(axis=1)


def waiting(rate: Floats, cost_s: Floats, degrees: npt.NDArray[np.int64], interval_s: float) -> Floats:
    """The mean wait of M/M/k, in seconds, of operators to which so many records/s come.

    Sakasegawa (1977): it is about cost·ρ^(√(2(k+1)) - 1)/(k·(1 - ρ)). A queue that is all but full grows no faster than
    chance lets it, by √(4λt/π) records in t seconds.
    """
    load = np.minimum(rate * cost_s / degrees, 0.999)
    stationary = cost_s * load ** (np.sqrt(2 * (degrees + 1)) - 1) / (degrees * (1 - load))
    chance = np.sqrt(4 * rate * interval_s / math.pi) * cost_s / degrees
    waits: Floats = np.minimum(stationary, chance)
    return waits


def in_batches(
    snapshot: Snapshot, graph: Graph, degrees: npt.NDArray[np.int64], rate: float, target_s: float
) -> tuple[Floats, Floats]:
    """The same in micro-batches, whose stages share all slots: a batch of period P takes P = fixed + work/slots, and a record
    one and a half of them. What the fixed part leaves of the longest period that keeps the target is there for work."""
    slots = paid(graph, degrees, rate, True)
    busy = sum(operator.busy_s or 0.0 for operator in snapshot.operators)
    spent = sum(seconds for _, seconds in snapshot.batches)
    fixed = max(0.0, spent - busy / max(1, snapshot.plan.slots)) / len(snapshot.batches)
    usable = max(MIN_WORK_SHARE, 1 - BATCH_LATENCY * fixed / (TARGET_SHARE * target_s))
    capacity = slots.astype(np.float64) * (usable / max(float(graph.work_s.sum()), 1e-12))
    return capacity, np.zeros(len(slots))


def available(graph: Graph, capacity: Floats, there: Floats | None, starting: int, parts: int) -> Floats:
    """[candidates, parts] The capacity over time: new replicas start after ``starting`` parts.

    ``there``: the present share of each candidate's slots; without it, the slots of the degrees in force.
    """
    found = np.repeat(capacity[:, None], parts, axis=1)
    if starting:
        in_force = np.full(len(capacity), (graph.degrees / np.maximum(graph.work_s, 1e-12)).min())
        now = np.minimum(capacity, in_force if there is None else capacity * there)
        found[:, :starting] = np.maximum(now, 1e-9)[:, None]
    return found


def late(coming: Floats, capacity: Floats, backlog: float, allowed: Floats) -> tuple[Floats, Floats]:
    """[candidates, scenarios] How many parts are late, and the queue that is left at the end.

    ``coming``: [parts, scenarios]. A part is late when its records wait longer than the candidate's latency without a queue
    allows.
    """
    queue = np.full((len(capacity), coming.shape[1]), backlog)
    late = np.zeros(queue.shape)
    allowed = allowed[:, None]
    for part, came in enumerate(coming):
        able = capacity[:, part, None]
        after = queue + came
        after -= able
        np.maximum(0.0, after, out=after)
        queue += after
        queue /= 2
        late += queue > allowed * able
        queue = after
    return late, np.where(queue / capacity[:, -1, None] > np.maximum(allowed, 0.0), queue, 0.0)


def clearing(work: Floats, price: float, interval_s: float, most: float) -> Floats:
    """The cost of clearing a queue of ``work`` replica-seconds, with at most ``most`` more replicas.

    With N more it takes work/N seconds, which are late, and they stay for an interval: N·interval + price·work/N, least at
    N = √(price·work/interval). If ``most`` is less, it takes longer than an interval, with all of them.
    """
    best = np.sqrt(price * work / interval_s)
    return np.where(best <= most, 2 * best * interval_s, work * (1 + price / most))
