"""Grouping by shards: a key stays in its shard for ever, and a table assigns each shard to a task.

Source: Wang et al.: "Elasticutor: rapid elasticity for realtime stateful stream processing", SIGMOD 2019, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes
from springtide.policy.group import GroupPlugin, Share, Table, Targets
from springtide.policy.shard import spread

OWNER = "owner"
"""The name of the table: for each shard, the task that has it."""


@dataclass(frozen=True)
class Shards(GroupPlugin):
    """Target = the owner of the key's shard. The grouping of stateful operators.

    >>> Shards().route(Share(3, width=2, hashes=lambda: np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)), {})
    array([0, 1, 1])
    """

    name = "shards"
    source = "Elasticutor, section 3.1"
    summary = "to the task of the key's shard, for operators with state: shards move between tasks, keys never"
    needs_key: ClassVar[bool] = True

    def route(self, share: Share, table: Table) -> Targets:
        owner = table[OWNER] if OWNER in table else spread(256, share.width)
        targets: Targets = owner[shards_of(share.keys, len(owner))]
        return targets


def shards_of(hashes: Hashes, shards: int) -> npt.NDArray[np.int64]:
    """The shard of each hash: its top 32 bits as a fraction of the number of shards, so that a shard is a range of hashes."""
    return ((hashes >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.int64)
