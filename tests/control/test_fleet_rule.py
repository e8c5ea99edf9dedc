"""The fleet's rule as pure functions: what holds whatever the cluster does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as some

from springtide.control.fleet_rule import (
    GIVE_UP_AFTER_S,
    RETRY_AFTER_S,
    STARTING_S,
    Change,
    FleetState,
    Limits,
    Orders,
    changed,
    moved,
    observed,
    proposed,
    why_not_moved,
)  # fmt: skip
from springtide.model.executor import Executor


def executors(names: object) -> tuple[Executor, ...]:
    return tuple(Executor(str(name), "ab"[int(name) % 2], 1) for name in names)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Round:
    """What a cluster does with the last orders, what a plan wants, and how much of it is granted."""

    seconds: float
    slots: int
    come: int  # of those that were requested, at most
    obeys: bool  # executors that were released go
    lost: int  # executors that die
    granted: float
    moves: bool


rounds = some.lists(
    some.builds(
        Round, some.floats(0.1, 100), some.integers(0, 12), some.integers(0, 9), some.booleans(), some.integers(0, 2),
        some.sampled_from([0.0, 0.5, 1.0, 1.0]), some.booleans(),
    ),
    max_size=40,
)  # fmt: skip


@given(rounds, some.integers(1, 3), some.integers(3, 8), some.integers(0, 8), some.booleans())
def test_orders_stay_within_the_limits_and_release_nobody_who_is_wanted(
    history: list[Round], least: int, most: int, begin: int, caching: bool
) -> None:
    limits, now, state = Limits(least, most), 0.0, FleetState(0.0)
    there, total, newest, released = set(range(begin)), 0, begin, set[str]()
    for one in history:
        now += one.seconds
        if one.obeys:
            there = {name for name in there if str(name) not in released}
        there -= set(sorted(there)[: one.lost])
        come = range(newest, newest + min(one.come, max(0, total - len(there))))
        newest, there = newest + len(come), there | set(come)
        state, again = observed(state, executors(sorted(there)), now)
        assert again.total in (None, state.total)
        assert set(again.release) <= released, "only a release is repeated"
        if not state.size:
            continue
        wanted, before = limits.executors(one.slots), state
        state, change = proposed(state, wanted, now, caching)
        assert not (change.more and change.going), "nobody is released while more are wanted"
        assert all(now - at >= state.starting_s for at in state.spare_since[: len(change.going) + change.withdrawn])
        change = replace(
            change, more=int(change.more * one.granted), going=change.going[: int(len(change.going) * one.granted)]
        )
        state, orders = changed(state, change, now)
        if orders.total is not None:
            assert orders.total <= max(most, before.size)
            assert orders.total >= wanted >= least or change.more, "only what is spare goes"
            assert len(state.there) >= min(wanted, len(before.there)), "whoever is wanted stays"
            assert len(state.pending) <= max(0, orders.total - len(state.there))
            total = orders.total
        assert set(orders.release) == {one.name for one in before.there} - {one.name for one in state.there}
        released |= set(orders.release)
        if one.moves and state.there and not why_not_moved(state, state.there[0], now):
            (oldest, *_), counted = state.there, state.counted()
            state, orders = moved(counted, oldest, now)
            assert orders == Orders(counted.total, (oldest.name,)), "as many are requested as before"
            assert why_not_moved(state, oldest, now), "one at a time"
            total, released = counted.total, released | {oldest.name}


@given(some.lists(some.floats(0.1, 60), min_size=1, max_size=60))
def test_an_executor_that_never_comes_is_given_up_and_requested_again_now_and_then(steps: list[float]) -> None:
    """Of three requested executors none comes: their starts count for nothing in the end, but they are requested still."""
    state, _ = observed(FleetState(0.0), executors(range(1)), 0.0)
    state, change = proposed(state, 4, 0.0)
    state, orders = changed(state, change, 0.0)
    assert orders == Orders(4) and state.pending == (0.0, 0.0, 0.0)
    now, asked = 0.0, 0.0
    for seconds in [*steps, GIVE_UP_AFTER_S]:
        now += seconds
        state, again = observed(state, executors(range(1)), now)
        assert len(state.pending) == (3 if now < GIVE_UP_AFTER_S else 0)
        assert again.total is None or (again.total == 4 and now - asked >= RETRY_AFTER_S)
        asked = now if again.total else asked
        state, change = proposed(state, 4, now)
        assert not change, "they are not requested as further ones"
    state, _ = observed(state, executors(range(2)), now)
    assert state.starting_s == STARTING_S and len(state.there) == 2


def test_a_request_that_is_withdrawn_needs_no_release() -> None:
    """Two requested executors have not come when they have been spare for 8 s."""
    state, _ = observed(FleetState(0.0), executors(range(1)), 0.0)
    state, _ = changed(*proposed(state, 3, 0.0), 0.0)
    state, change = proposed(state, 1, 1.0)
    assert not change
    state, change = proposed(state, 1, 9.0)
    assert change == Change(withdrawn=2, score=2 / 3)
    state, orders = changed(state, change, 9.0)
    assert orders == Orders(1) and state.pending == () and state.spare_since == ()
