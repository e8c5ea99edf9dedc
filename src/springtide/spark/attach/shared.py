"""The executors of one application, which all queries that are attached to share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from springtide.control.fleet import Fleet, Limits
from springtide.control.ports import Clock, Cluster
from springtide.model.snapshot import NodeSnapshot
from springtide.spark.attach.released import Remembered

log = logging.getLogger("springtide.attach")


@dataclass
class SharedExecutors:
    """As many executors as the slots of all queries together take; when the last query leaves, as many as before.

    What a query begins with are the slots of all executors, so only what policies have decided is added up. Of the queries'
    limits the largest hold for all together: they are the application's. ``before``: the application's own executors. They may
    come after the first query did: until the fleet has changed something, those that come are counted in.
    """

    cluster: Cluster
    clock: Clock
    before: int = 0
    fleet: Fleet = field(init=False)
    _remembered: Remembered = field(init=False)
    _wanted: dict[str, tuple[int, str]] = field(default_factory=dict)
    _decided: set[str] = field(default_factory=set)  # the queries of whose slots a policy has decided
    _limits: dict[str, Limits] = field(default_factory=dict)
    _changed: bool = False  # the fleet has asked for executors or let some go since the first query joined
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._remembered = Remembered(self.cluster)
        self.fleet = Fleet(self._remembered, Limits(1, 1), self.clock, tell=self._note)

    def own(self) -> int:
        """The executors that the application has by itself, those included that it was given back and that have yet to come."""
        with self._lock:
            return self.before if self._changed else max(self.before, len(self._remembered.staying()))

    def join(self, query: str, limits: Limits, slots: int, before: int) -> None:
        """One more query, and the slots that it begins with. ``before``: the executors that the application has."""
        with self._lock:
            if not self._wanted:
                self.before = before
            self._set(query, limits, slots, "attached")

    def extend(self, query: str, limits: Limits, slots: int) -> None:
        """A query's limits and slots, now that more of the application's own executors have come."""
        with self._lock:
            if query in self._wanted:
                self._set(query, limits, slots, self._wanted[query][1])

    def want(self, query: str, slots: int, reason: str) -> None:
        """What a policy has decided; the reason of the last change stays."""
        with self._lock:
            if query in self._wanted:
                self._decided.add(query)
                if slots != self._wanted[query][0]:
                    self._wanted[query] = slots, reason

    def look(self) -> None:
        """See who is there. Who comes while nobody has changed anything is the application's own, and not one too many."""
        with self._lock:
            self.fleet.look()
            if not self._changed and self.count > self.before:
                self.before = self.count
                self._begin_anew()  # else it would ask for those that came, and the cluster bring no more
                self.fleet.look()

    def follow(self) -> None:
        """Ask for and let go what the queries' slots take."""
        with self._lock:
            if self._wanted:
                decided = sum(slots for query, (slots, _) in self._wanted.items() if query in self._decided)
                begun = [slots for query, (slots, _) in self._wanted.items() if query not in self._decided]
                total = max([decided, *begun])
                reasons = [reason for _, reason in self._wanted.values() if reason]
                self.fleet.follow(total, "; ".join(reasons))

    def leave(self, query: str) -> None:
        """A query goes; the last one leaves as many executors as there were before the first, if that was changed at all."""
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
            self._begin_anew()  # what it had asked for holds no more

    def there(self, query: str) -> int | None:
        """The slots that are there for a query: of several, by what each was granted; None before any was seen."""
        with self._lock:
            if self.fleet.slots is None:
                return None
            total = sum(slots for slots, _ in self._wanted.values())
            share = self._wanted[query][0] / total if query in self._wanted and total else 1.0
            return max(1, round(self.fleet.slots * share))

    @property
    def count(self) -> int:
        """The executors that are there."""
        return sum(len(node.executors) for node in self.nodes)

    @property
    def starting_s(self) -> float:
        return self.fleet.starting_s

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        with self._lock:
            return self.fleet.nodes

    def _give_back(self) -> None:
        there = self._remembered.staying()
        log.info("executors %d → %d, as before", len(there), self.before)
        self._remembered.ask(self.before)
        if there[self.before :]:
            self._remembered.release(there[self.before :])

    def _begin_anew(self) -> None:
        self.fleet.move(self._remembered, self._remembered.told)

    def _set(self, query: str, limits: Limits, slots: int, reason: str) -> None:
        self._limits[query] = limits
        self._wanted[query] = slots, reason
        self._limit()

    def _limit(self) -> None:
        limits: Mapping[str, Limits] = self._limits
        cores = next(iter(limits.values())).cores
        most = max(one.most for one in limits.values())
        self.fleet.limits = Limits(max(one.least for one in limits.values()), most, cores)

    def _note(self, entry: Mapping[str, object]) -> None:
        self._changed = True
