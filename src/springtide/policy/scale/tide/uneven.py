"""How much of M/M/k's wait there is: less where records come and are served more evenly than by chance.

Allen and Cunneen: the wait is about (c_a² + c_s²)/2 times that of M/M/k. Neither spread is measured, but the wait is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from springtide.model.snapshot import Snapshot
from springtide.policy.scale.tide import replay

FADING = 0.95
"""What the intervals before weigh in an operator's waits, beside this one: 20 of them count."""
BELIEVED = 0.25
"""The wait that counts as measured in the beginning, in a record's cost: M/M/k holds until more than that was expected."""
FULL = 0.95
"""Above such a load a queue goes by what came before, and not by the load."""
LEAST = 0.6
"""No less than this part of M/M/k's wait is planned for: with none, a replica less holds what comes evenly, and nothing more.
On DABS-Storm's S1, all even, a record that waits for nothing leaves one replica at 10/s, and the next step is 10 s late."""

Waits = Mapping[str, Sequence[float]]
"""By operator the seconds that records waited, those by M/M/k, and how many records were waiting at last."""


def followed(before: Waits, snapshot: Snapshot, target_s: float) -> dict[str, tuple[float, float, float]]:
    """The sums after an interval, of which the last count most. In sums, an interval counts by the wait that was expected.

    Where a queue was before or is left, or the replicas were all but busy, it is not chance that made records wait; in batches
    they wait for the batch.
    """
    found = {name: (waited, modelled, queue) for name, (waited, modelled, queue) in before.items()}
    told = [
        (o, o.cost_s, o.latency_ms / 1000, o.rate)
        for o in (() if snapshot.batches else snapshot.operators)
        if o.cost_s is not None and o.latency_ms is not None and o.rate
    ]
    if not told:
        return found
    costs, rates = np.array([cost for _, cost, _, _ in told]), np.array([rate for _, _, _, rate in told])
    degrees = np.array([max(1, o.degree) for o, _, _, _ in told], dtype=np.int64)
    expected = replay.waiting(rates, costs, degrees, snapshot.interval_s).tolist()
    for (o, cost, response, rate), modelled in zip(told, expected, strict=True):
        start = BELIEVED * cost
        waited, by_model, queue = found.get(o.name, (start, start, 0.0))
        left = float(o.backlog or 0)
        steady = max(queue, left) * cost <= replay.ROOM * target_s * o.degree and rate * cost <= FULL * o.degree
        if steady:
            waited, by_model = FADING * waited + max(0.0, response - cost), FADING * by_model + modelled
        found[o.name] = waited, by_model, left
    return found


def part(sums: Sequence[float] | None) -> float:
    """The part of M/M/k's wait that was measured, from ``LEAST`` to all of it: what is above comes of a rate that changed."""
    return min(1.0, max(LEAST, sums[0] / sums[1])) if sums and sums[1] > 0 else 1.0
