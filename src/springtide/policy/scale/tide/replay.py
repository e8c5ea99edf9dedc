"""Tide's model of operators: it plays possible inputs against numbers of replicas, part by part of an interval."""

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
"""Plan with this share of the target, because the measured latency is a mean. At 0.7, by a fluid model, DABS-Storm's S1 is late
for 23 s instead of 13."""
MAX_CANDIDATES = 48
"""Limits the candidates."""
BATCH_LATENCY = 1.5
"""The latency of a record in batches: half a batch of waiting on average, and its own batch."""

MIN_WORK_SHARE = 0.5
"""At least this share of a batch's time is work: if the fixed part leaves less, batches become longer."""


def reachable(target_s: float, batch_overhead_s: float | None) -> float:
    """The target for planning. If less than half of a batch's planned time were left for work, tide would request several times
    the necessary replicas, or give up; so the target is at least 4.6 times the fixed part of a batch. With ``TARGET_SHARE``,
    records then take 3 times the fixed part."""
    return max(target_s, BATCH_LATENCY / (TARGET_SHARE * MIN_WORK_SHARE) * (batch_overhead_s or 0.0))


class Graph(NamedTuple):
    """The operators with sufficient measurements."""

    names: list[str]
    work_s: Floats  # seconds of work at each operator per source record
    cost_s: Floats  # seconds of work per record of its own
    limits: npt.NDArray[np.int64]
    degrees: npt.NDArray[np.int64]  # that they have
    uneven: Floats  # the factor of M/M/k's wait: 1 for random arrivals and service, 0 for even ones
    backlog: float  # all waiting records, in source records


def paid(graph: Graph, degrees: npt.NDArray[np.int64], rate: float, in_turns: bool) -> npt.NDArray[np.int64]:
    """The price of each candidate in replicas: their sum, or the slots on which stages take turns."""
    return taken(degrees, rate * graph.work_s) if in_turns else degrees.sum(axis=1)


def candidates(graph: Graph, forecast: float, slots: int | None, in_turns: bool) -> npt.NDArray[np.int64]:
    """[candidates, operators] Possible degrees: a number of replicas for the heaviest operator, the others in proportion."""
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
    work = (forecast * graph.work_s).tolist()  # more than the slots: divide them in proportion
    ones, limits = [1] * len(work), graph.limits.tolist()
    return np.array([shared_out(work, ones, limits, max(0, (slots or 0) - len(work)))], dtype=np.int64)


def record_by_record(
    snapshot: Snapshot, graph: Graph, degrees: npt.NDArray[np.int64], rate: float, target_s: float
) -> tuple[Floats, Floats]:
    """By candidate: the source records/s that it can process, and the latency of a record with random waits only (M/M/k).

    Each operator's waits are scaled by the evenness of its arrivals and service (``Graph.uneven``).
    """
    work = np.maximum(graph.work_s, 1e-12)
    reach = graph.work_s / graph.cost_s
    waits = graph.uneven * waiting(rate * work / graph.cost_s, graph.cost_s, degrees, snapshot.interval_s)
    return (degrees / work).min(axis=1), (reach * (graph.cost_s + waits)).sum(axis=1)


def waiting(rate: Floats, cost_s: Floats, degrees: npt.NDArray[np.int64], interval_s: float) -> Floats:
    """The mean wait of M/M/k in seconds, for operators with this input in records/s.

    Sakasegawa (1977): it is about cost·ρ^(√(2(k+1)) - 1)/(k·(1 - ρ)). A queue near saturation grows no faster than random
    variation: by √(4λt/π) records in t seconds.
    """
    load = np.minimum(rate * cost_s / degrees, 0.999)
    stationary = cost_s * load ** (np.sqrt(2 * (degrees + 1)) - 1) / (degrees * (1 - load))
    chance = np.sqrt(4 * rate * interval_s / math.pi) * cost_s / degrees
    waits: Floats = np.minimum(stationary, chance)
    return waits


def in_batches(
    snapshot: Snapshot, graph: Graph, degrees: npt.NDArray[np.int64], rate: float, target_s: float
) -> tuple[Floats, Floats]:
    """The same for micro-batches, whose stages share all slots: a batch of period P takes P = fixed + work/slots, and a record
    1.5 P. The longest period that meets the target, minus the fixed part, is available for work."""
    slots = paid(graph, degrees, rate, True)
    busy = sum(operator.busy_s or 0.0 for operator in snapshot.operators)
    spent = sum(seconds for _, seconds in snapshot.batches)
    fixed = max(0.0, spent - busy / max(1, snapshot.plan.slots)) / len(snapshot.batches)
    usable = max(MIN_WORK_SHARE, 1 - BATCH_LATENCY * fixed / (TARGET_SHARE * target_s))
    capacity = slots.astype(np.float64) * (usable / max(float(graph.work_s.sum()), 1e-12))
    return capacity, np.zeros(len(slots))


def available(graph: Graph, capacity: Floats, there: Floats | None, starting: int, parts: int) -> Floats:
    """[candidates, parts] The capacity over time: new replicas start after ``starting`` parts.

    ``there``: the present share of each candidate's slots; None: the slots of the degrees in force.
    """
    found = np.repeat(capacity[:, None], parts, axis=1)
    if starting:
        in_force = np.full(len(capacity), (graph.degrees / np.maximum(graph.work_s, 1e-12)).min())
        now = np.minimum(capacity, in_force if there is None else capacity * there)
        found[:, :starting] = np.maximum(now, 1e-9)[:, None]
    return found


def late(coming: Floats, capacity: Floats, backlog: float, allowed: Floats) -> tuple[Floats, Floats]:
    """[candidates, scenarios] The number of late parts, and the queue at the end.

    ``coming``: [parts, scenarios]. A part is late if its records wait longer than the candidate's latency without a queue
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
    """The cost of clearing a queue of ``work`` replica-seconds with at most ``most`` additional replicas.

    With N replicas it takes work/N late seconds, and the replicas stay for an interval: N·interval + price·work/N, which is
    least at N = √(price·work/interval). If ``most`` is less, all of them take longer than an interval.
    """
    best = np.sqrt(price * work / interval_s)
    return np.where(best <= most, 2 * best * interval_s, work * (1 + price / most))
