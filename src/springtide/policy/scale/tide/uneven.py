"""The measured share of M/M/k's wait: less than 1 if arrivals and service are more even than random.

Allen and Cunneen: the wait is about (c_a² + c_s²)/2 times that of M/M/k. The variations are not measured, but the wait is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from springtide.model.snapshot import Snapshot
from springtide.policy.scale.tide import replay

WAIT_MEMORY = 0.95
"""Weight of the previous intervals in an operator's waits: about 20 count."""
PRIOR_WAIT = 0.25
"""The initial sum of waits, in costs of a record: M/M/k is assumed until more waiting was expected."""
MAX_LOAD = 0.95
"""Above this load a queue depends on earlier arrivals, and not on the load."""
MIN_PART = 0.6
"""Plan for at least this share of M/M/k's wait, as a reserve for uneven input. On DABS-Storm's S1, which is all even, a model
without waits leaves one replica at 10/s, and the next step is 10 s late."""

Waits = Mapping[str, Sequence[float]]
"""By operator: the sums of the measured waits and of those by M/M/k, in seconds, and the last backlog."""


def followed(before: Waits, snapshot: Snapshot, target_s: float) -> dict[str, tuple[float, float, float]]:
    """The sums after an interval, with the most weight on the last one. In sums, an interval's weight is its expected wait.

    Intervals with a queue at either end or with nearly busy replicas are excluded, as their waits are not random; in batches,
    records wait for the batch.
    """
    found = {name: (waited, modelled, queue) for name, (waited, modelled, queue) in before.items()}
    measured = [
        (o, o.cost_s, o.latency_ms / 1000, o.rate)
        for o in (() if snapshot.batches else snapshot.operators)
        if o.cost_s is not None and o.latency_ms is not None and o.rate
    ]
    if not measured:
        return found
    costs, rates = np.array([cost for _, cost, _, _ in measured]), np.array([rate for _, _, _, rate in measured])
    degrees = np.array([max(1, o.degree) for o, _, _, _ in measured], dtype=np.int64)
    expected = replay.waiting(rates, costs, degrees, snapshot.interval_s).tolist()
    for (o, cost, response, rate), modelled in zip(measured, expected, strict=True):
        start = PRIOR_WAIT * cost
        waited, by_model, queue = found.get(o.name, (start, start, 0.0))
        left = float(o.backlog or 0)
        steady = max(queue, left) * cost <= replay.TARGET_SHARE * target_s * o.degree and rate * cost <= MAX_LOAD * o.degree
        if steady:
            waited, by_model = WAIT_MEMORY * waited + max(0.0, response - cost), WAIT_MEMORY * by_model + modelled
        found[o.name] = waited, by_model, left
    return found


def part(sums: Sequence[float] | None) -> float:
    """The measured share of M/M/k's wait, from ``MIN_PART`` to 1: a larger share is due to a changed rate."""
    return min(1.0, max(MIN_PART, sums[0] / sums[1])) if sums and sums[1] > 0 else 1.0
