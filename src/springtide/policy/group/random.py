"""Random: each record goes to a random target, all with the same probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes
from springtide.policy.group import GroupPlugin, Online, Share, Table, Targets, kernel
from springtide.policy.group.keys import mix, mixed_one
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Random(GroupPlugin):
    """Target = hash of (seed, batch, origin, position) mod width: pseudorandom, and the same in every replay.

    The shuffle grouping to which PSPS compares itself (section V). The fullest of k targets gets about √(2·ln k·rows/k) records
    more than its share by chance; round-robin is never worse.

    >>> Random().route(Share(rows=8, width=3), {}).tolist() == Random().route(Share(rows=8, width=3), {}).tolist()
    True
    """

    name = "random"
    source = "PSPS, section V"
    summary = "to a random task, the same in every replay"

    seed: int = parameter(0, minimum=0, maximum=2**63 - 1, help="another seed gives other random numbers")

    def route(self, share: Share, table: Table) -> Targets:
        drawn = _mixed(_mixed(_mixed(self.seed) ^ share.batch) ^ share.origin)
        positions: Hashes = np.arange(share.rows, dtype=np.uint64)
        return (mix(positions ^ np.uint64(drawn)) % np.uint64(share.width)).astype(np.int64)

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        state = np.full(1, _mixed(self.seed ^ seed), dtype=np.uint64) if before is None else before.drawn.copy()
        return Online(LastDrawn(state), at_random)


class LastDrawn(NamedTuple):
    drawn: Hashes


@kernel
def at_random(state: LastDrawn, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    state.drawn[0] = mixed_one(state.drawn[0])
    return int(state.drawn[0] % np.uint64(len(free)))


def _mixed(x: int) -> int:
    return int(mix(np.full(1, x % 2**64, dtype=np.uint64))[0])
