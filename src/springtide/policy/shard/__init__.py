"""Which task has a shard of a stateful operator."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

Owner = npt.NDArray[np.int64]
"""By shard, the task that has it."""
Loads = npt.NDArray[np.float64]
"""By shard, what its records cost lately, in seconds."""


class Sharder(Protocol):
    """Decides, before every batch, which task has each shard. Pure."""

    name: ClassVar[str]

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        """Every shard to one of so many tasks. ``owner``: as it is, which may be for more tasks than there are now."""
        ...


def spread(shards: int, width: int) -> Owner:
    """Before anything is known: ranges of shards, as even as can be."""
    return np.arange(shards, dtype=np.int64) * width // shards
