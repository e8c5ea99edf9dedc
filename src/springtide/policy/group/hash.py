"""Hash grouping: records with the same key go to the same task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes
from springtide.policy.group import GroupPlugin, Online, Share, Table, Targets, kernel
from springtide.policy.group.keys import mix, mixed_one
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Hash(GroupPlugin):
    """Target = hash of the key mod width.

    Another ``seed`` gives an independent assignment: two keys that share a task under a seed rarely do under another.

    >>> import pyarrow as pa
    >>> trips = Share.of(pa.record_batch({"city": ["Graz", "Linz", "Graz"]}), ("city",), width=8)
    >>> route = Hash().route(trips, {})
    >>> bool(route[0] == route[2])
    True
    """

    name = "hash"
    source = "Springtide"
    summary = "records with the same key to the same task, by a stable hash"
    needs_key: ClassVar[bool] = True

    seed: int = parameter(0, minimum=0, maximum=2**63 - 1, help="another seed spreads the keys in another way")

    def route(self, share: Share, table: Table) -> Targets:
        return (seeded(share.keys, self.seed) % np.uint64(share.width)).astype(np.int64)

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(Seed(np.full(1, self.seed, dtype=np.uint64)), by_key)


class Seed(NamedTuple):
    seed: Hashes


@kernel
def by_key(state: Seed, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    mixed = key if state.seed[0] == 0 else mixed_one(key ^ mixed_one(state.seed[0]))
    return int(mixed % np.uint64(len(free)))


def seeded(keys: Hashes, seed: int) -> Hashes:
    """An independent hash of the keys for every seed."""
    return keys if seed == 0 else mix(keys ^ mix(np.full(1, seed, dtype=np.uint64)))
