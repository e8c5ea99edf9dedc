"""The executors of one application, which its attached queries share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from springtide.control.fleet import Fleet, Limits
from springtide.control.ports import Clock, ClusterManager
from springtide.model.snapshot import NodeSnapshot
from springtide.spark.attach.released import ReleaseTracking

log = logging.getLogger("springtide.attach")


@dataclass
class SharedExecutors:
    """Requests executors for the sum of all queries' slots; when the last query leaves, the previous number.

    A query starts with the slots of all executors, so only slots that policies have decided are added up. The largest of the
    queries' limits apply to the application. ``before``: the application's own executors. Until the fleet has changed
    something, executors that start count as the application's own.
    """

    cluster: ClusterManager
    clock: Clock
    before: int = 0
    fleet: Fleet = field(init=False)
    _cluster: ReleaseTracking = field(init=False)
    _wanted: dict[str, tuple[int, str]] = field(default_factory=dict)
    _decided: set[str] = field(default_factory=set)  # queries whose slots a policy has decided
    _limits: dict[str, Limits] = field(default_factory=dict)
    _changed: bool = False  # the fleet has requested or released executors since the first query joined
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._cluster = ReleaseTracking(self.cluster)
        self.fleet = Fleet(self._cluster, Limits(1, 1), self.clock, tell=self._note)

    def own(self) -> int:
        """The application's own executors, including requested ones that have not started yet."""
        with self._lock:
            return self.before if self._changed else max(self.before, len(self._cluster.staying()))

    def join(self, query: str, limits: Limits, slots: int, before: int) -> None:
        """Add a query with its initial slots. ``before``: the application's executors."""
        with self._lock:
            if not self._wanted:
                self.before = before
            self._set(query, limits, slots, "attached")

    def extend(self, query: str, limits: Limits, slots: int) -> None:
        """Set a query's limits and slots after more of the application's own executors have started."""
        with self._lock:
            if query in self._wanted:
                self._set(query, limits, slots, self._wanted[query][1])

    def want(self, query: str, slots: int, reason: str) -> None:
        """Set the slots that a policy has decided. The reason of the last change is retained."""
        with self._lock:
            if query in self._wanted:
                self._decided.add(query)
                if slots != self._wanted[query][0]:
                    self._wanted[query] = slots, reason

    def look(self) -> None:
        """Observe the executors. While the fleet has changed nothing, new executors are the application's own."""
        with self._lock:
            self.fleet.look()
            if not self._changed and self.count > self.before:
                self.before = self.count
                self._reset_fleet()  # else it requests only the present number, and no more start
                self.fleet.look()

    def follow(self) -> None:
        """Request or release executors for the queries' slots."""
        with self._lock:
            if self._wanted:
                decided = sum(slots for query, (slots, _) in self._wanted.items() if query in self._decided)
                begun = [slots for query, (slots, _) in self._wanted.items() if query not in self._decided]
                total = max([decided, *begun])
                reasons = [reason for _, reason in self._wanted.values() if reason]
                self.fleet.follow(total, "; ".join(reasons))

    def leave(self, query: str) -> None:
        """Remove a query. When the last one leaves, restore the number of executors if the fleet has changed it."""
        with self._lock:
            if self._wanted.pop(query, None) is None:
                return
            del self._limits[query]
            self._decided.discard(query)
            if self._wanted:
                self._limit()
                return
            if self._changed:
                self._give_back()
            self._changed = False
            self._reset_fleet()  # its requests are void

    def there(self, query: str) -> int | None:
        """The available slots of a query, in proportion to its grant; None before the first observation."""
        with self._lock:
            if self.fleet.slots is None:
                return None
            total = sum(slots for slots, _ in self._wanted.values())
            share = self._wanted[query][0] / total if query in self._wanted and total else 1.0
            return max(1, round(self.fleet.slots * share))

    @property
    def count(self) -> int:
        """The number of running executors."""
        return sum(len(node.executors) for node in self.nodes)

    @property
    def starting_s(self) -> float:
        return self.fleet.starting_s

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        with self._lock:
            return self.fleet.nodes

    def _give_back(self) -> None:
        there = self._cluster.staying()
        log.info("executors %d → %d, as before", len(there), self.before)
        self._cluster.ask(self.before)
        if there[self.before :]:
            self._cluster.release(there[self.before :])

    def _reset_fleet(self) -> None:
        self.fleet.move(self._cluster, self._cluster.released)

    def _set(self, query: str, limits: Limits, slots: int, reason: str) -> None:
        self._limits[query] = limits
        self._wanted[query] = slots, reason
        self._limit()

    def _limit(self) -> None:
        limits: Mapping[str, Limits] = self._limits
        cores = next(iter(limits.values())).cores
        most = max(limit.most for limit in limits.values())
        self.fleet.limits = Limits(max(limit.least for limit in limits.values()), most, cores)

    def _note(self, entry: Mapping[str, object]) -> None:
        self._changed = True
