"""How many executors a fleet has: pure functions of the present executors, the requests and their times, and the wanted number.

Missing executors are requested at once. A spare executor is retained for as long as a start takes, because that is the price of
replacing it: the fleet costs at most twice as much as with perfect knowledge of the future (the ski rental rule). Executors
with the fewest tasks are released first, then the newest; where hosts cache state, those whose release loses the least of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from springtide.errors import OptionError
from springtide.model.executor import Executor
from springtide.policy.place.release import leaving

STARTING_S = 8.0
"""The start-up time of an executor until one is measured: 7.8 s on a standalone cluster of one machine."""
GIVE_UP_AFTER_S = 300.0
"""Give up on a requested executor after this long; the cluster probably has no capacity."""
RETRY_AFTER_S = 30.0
"""Repeat a request or a release that shows no effect after this long; the cluster manager may not have received it."""
START_SMOOTHING = 0.5
"""Weight of the latest start-up time in the moving average."""
MIN_SECONDS_BETWEEN_MOVES = 300.0
"""Move at most one executor off a host in this long: the cluster manager may well start the new one there again."""


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
        """The executors that run this many tasks at once, within the limits.

        >>> Limits(1, 6, cores=2).executors(5)
        3
        """
        return max(self.least, min(math.ceil(slots / self.cores), self.most))


@dataclass(frozen=True)
class FleetState:
    """``there``: executors that are ready and stay. ``total``: how many there should be, 0 until those that came with the
    session are counted; ``requested``: whether the cluster was asked for them. ``lost``: an executor of this session has gone,
    so that another comes in its place.

    Times, in seconds of the fleet's clock: of the session's begin (``began``), of the request of each executor that has not
    come (``pending``), since when at least 1, 2, … are spare (``spare_since``), since when fewer are there than were requested,
    or of the latest retry (``short_since``), of the latest release of each executor that is still seen (``released``), and of
    the latest move off each host (``moved``).
    """

    began: float
    starting_s: float = STARTING_S
    looked: float | None = None
    names: frozenset[str] = frozenset()  # all that were seen, released ones included
    there: tuple[Executor, ...] = ()
    lost: bool = False
    total: int = 0
    requested: bool = False
    pending: tuple[float, ...] = ()
    spare_since: tuple[float, ...] = ()
    short_since: float | None = None
    released: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of executors that are present or requested."""
        return max(self.total, len(self.there))

    def counted(self) -> FleetState:
        """Count the executors that came with the session as wanted until a plan sets another total."""
        return self if self.total else replace(self, total=len(self.there))


@dataclass(frozen=True)
class Orders:
    """Orders for the cluster: the total of executors, None for no new request; and which are released."""

    total: int | None = None
    release: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """Start ``more`` executors, release ``going``, and withdraw the requests of ``withdrawn`` others.

    ``score``: the share of the executors that it changes.
    """

    more: int = 0
    going: tuple[str, ...] = ()
    withdrawn: int = 0
    score: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.more or self.going or self.withdrawn)


def observed(state: FleetState, seen: Sequence[Executor], now: float) -> tuple[FleetState, Orders]:
    """Update the executors and the start-up time, and repeat orders that the cluster did not carry out."""
    names = frozenset(executor.name for executor in seen)
    released = {name: at for name, at in state.released.items() if name in names}
    staying = [executor for executor in seen if not (executor.leaving or executor.name in released)]
    there = tuple(executor for executor in staying if not executor.starting)
    state = replace(state, names=names, released=released, lost=state.lost or not state.names <= names)
    if state.looked is not None:
        before = {executor.name for executor in state.there}
        for _ in range(sum(executor.name not in before for executor in there)):
            state = _started(state, now)
    pending = tuple(at for at in state.pending if now - at < GIVE_UP_AFTER_S)
    state, total = _retried(replace(state, pending=pending, there=there, looked=now), len(staying), now)
    going = {executor.name for executor in seen if executor.leaving}
    ignored = tuple(name for name, at in released.items() if name not in going and now - at >= RETRY_AFTER_S)
    return replace(state, released={**released, **dict.fromkeys(ignored, now)}), Orders(total, ignored)


def proposed(state: FleetState, wanted: int, now: float, caching: bool = False) -> tuple[FleetState, Change]:
    """The change that brings the fleet to ``wanted`` executors. ``caching``: the executors of a host share its cached state."""
    state = state.counted()
    spare = max(0, state.size - wanted)
    since = (*state.spare_since[:spare], *[now] * (spare - len(state.spare_since)))
    state = replace(state, spare_since=since)
    if wanted > state.total:
        return state, Change(more=wanted - state.total, score=(wanted - state.total) / wanted)
    over = sum(now - at >= state.starting_s for at in since)
    going = _first_to_go(state.there, max(0, len(state.there) - state.size + over), caching) if over else ()
    return state, Change(going=going, withdrawn=over - len(going), score=over / state.size)


def changed(state: FleetState, change: Change, now: float) -> tuple[FleetState, Orders]:
    """Carry out a granted change."""
    if not change:
        return state, Orders()
    total = (state.total if change.more else state.size) + change.more - len(change.going) - change.withdrawn
    there = tuple(executor for executor in state.there if executor.name not in change.going)
    pending = (*state.pending, *[now] * change.more)[: max(0, total - len(state.there))]
    fewer = 0 if change.more else len(change.going) + change.withdrawn
    state = replace(
        state, total=total, requested=True, there=there, pending=pending, short_since=None,
        spare_since=state.spare_since[fewer:], released={**state.released, **dict.fromkeys(change.going, now)},
    )  # fmt: skip
    return state, Orders(total, change.going)


def moved(state: FleetState, executor: Executor, now: float) -> tuple[FleetState, Orders]:
    """Release an executor, and request another in its place."""
    state, orders = changed(state, Change(more=1, going=(executor.name,)), now)
    return replace(state, pending=(*state.pending, now), moved={**state.moved, executor.host: now}), orders


def why_not_moved(state: FleetState, executor: Executor, now: float) -> str:
    """Why an executor is not replaced now; empty if it can be. Only one moves at a time: releases are faster than starts."""
    host = executor.host
    if all(other.host == host for other in state.there):
        return f"all executors are on {host}"
    if len(state.there) < state.total:
        return f"{len(state.there)} of {state.total} executors are there, the others have to come first"
    passed = now - state.moved.get(host, -math.inf)
    within = passed < MIN_SECONDS_BETWEEN_MOVES
    return f"another left {host} {passed:.0f} s ago, within {MIN_SECONDS_BETWEEN_MOVES:.0f} s" if within else ""


def released_first(executors: Sequence[Executor]) -> list[Executor]:
    """In the order of their release: Spark numbers executors in the order in which they came."""
    return sorted(executors, key=lambda executor: (executor.tasks, -(int(executor.name) if executor.name.isdigit() else 0)))


def _started(state: FleetState, now: float) -> FleetState:
    """An executor came: the oldest request, or part of the session; else it replaces a lost executor, and measures no start."""
    with_session = not (state.total or state.lost) and now - state.began < GIVE_UP_AFTER_S
    requested = state.pending[0] if state.pending else state.began if with_session else None
    if requested is None:
        return state
    starting_s = state.starting_s + START_SMOOTHING * (now - requested - state.starting_s)
    return replace(state, starting_s=starting_s, pending=state.pending[1:])


def _retried(state: FleetState, staying: int, now: float) -> tuple[FleetState, int | None]:
    """Request the total again if too few have come for a while. Their starts are measured from the first request: most often
    the cluster received it, and an executor takes that long."""
    if not state.requested or staying >= state.total:
        return replace(state, short_since=None), None
    if state.short_since is None:
        return replace(state, short_since=now), None
    if now - state.short_since < RETRY_AFTER_S:
        return state, None
    return replace(state, short_since=now), state.total


def _first_to_go(there: Sequence[Executor], count: int, caching: bool) -> tuple[str, ...]:
    executors = released_first(there)
    if caching:
        hosts: dict[str, list[Executor]] = {}
        for executor in executors:
            hosts.setdefault(executor.host, []).append(executor)
        counts = leaving([len(host) for host in hosts.values()], count)
        executors = [executor for host, number in zip(hosts.values(), counts, strict=True) for executor in host[:number]]
    return tuple(executor.name for executor in executors[:count])
