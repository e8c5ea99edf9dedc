"""Shards in ranges, whatever they cost: what partitioning by a hash of the key does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from springtide.policy.registry import validate
from springtide.policy.shard import Loads, Owner, spread


@dataclass(frozen=True)
class Fixed:
    """As many shards for every task, which only another width changes."""

    kind: ClassVar[str] = "shard"
    name: ClassVar[str] = "fixed"
    source: ClassVar[str] = "Springtide"
    summary: ClassVar[str] = "as many shards for every task, whatever they cost: hash partitioning"

    def __post_init__(self) -> None:
        validate(self)

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        return spread(len(owner), width)
