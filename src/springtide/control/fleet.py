"""The executors of a run: asked for when slots are wanted, let go when keeping them costs more than getting them back.

What the fleet wants are requests like those of any manager: it does what is granted, and all of it where nobody judges.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from springtide.control.ports import Clock, Cluster
from springtide.errors import OptionError
from springtide.model.executor import Executor
from springtide.model.request import Action, AddExecutors, RemoveExecutor, Request, Verdict
from springtide.model.snapshot import NodeSnapshot
from springtide.policy.place.release import leaving

log = logging.getLogger("springtide.control")

STARTING_S = 8.0
"""How long an executor takes to come, until that was measured: 7.8 s on a standalone cluster of one machine."""
LONGEST_START_S = 300.0
"""One that was asked for and has not come after so long is no longer waited for: the cluster has no room."""
AGAIN_S = 30.0
"""What was asked of the cluster and is not seen after so long is asked again: the cluster manager may not have heard it."""
NEWEST = 0.5
"""What the newest start counts in the mean."""
RELIEF_S = 300.0
"""From a host an executor is sent elsewhere so often at most: the cluster manager may well put the new one there again."""

Judge = Callable[[Sequence[Request], int], tuple[Verdict, ...]]
"""Says which requests are granted, and knows how many executors are paid for. Asked in every round, also with none."""


@dataclass(frozen=True)
class Limits:
    """How many executors there may be, and how many tasks each runs at once."""

    least: int
    most: int
    cores: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise OptionError(
                f"min_executors={self.least} is not allowed; it is from 1 to the most executors that there may be, {self.most}:"
                f" lower it, or raise max_executors (in a run max_slots, of which an executor has {self.cores})"
            )
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
    Those with the fewest tasks go first, then the newest; but where hosts cache state, those with whom the least of it goes.
    What the cluster was asked and did not do is asked again.
    """

    cluster: Cluster
    limits: Limits
    clock: Clock
    tell: Callable[[Mapping[str, object]], None] = lambda _: None
    elastic: bool = True  # else it only looks
    caching: bool = False  # whether executors of a host share what is cached there of the state
    judge: Judge | None = None
    starting_s: float = STARTING_S
    executor_seconds: float = 0.0
    _there: tuple[Executor, ...] = ()
    _paid: int = 0  # those that were there when it last looked, also the leaving ones
    _asked: int = 0
    _requested: int = 0  # the same, but 0 until the cluster was asked: those that come with the session are its own business
    _awaited: list[float] = field(default_factory=list)  # when each that has not come yet was asked for
    _spare_since: list[float] = field(default_factory=list)  # since when there are at least 1, 2, … too many
    _short_since: float | None = None  # since when there are fewer than were asked for, or since that was asked again
    _leaving: dict[str, float] = field(default_factory=dict)  # those that were let go, and when they were last told to go
    _looked: float | None = None
    _used: Mapping[str, float] = field(default_factory=dict)  # cores by host, in the last interval
    _refused: frozenset[str] = frozenset()  # in the last round, and told
    _relieved: dict[str, float] = field(default_factory=dict)  # when an executor of a host was last sent elsewhere
    _kept: set[str] = field(default_factory=set)  # since then, though they were granted to go, and told
    _begun: float = field(init=False)  # when the session was there, which has asked for its first executors
    _names: frozenset[str] = frozenset()  # of all that were seen when it last looked
    _lost: bool = False  # whether any has gone since the session was there, so that another comes in its place

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def move(self, cluster: Cluster, leaving: Iterable[str] = ()) -> None:
        """Go on with the executors of another session, after the first one's driver died, or begin anew with the same ones.

        ``leaving``: those that were let go before.
        """
        self.cluster, self._there, self._paid, self._asked, self._looked = cluster, (), 0, 0, None
        self._requested, self._begun, self._names, self._lost = 0, self.clock(), frozenset(), False
        self._awaited, self._spare_since, self._short_since, self._relieved = [], [], None, {}
        self._leaving = dict.fromkeys(leaving, self.clock())

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once now; None before any executor was seen."""
        return sum(executor.cores for executor in self._there) or None

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """The hosts of the executors: their cores, how many of them were in use, and how full the executors' memory is."""
        hosts: dict[str, list[Executor]] = {}
        for executor in self._there:
            hosts.setdefault(executor.host, []).append(executor)
        return tuple(
            NodeSnapshot(
                host, sum(one.cores for one in there), self._used.get(host), tuple(one.name for one in _missed_least(there)),
                max((share for one in there if (share := _memory(one)) is not None), default=None),
            )
            for host, there in hosts.items()
        )  # fmt: skip

    def look(self) -> None:
        """See who is there, learn how long a start takes, and ask again for what was not done."""
        now, seen = self.clock(), self.cluster.executors()
        before = {executor.name: executor for executor in self._there}
        passed = now - self._looked if self._looked is not None else 0.0
        self.executor_seconds += passed * self._paid
        names = frozenset(executor.name for executor in seen)
        self._lost = self._lost or not self._names <= names
        self._leaving = {name: told for name, told in self._leaving.items() if name in names}
        staying = [one for one in seen if not (one.leaving or one.name in self._leaving)]
        there = tuple(one for one in staying if not one.starting)
        if self._looked is not None:
            for _ in [executor for executor in there if executor.name not in before]:
                self._arrived(now)
        if passed > 0:
            self._used = _used(before, there, passed)
        self._awaited = [at for at in self._awaited if now - at < LONGEST_START_S]
        self._there, self._paid, self._looked, self._names = there, len(seen), now, names
        self._ask_again(now, len(staying))
        self._release_again(now, {one.name for one in seen if one.leaving})

    def follow(self, slots: int, reason: str = "") -> None:
        """Ask for what is missing, and let go what was not needed for long enough, as far as that is granted."""
        if not self.elastic or not (self._there or self._asked):
            return  # those that come with the session are not there yet
        now, wanted = self.clock(), self.limits.executors(slots)
        self._count_those_there()
        spare = max(self._asked, len(self._there)) - wanted
        del self._spare_since[max(0, spare) :]
        self._spare_since += [now] * (spare - len(self._spare_since))
        over = sum(now - since >= self.starting_s for since in self._spare_since)
        if wanted > self._asked:
            self._ask_for(wanted - self._asked, f"{slots} slots: {reason}")
        else:
            self._let_go(over, f"{slots} slots for {self.starting_s:.0f} s: {reason}")

    def replace(self, name: str, reason: str) -> None:
        """Let one go that was granted to go, for another to come in its place; as many are asked for as before.

        One at a time: not while another has yet to come, or executors would go faster than they come.
        """
        now, one = self.clock(), next((one for one in self._there if one.name == name), None)
        if not self.elastic or one is None:
            return
        self._count_those_there()
        why_not = self._why_not(one, now)
        if why_not:
            if name not in self._kept:  # once: it will be granted again and again
                log.info("executor %s stays: %s (%s)", name, why_not, reason)
                self.tell({"executors": {"kept": name}, "reason": f"{why_not} ({reason})"})
                self._kept.add(name)
            return
        self._relieved[one.host] = now
        self._kept.clear()
        self._want(self._asked, (name,), reason)
        self._awaited.append(now)

    def _why_not(self, one: Executor, now: float) -> str:
        """Why it is not replaced now; nothing if it can be."""
        if all(other.host == one.host for other in self._there):
            return f"all executors are on {one.host}"
        if len(self._there) < self._asked:
            return f"{len(self._there)} of {self._asked} executors are there, the others have to come first"
        passed = now - self._relieved.get(one.host, -math.inf)
        return f"another left {one.host} {passed:.0f} s ago, within {RELIEF_S:.0f} s" if passed < RELIEF_S else ""

    def _count_those_there(self) -> None:
        if not self._asked:
            self._asked = len(self._there)  # those that came with the session

    def _ask_for(self, more: int, reason: str) -> None:
        score = more / (self._asked + more)
        granted = self._granted([Request(manager="the fleet", action=AddExecutors(more), score=score, reason=reason)])
        count = sum(action.count for action in granted if isinstance(action, AddExecutors))
        if count:
            self._awaited += [self.clock()] * count
            self._want(self._asked + count, (), reason)

    def _let_go(self, over: int, reason: str) -> None:
        """Those that have not come yet are no longer asked for, which nobody has to grant; of the others each is proposed."""
        total = max(self._asked, len(self._there)) - over
        going = self._first_to_go(max(0, len(self._there) - total)) if over else []
        score = over / (total + over)
        granted = self._granted(
            [Request(manager="the fleet", action=RemoveExecutor(one.name), score=score, reason=reason) for one in going]
        )
        names = tuple(action.executor for action in granted if isinstance(action, RemoveExecutor))
        fewer = over - len(going) + len(names)
        if fewer:
            del self._spare_since[:fewer]
            self._want(total + len(going) - len(names), names, reason)

    def _first_to_go(self, count: int) -> list[Executor]:
        if not self.caching:
            return _missed_least(self._there)[:count]
        hosts: dict[str, list[Executor]] = {}
        for one in _missed_least(self._there):
            hosts.setdefault(one.host, []).append(one)
        going = leaving([len(there) for there in hosts.values()], count)
        return [one for there, number in zip(hosts.values(), going, strict=True) for one in there[:number]]

    def _granted(self, requests: Sequence[Request]) -> list[Action]:
        if self.judge is None:
            return [request.action for request in requests]
        verdicts = self.judge(requests, max(self._asked, len(self._there)))
        refused = {_what(verdict.request.action): verdict for verdict in verdicts if not verdict.granted}
        for what, verdict in refused.items():
            if what not in self._refused:  # once, not in every round in which it is proposed again
                log.info("%s", verdict)
                self.tell(verdict.refusal())
        self._refused = frozenset(refused)
        return [verdict.action for verdict in verdicts if verdict.action is not None]

    def _ask_again(self, now: float, there: int) -> None:
        """A start is measured from when it was first asked for: most often it was heard, and the executor takes that long."""
        if there >= self._requested:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= AGAIN_S:
            log.debug("%d of %d executors are there: asking again", there, self._requested)
            self._short_since = now
            self.cluster.ask(self._requested)

    def _release_again(self, now: float, going: set[str]) -> None:
        """Those that the cluster does not know to be going, though they were told to: they are paid for, and of no use."""
        deaf = tuple(name for name, told in self._leaving.items() if name not in going and now - told >= AGAIN_S)
        if deaf:
            log.debug("executors %s are there still: letting them go again", ", ".join(deaf))
            self._leaving |= dict.fromkeys(deaf, now)
            self.cluster.release(deaf)

    def _want(self, total: int, going: tuple[str, ...], reason: str) -> None:
        log.info("executors %d → %d%s: %s", self._asked, total, f", letting go {', '.join(going)}" if going else "", reason)
        self.tell({"executors": {"from": self._asked, "to": total, "released": list(going)}, "reason": reason})
        self._awaited = self._awaited[: max(0, total - len(self._there))]
        self._asked, self._requested, self._short_since = total, total, None
        self.cluster.ask(total)
        if going:
            self.cluster.release(going)
            self._leaving |= dict.fromkeys(going, self.clock())
            self._there = tuple(one for one in self._there if one.name not in going)

    def _arrived(self, now: float) -> None:
        """One came: the oldest that was asked for, or with the session; else it replaces one that was lost."""
        with_session = not (self._asked or self._lost) and now - self._begun < LONGEST_START_S
        asked = self._awaited.pop(0) if self._awaited else self._begun if with_session else None
        if asked is not None:
            self.starting_s += NEWEST * (now - asked - self.starting_s)


def _used(before: Mapping[str, Executor], there: tuple[Executor, ...], passed_s: float) -> dict[str, float]:
    used: dict[str, float] = {}
    for one in there:
        earlier = before[one.name].busy_s if one.name in before else 0.0
        used[one.host] = used.get(one.host, 0.0) + max(0.0, one.busy_s - earlier) / passed_s
    return used


def _what(action: Action) -> str:
    """More executors, however many, or the one that is to go."""
    return f"executor {action.executor}" if isinstance(action, RemoveExecutor) else action.kind


def _missed_least(executors: Sequence[Executor]) -> list[Executor]:
    """In the order in which they go."""
    return sorted(executors, key=lambda one: (one.tasks, -_number(one.name)))


def _memory(executor: Executor) -> float | None:
    return None if executor.used_bytes is None or not executor.memory_bytes else executor.used_bytes / executor.memory_bytes


def _number(name: str) -> int:
    """Executors are numbered in the order in which they came."""
    return int(name) if name.isdigit() else 0
