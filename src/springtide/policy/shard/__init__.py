"""The assignment of a stateful operator's shards to tasks."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from springtide.policy.plugin import Plugin

Owner = npt.NDArray[np.int64]
"""For each shard, the task that has it."""
Loads = npt.NDArray[np.float64]
"""For each shard, the recent cost of its records, in seconds."""


class Sharder(Protocol):
    """Assigns, before every batch, each shard to a task. Pure."""

    name: ClassVar[str]

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        """Assign every shard to one of ``width`` tasks. ``owner``: the present assignment, possibly to more tasks."""


class ShardPlugin(Plugin):
    kind = "shard"


def spread(shards: int, width: int) -> Owner:
    """The assignment before any loads are known: ranges of shards, as even as possible."""
    return np.arange(shards, dtype=np.int64) * width // shards
