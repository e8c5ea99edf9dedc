"""Tide record by record: kernels, which the simulator compiles.

Each replica notes the costs of its records and, every ``report_every`` records, reports these notes and the number of records
processed. The scheduler stores the time at which it expects each replica to be free. A choice takes the replica that is free
first and adds the record's estimate, from now on if the replica is idle. A report corrects that time: it is now plus the
estimates of the records that the replica has not finished.

The exact keys are in sets of eight, as in a processor's cache: a new key takes a free place of its set, or that of the
cheapest key, which moves into the sketch. Weights are counted in a unit that grows by 2 every half-life, so nothing has
to be aged; before the unit is too large for a float, everything is scaled back. Sums over the keys are updated key by key, and
computed again after as many records as there are places: that corrects the ageing of unused keys, and rounding errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.policy.group import kernel
from springtide.policy.group.count_min import cell_one, estimate_one, row_hashes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WAYS = 8
BACKLOG = 1 << 15
"""Limits the stored estimates of a replica's records; with a longer backlog, a report is not used."""
LARGEST_UNIT = 1e60
PRIOR_SPEED_RECORDS = 20.0
"""Assumed records of speed 1 before the measurements of a replica's speed."""
SPEED_HALF_LIFE = 500.0
"""Records of a replica after which the weight of a speed measurement is half."""
UNIT, KEYS, MEANS, SQUARES, INVERSE, NOISE, NOTED, RECORDS, SECONDS, SUMMED = range(10)


class Knowledge(NamedTuple):
    """The knowledge of the costs, and of every replica."""

    keys: npt.NDArray[np.uint64]  # the exact keys: [sets, ways]
    weights: Floats  # 0: a free place
    seconds: Floats
    inverse: Floats  # what each key has added to Σ 1/w: by now its w is less
    F: Floats
    W: Floats
    hashes: npt.NDArray[np.uint64]
    sums: Floats  # by the names above: unit of weight; over the keys, how many, Σ mean, Σ mean², Σ 1/w; noise, of how many;
    # of all records, weight and seconds; records since the sums over the keys were made anew
    growth: Floats  # of the unit, with every record
    every: Ints  # records between two reports
    free: Floats  # when each replica is expected to be free
    factor: Floats
    observed: Floats
    expected: Floats
    sent: Ints  # records sent to each replica
    done: Ints  # records processed, as far as is known
    known: Floats  # estimates of what was sent, summed up to each record: [replicas, BACKLOG]
    unknown: Ints  # records without an estimate, summed up alike
    total: Floats  # the same sums by now: [replicas, 2]
    noted_keys: npt.NDArray[np.uint64]  # what a replica has noted since its last report: [replicas, every]
    noted_costs: Floats
    noted: Ints
    turn: Ints
    messages: Ints


def begin(k: int, exact: int, r: int, c: int, half_life: float, every: int, before: Any) -> Knowledge:
    """Empty knowledge; or, after a change of the number of replicas, that of the keys and the remaining replicas."""
    sets = 1 << max(0, (exact // WAYS - 1).bit_length())
    made = Knowledge(
        np.zeros((sets, WAYS), dtype=np.uint64), np.zeros((sets, WAYS)), np.zeros((sets, WAYS)), np.zeros((sets, WAYS)),
        np.zeros((r, c)), np.zeros((r, c)), row_hashes(r, seed=0),
        np.array([1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), np.array([0.5 ** (-1 / half_life)]), np.array([every]),
        np.zeros(k), np.ones(k), np.zeros(k), np.zeros(k), np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64),
        np.zeros((k, BACKLOG)), np.zeros((k, BACKLOG), dtype=np.int64), np.zeros((k, 2)),
        np.zeros((k, every), dtype=np.uint64), np.zeros((k, every)), np.zeros(k, dtype=np.int64),
        np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    if before is None:
        return made
    stays = min(k, len(before.free))
    for name in ("free", "factor", "observed", "expected", "sent", "done", "known", "unknown", "total",
                 "noted_keys", "noted_costs", "noted"):  # fmt: skip
        getattr(made, name)[:stays] = getattr(before, name)[:stays]
    shared = ("keys", "weights", "seconds", "inverse", "F", "W", "sums", "turn", "messages")
    return made._replace(**{name: getattr(before, name) for name in shared})


@kernel
def choose(state: Knowledge, key: int, now: float, free: Floats, queue: Ints) -> int:
    """The replica that is expected to be free first; in turn without knowledge, and among equals."""
    k = len(free)
    state.turn[0] = (state.turn[0] + 1) % k
    target = state.turn[0]
    nothing_known = state.sums[KEYS] == 0
    if not nothing_known:
        for step in range(1, k):
            other = (state.turn[0] + step) % k
            if max(state.free[other], now) < max(state.free[target], now):
                target = other
    estimate = 0.0 if nothing_known else _estimate(state, key) * state.factor[target]
    state.free[target] = max(state.free[target], now) + estimate
    place = state.sent[target] % BACKLOG
    state.total[target, 0] += estimate
    state.total[target, 1] += 1.0 if nothing_known else 0.0
    state.known[target, place] = state.total[target, 0]
    state.unknown[target, place] = int(state.total[target, 1])
    state.sent[target] += 1
    return int(target)


@kernel
def completed(state: Knowledge, target: int, key: int, cost: float, now: float) -> None:
    """A replica notes what a record cost, and reports when it has noted enough."""
    if target >= len(state.free):  # it is no longer active, and drains its queue
        return
    state.done[target] += 1
    if cost >= 0.0 and np.isfinite(cost):
        place = state.noted[target]
        state.noted_keys[target, place] = key
        state.noted_costs[target, place] = cost
        state.noted[target] = place + 1
    if state.noted[target] == state.every[0]:
        _report(state, target, now)


@kernel
def _report(state: Knowledge, target: int, now: float) -> None:
    state.messages[0] += 1
    _learn_speed(state, target)
    for place in range(state.noted[target]):
        _learn(state, state.noted_keys[target, place], state.noted_costs[target, place] / state.factor[target])
    state.noted[target] = 0
    behind = state.sent[target] - state.done[target]
    if behind >= BACKLOG or behind < 0:
        return
    last = (state.done[target] - 1) % BACKLOG
    waiting = state.total[target, 0] - state.known[target, last]
    waiting += (state.total[target, 1] - state.unknown[target, last]) * _mean(state.sums) * state.factor[target]
    state.free[target] = now + max(waiting, 0.0)


@kernel
def _learn_speed(state: Knowledge, target: int) -> None:
    """Learn the measured and expected times of a replica's records; then update all factors, whose mean is 1."""
    tried = PRIOR_SPEED_RECORDS * _mean(state.sums)
    if not tried > 0:
        return
    keep = 0.5 ** (1 / SPEED_HALF_LIFE)
    for place in range(state.noted[target]):
        key = state.noted_keys[target, place]
        if _is_exact(state, key):  # what is expected of others says little
            state.observed[target] = state.observed[target] * keep + state.noted_costs[target, place]
            state.expected[target] = state.expected[target] * keep + _estimate(state, key)
    k, total = len(state.factor), 0.0
    for i in range(k):
        state.factor[i] = (state.observed[i] + tried) / (state.expected[i] + tried)
        total += state.factor[i]
    for i in range(k):
        state.factor[i] = min(max(state.factor[i] * k / total, 0.1), 10.0)


@kernel
def _learn(state: Knowledge, key: int, seconds: float) -> None:
    """Learn a record, as of a replica of speed 1: its key's mean, and the deviation from it."""
    sums = state.sums
    ways = int(key % len(state.keys))
    way = _way(state, ways, key)
    weight = state.weights[ways, way]
    unit = sums[UNIT]
    if weight > 0:
        _count(state, ways, way, -1.0)
    if weight > 0 and state.keys[ways, way] == key:
        mean = state.seconds[ways, way] / weight
        sums[NOISE] += (seconds - mean) ** 2 / (1 + unit / weight) - sums[NOISE] * 1e-3
        sums[NOTED] += 1.0 - sums[NOTED] * 1e-3
    elif weight > 0:  # the cheapest key of a full set gives way
        for row in range(state.F.shape[0]):
            column = cell_one(state.hashes, row, state.F.shape[1], state.keys[ways, way])
            state.F[row, column] += weight
            state.W[row, column] += state.seconds[ways, way]
        state.weights[ways, way] = state.seconds[ways, way] = 0.0
    state.keys[ways, way] = key
    state.weights[ways, way] += unit
    state.seconds[ways, way] += unit * seconds
    state.inverse[ways, way] = 1.0 / max(state.weights[ways, way] / unit, 1.0)
    _count(state, ways, way, 1.0)
    sums[RECORDS] += unit
    sums[SECONDS] += unit * seconds
    sums[SUMMED] += 1.0
    sums[UNIT] = unit * state.growth[0]
    scale = sums[UNIT] > LARGEST_UNIT
    if scale:
        for array in (state.weights, state.seconds, state.F, state.W):
            array /= sums[UNIT]
        sums[RECORDS] /= sums[UNIT]
        sums[SECONDS] /= sums[UNIT]
        sums[UNIT] = 1.0
    if scale or sums[SUMMED] >= state.weights.size:
        _sum_up(state)


@kernel
def _count(state: Knowledge, ways: int, way: int, sign: float) -> None:
    """Add a key to the sums over the keys, or subtract it."""
    sums, mean = state.sums, state.seconds[ways, way] / state.weights[ways, way]
    sums[KEYS] += sign
    sums[MEANS] += sign * mean
    sums[SQUARES] += sign * mean * mean
    sums[INVERSE] += sign * state.inverse[ways, way]


@kernel
def _sum_up(state: Knowledge) -> None:
    """Compute the sums over the keys again."""
    for name in (KEYS, MEANS, SQUARES, INVERSE, SUMMED):
        state.sums[name] = 0.0
    for ways in range(state.weights.shape[0]):
        for way in range(WAYS):
            if state.weights[ways, way] > 0:
                state.inverse[ways, way] = 1.0 / max(state.weights[ways, way] / state.sums[UNIT], 1.0)
                _count(state, ways, way, 1.0)


@kernel
def _mean(sums: Floats) -> float:
    """Seconds per record; 0 without any."""
    return sums[SECONDS] / sums[RECORDS] if sums[RECORDS] > 0 else 0.0


@kernel
def _way(state: Knowledge, ways: int, key: int) -> int:
    """The place of a key in its set, or the place for it."""
    best = 0
    for way in range(WAYS):
        if state.weights[ways, way] > 0 and state.keys[ways, way] == key:
            return way
        if state.seconds[ways, way] < state.seconds[ways, best] or state.weights[ways, way] == 0:
            best = way if state.weights[ways, best] > 0 else best
    return best


@kernel
def _is_exact(state: Knowledge, key: int) -> bool:
    ways = int(key % len(state.keys))
    way = _way(state, ways, key)
    return bool(state.weights[ways, way] > 0 and state.keys[ways, way] == key)


@kernel
def _estimate(state: Knowledge, key: int) -> float:
    """The expected cost of a record of this key on a replica of speed 1."""
    sums = state.sums
    prior = sums[MEANS] / sums[KEYS]
    ways = int(key % len(state.keys))
    way = _way(state, ways, key)
    weight = state.weights[ways, way]
    if weight == 0 or state.keys[ways, way] != key:
        return estimate_one(state.F, state.W, state.hashes, key, prior)
    credit = _credit(sums, prior)
    own = weight / sums[UNIT]
    return float((state.seconds[ways, way] / sums[UNIT] + credit * prior) / (own + credit))


@kernel
def _credit(sums: Floats, prior: float) -> float:
    """The records that a key needs for its own mean to count as much as the mean of all (see ``tide._credibility``)."""
    if sums[NOTED] < 1 or sums[KEYS] < 2:
        return 0.0
    within = sums[NOISE] / sums[NOTED]
    between = sums[SQUARES] / sums[KEYS] - prior * prior - within * sums[INVERSE] / sums[KEYS]
    return min(within / between, 1e9) if between > 0 else 1e9
