"""A fixed assignment of ranges of shards, whatever their loads: the same as hash partitioning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from springtide.policy.registry import validate
from springtide.policy.shard import Loads, Owner, spread


@dataclass(frozen=True)
class Fixed:
    """The same number of shards for every task. Only a change of the width changes it."""

    kind: ClassVar[str] = "shard"
    name: ClassVar[str] = "fixed"
    source: ClassVar[str] = "Springtide"
    summary: ClassVar[str] = "the same number of shards for every task, whatever their loads: hash partitioning"

    def __post_init__(self) -> None:
        validate(self)

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        return spread(len(owner), width)
