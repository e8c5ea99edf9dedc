"""Changes of the replicas' speeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.sim.kernels import Floats
from springtide.sim.model import Speeds


def segments(
    phases: Sequence[Speeds], at: Floats, first: int, last: int, seen: int
) -> list[tuple[int, tuple[float, ...]]]:  # fmt: skip
    """The ends of the segments of rows with constant speeds, and their factors.

    ``at``: arrival times of the rows; ``seen``: earlier arrivals.
    """
    if first == last or len(phases) < 2:
        return [(last, phases[0].factors if phases else ())]
    cuts = []
    for speeds in phases:
        by_time = first + int(np.searchsorted(at[first:last], speeds.from_s, side="left"))
        cuts.append(min(last, max(first + speeds.from_record - seen, by_time)))
    ends = [max(first, cut) for cut in cuts[1:]] + [last]
    found = [(end, speeds.factors) for end, speeds in zip(ends, phases, strict=True)]
    return [(end, factors) for i, (end, factors) in enumerate(found) if end > (found[i - 1][0] if i else first)]
