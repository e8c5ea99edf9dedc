"""A fixed assignment of ranges of shards, whatever their loads: the same as hash partitioning."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.policy.shard import Loads, Owner, ShardPlugin, spread


@dataclass(frozen=True)
class Fixed(ShardPlugin):
    """The same number of shards for every task. Only a change of the width changes it."""

    name = "fixed"
    source = "Springtide"
    summary = "the same number of shards for every task, whatever their loads: hash partitioning"

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        return spread(len(owner), width)
