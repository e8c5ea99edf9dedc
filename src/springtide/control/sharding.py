"""Which task has each shard of a stateful operator, balanced from batch to batch by the costs of the shards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import numpy as np

from springtide.model.report import BatchReport
from springtide.model.topology import Topology
from springtide.once import Once
from springtide.policy.shard import Loads, Owner, Sharder, spread
from springtide.policy.shard.balance import Balance

log = logging.getLogger("springtide.control")

LOAD_SMOOTHING = 0.8
"""Weight of the latest batch in a shard's load. Elasticutor takes the last second's load; a batch may be shorter."""


class Sharding:
    """The shard maps of a run. A plan takes the present maps when its batch starts."""

    def __init__(self, topology: Topology, sharder: Sharder | None = None) -> None:
        self._shards = {o.name: o.state.shards for o in topology.stateful if o.state is not None}
        self._sharder = sharder or Balance()
        self._failing = Once()
        self._loads: dict[str, Loads] = {name: np.zeros(count) for name, count in self._shards.items()}
        self._owners: dict[str, tuple[int, Owner]] = {}  # with their width
        self._stale: set[str] = set(self._shards)
        self._lock = threading.Lock()

    def report(self, report: BatchReport) -> None:
        """Learn the shards' costs in a batch."""
        with self._lock:
            for name, costs in report.state.items():
                loads = np.zeros(self._shards[name])
                for shard, seconds in costs.seconds.items():
                    loads[shard] = seconds
                self._loads[name] += LOAD_SMOOTHING * (loads - self._loads[name])
                self._stale.add(name)

    def maps(self, widths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The task that has each shard, for tasks of these widths."""
        with self._lock:
            return {name: self._map(name, max(1, widths.get(name, 1))) for name in self._shards}

    def _map(self, name: str, width: int) -> tuple[int, ...]:
        before = self._owners.get(name)
        if before is None or before[0] != width or name in self._stale:
            owner = spread(self._shards[name], width) if before is None else before[1]
            self._owners[name] = width, self._assigned(owner, self._loads[name], width)
            self._stale.discard(name)
        return tuple(self._owners[name][1].tolist())

    def _assigned(self, owner: Owner, loads: Loads, width: int) -> Owner:
        """The sharder's assignment; if it fails or names a missing task, an even spread."""
        try:
            found = self._sharder.assign(owner, loads, width)
            if found.shape != owner.shape or found.min() < 0 or found.max() >= width:
                raise ValueError(
                    f"it must return a task from 0 to {width - 1} for each of {len(owner)} shards; it returned {found!r}"
                )
            return found
        except Exception:
            if self._failing.begins():
                log.warning("sharding %s failed; shards are spread evenly", getattr(self._sharder, "name", "?"), exc_info=True)
            return spread(len(owner), width)
