"""The executors of a run: asked for when slots are wanted, let go when keeping them costs more than getting them back."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from springtide.control.ports import Clock, Cluster
from springtide.errors import OptionError
from springtide.model.executor import Executor
from springtide.model.snapshot import NodeSnapshot

log = logging.getLogger("springtide.control")

STARTING_S = 8.0
"""How long an executor takes to come, until that was measured: 7.8 s on a standalone cluster of one machine."""
LONGEST_START_S = 300.0
"""One that was asked for and has not come after so long is no longer waited for: the cluster has no room."""
NEWEST = 0.5
"""What the newest start counts in the mean."""


@dataclass(frozen=True)
class Limits:
    """How many executors there may be, and how many tasks each runs at once."""

    least: int
    most: int
    cores: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise OptionError(f"executors from {self.least} to {self.most} are not allowed; 1 ≤ the least ≤ the most")
        if self.cores < 1:
            raise OptionError(f"executors with {self.cores} cores are not allowed; they have at least 1")

    def executors(self, slots: int) -> int:
        """How many it takes for so many tasks at once, within the limits.

        >>> Limits(1, 6, cores=2).executors(5)
        3
        """
        return max(self.least, min(math.ceil(slots / self.cores), self.most))


@dataclass
class Fleet:
    """Follows the slots that plans grant.

    More are asked for at once. One too many is kept for as long as it takes to start one, because that is what it costs to
    get it back: whatever comes, no more than twice is paid of what somebody pays who knows the future (the ski rental rule).
    Those go first that hold no state, then those with the fewest tasks, then the newest.
    """

    cluster: Cluster
    limits: Limits
    clock: Clock
    tell: Callable[[Mapping[str, object]], None] = lambda _: None
    elastic: bool = True  # else it only looks
    starting_s: float = STARTING_S
    executor_seconds: float = 0.0
    _there: tuple[Executor, ...] = ()
    _paid: int = 0  # those that were there when it last looked, also the leaving ones
    _asked: int = 0
    _awaited: list[float] = field(default_factory=list)  # when each that has not come yet was asked for
    _spare_since: list[float] = field(default_factory=list)  # since when there are at least 1, 2, … too many
    _leaving: set[str] = field(default_factory=set)
    _looked: float | None = None
    _used: Mapping[str, float] = field(default_factory=dict)  # cores by host, in the last interval

    def move(self, cluster: Cluster) -> None:
        """Go on with the executors of another session, after the first one's driver died."""
        self.cluster, self._there, self._paid, self._asked, self._looked = cluster, (), 0, 0, None
        self._awaited, self._spare_since, self._leaving = [], [], set()

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once now; None before any executor was seen."""
        return sum(executor.cores for executor in self._there) or None

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """The hosts of the executors: their cores, and how many of them were in use."""
        cores: dict[str, int] = {}
        for executor in self._there:
            cores[executor.host] = cores.get(executor.host, 0) + executor.cores
        return tuple(NodeSnapshot(host, count, self._used.get(host)) for host, count in cores.items())

    def look(self) -> None:
        """See who is there, and learn how long a start takes."""
        now, seen = self.clock(), self.cluster.executors()
        before = {executor.name: executor for executor in self._there}
        passed = now - self._looked if self._looked is not None else 0.0
        self.executor_seconds += passed * self._paid
        self._leaving &= {executor.name for executor in seen}
        there = tuple(executor for executor in seen if not executor.leaving and executor.name not in self._leaving)
        if self._looked is not None:
            for _ in [executor for executor in there if executor.name not in before]:
                self._arrived(now)
        if passed > 0:
            self._used = _used(before, there, passed)
        self._awaited = [at for at in self._awaited if now - at < LONGEST_START_S]
        self._there, self._paid, self._looked = there, len(seen), now

    def follow(self, slots: int, reason: str = "") -> None:
        """Ask for what is missing, and let go what was not needed for long enough."""
        if not self.elastic or not (self._there or self._asked):
            return  # those that come with the session are not there yet
        now, wanted = self.clock(), self.limits.executors(slots)
        if not self._asked:
            self._asked = len(self._there)  # those that came with the session
        spare = max(self._asked, len(self._there)) - wanted
        del self._spare_since[max(0, spare) :]
        self._spare_since += [now] * (spare - len(self._spare_since))
        if wanted > self._asked:
            self._awaited += [now] * (wanted - self._asked)
            self._want(wanted, (), f"{slots} slots: {reason}")
        else:
            over = sum(now - since >= self.starting_s for since in self._spare_since)
            if over:
                self._let_go(over, slots, reason)

    def _let_go(self, over: int, slots: int, reason: str) -> None:
        del self._spare_since[:over]
        total = max(self._asked, len(self._there)) - over
        order = sorted(self._there, key=lambda one: (one.state_bytes, one.tasks, -_number(one.name)))
        going = tuple(one.name for one in order[: max(0, len(self._there) - total)])
        self._want(total, going, f"{slots} slots for {self.starting_s:.0f} s: {reason}")

    def _want(self, total: int, going: tuple[str, ...], reason: str) -> None:
        log.info("executors %d → %d%s: %s", self._asked, total, f", letting go {', '.join(going)}" if going else "", reason)
        self.tell({"executors": {"from": self._asked, "to": total, "released": list(going)}, "reason": reason})
        self._awaited = self._awaited[: max(0, total - len(self._there))]
        self._asked = total
        self.cluster.ask(total)
        if going:
            self.cluster.release(going)
            self._leaving |= set(going)
            self._there = tuple(one for one in self._there if one.name not in going)

    def _arrived(self, now: float) -> None:
        """One came: the oldest that was asked for, if any was; else it replaces one that was lost."""
        if self._awaited:
            self.starting_s += NEWEST * (now - self._awaited.pop(0) - self.starting_s)


def _used(before: Mapping[str, Executor], there: tuple[Executor, ...], passed_s: float) -> dict[str, float]:
    used: dict[str, float] = {}
    for one in there:
        earlier = before[one.name].busy_s if one.name in before else 0.0
        used[one.host] = used.get(one.host, 0.0) + max(0.0, one.busy_s - earlier) / passed_s
    return used


def _number(name: str) -> int:
    """Executors are numbered in the order in which they came."""
    return int(name) if name.isdigit() else 0
