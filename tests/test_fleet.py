"""The fleet: executors that follow the slots, on a cluster that is only remembered and a clock that is stepped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.control.fleet import STARTING_S, Fleet, Limits
from springtide.control.memory import MemoryCluster
from springtide.errors import OptionError


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


Made = tuple[Fleet, MemoryCluster, Clock]


def made(least: int = 1, most: int = 6, starting_s: float = 4.0, begin: int = 1, cores: int = 1) -> Made:
    clock = Clock()
    cluster = MemoryCluster(clock, starting_s, cores=cores)
    for _ in range(begin):
        cluster.add()
    fleet = Fleet(cluster, Limits(least, most, cores), clock)
    fleet.look()
    return fleet, cluster, clock


def step(fleet: Fleet, clock: Clock, slots: int, seconds: float = 1.0) -> None:
    clock.now += seconds
    fleet.look()
    fleet.follow(slots)


def test_what_is_missing_is_asked_for_at_once_and_only_once() -> None:
    fleet, cluster, clock = made()
    for _ in range(3):
        step(fleet, clock, 4)
    assert cluster.asked == [4]
    assert fleet.slots == 1, "they take 4 s to come"
    step(fleet, clock, 4, 2.0)
    assert fleet.slots == 4


def test_a_start_is_measured() -> None:
    fleet, _, clock = made(starting_s=4.0)
    assert fleet.starting_s == STARTING_S == 8.0
    step(fleet, clock, 2)  # asked for at 1 s
    step(fleet, clock, 2, 4.0)  # seen at 5 s, after 4 s: 8 + (4 - 8)/2 = 6
    assert fleet.starting_s == 6.0
    step(fleet, clock, 3)
    step(fleet, clock, 3, 4.0)  # 6 + (4 - 6)/2 = 5
    assert fleet.starting_s == 5.0


def test_one_too_many_is_kept_for_as_long_as_a_start_takes() -> None:
    fleet, cluster, clock = made(begin=3)
    step(fleet, clock, 1)  # at 1 s: two too many
    step(fleet, clock, 1, 7.9)
    assert cluster.released == []
    step(fleet, clock, 1, 0.1)  # for 8 s
    assert cluster.released == ["2", "1"] and cluster.asked == [1]
    assert fleet.slots == 1


def test_a_need_that_comes_back_in_time_keeps_them() -> None:
    fleet, cluster, clock = made(begin=3)
    for slots in (1, 1, 3, 1, 1, 3, 1, 1, 3) * 3:  # never 8 s in a row
        step(fleet, clock, slots, 2.0)
    assert cluster.released == [] and cluster.asked == []


def test_each_one_too_many_has_its_own_time() -> None:
    fleet, cluster, clock = made(begin=3)
    step(fleet, clock, 2)  # at 1 s one too many
    step(fleet, clock, 1, 4.0)  # at 5 s a second
    step(fleet, clock, 1, 4.0)  # at 9 s the first has had its 8 s
    assert cluster.released == ["2"]
    step(fleet, clock, 1, 4.0)  # at 13 s the second
    assert cluster.released == ["2", "1"]


def test_those_with_state_stay() -> None:
    clock = Clock()
    cluster = MemoryCluster(clock)
    cluster.add(state_bytes=10), cluster.add(), cluster.add(state_bytes=5)
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()
    step(fleet, clock, 1)
    step(fleet, clock, 1, 8.0)
    assert cluster.released == ["1", "2"]


def test_the_limits_hold_and_cores_count() -> None:
    fleet, cluster, clock = made(least=2, most=4, begin=2, cores=2)
    step(fleet, clock, 100)
    assert cluster.asked == [4]
    step(fleet, clock, 100, 4.0)
    assert fleet.slots == 8
    step(fleet, clock, 1)
    step(fleet, clock, 1, 20.0)
    assert cluster.asked == [4, 2]
    assert [Limits(1, 9, 2).executors(slots) for slots in (1, 2, 3, 4, 100)] == [1, 1, 2, 2, 9]


def test_a_lost_one_is_replaced_without_another_request_and_tells_nothing_of_a_start() -> None:
    fleet, cluster, clock = made(begin=2)
    step(fleet, clock, 2)
    cluster.kill("0")
    step(fleet, clock, 2)
    assert fleet.slots == 1
    step(fleet, clock, 2, 4.0)
    assert fleet.slots == 2 and cluster.asked == [] and fleet.starting_s == STARTING_S


def test_one_that_never_comes_does_not_spoil_what_is_known_of_starts() -> None:
    fleet, cluster, clock = made(starting_s=4.0)
    cluster.room = 1
    step(fleet, clock, 2)
    step(fleet, clock, 2, 500.0)
    cluster.add()
    step(fleet, clock, 2)
    assert fleet.starting_s == STARTING_S


def test_executor_seconds_are_those_that_were_there_also_the_leaving() -> None:
    fleet, _, clock = made(begin=3)
    step(fleet, clock, 1)  # 3 s
    step(fleet, clock, 1, 8.0)  # 24 s
    assert fleet.executor_seconds == 27.0
    step(fleet, clock, 1, 2.0)  # one there; two were let go at once when the interval began, and are counted once more
    assert fleet.executor_seconds == 27.0 + 3 * 2
    step(fleet, clock, 1, 2.0)
    assert fleet.executor_seconds == 33.0 + 2.0


def test_nodes_tell_their_cores_and_how_many_were_in_use() -> None:
    clock = Clock()
    cluster = MemoryCluster(clock, hosts=("a", "b"))
    for _ in range(3):
        cluster.add()
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()
    busy = {"0": 1.0, "1": 0.5, "2": 0.4}
    cluster._there = {name: replace(one, busy_s=busy[name]) for name, one in cluster._there.items()}
    clock.now = 2.0
    fleet.look()
    # a has 0 and 2: (1 + 0.4)/2 s = 0.7 cores; b has 1: 0.5/2 = 0.25
    assert [(node.name, node.cores, node.used) for node in fleet.nodes] == [("a", 2, 0.7), ("b", 1, 0.25)]


def test_another_session_begins_anew_but_the_seconds_stay() -> None:
    fleet, _, clock = made(begin=2)
    step(fleet, clock, 2, 5.0)
    other = MemoryCluster(clock)
    fleet.move(other)
    step(fleet, clock, 3)
    assert other.asked == [], "none is there yet"
    other.add()
    step(fleet, clock, 3)
    assert other.asked == [3] and fleet.executor_seconds == 10.0


def test_a_fleet_that_only_looks_asks_for_nothing() -> None:
    fleet, cluster, clock = made(begin=3)
    fleet.elastic = False
    for _ in range(9):
        step(fleet, clock, 6, 10.0)
    assert cluster.asked == [] and fleet.executor_seconds == 270.0


@pytest.mark.parametrize(("least", "most", "cores"), [(0, 1, 1), (3, 2, 1), (1, 1, 0)])
def test_limits_that_cannot_be_are_refused(least: int, most: int, cores: int) -> None:
    with pytest.raises(OptionError, match=str((least, most, cores)[2 if cores < 1 else 0])):
        Limits(least, most, cores)


@given(wanted=some.lists(some.tuples(some.integers(0, 12), some.floats(0.1, 12)), min_size=1, max_size=60))
def test_whatever_is_wanted_the_fleet_stays_within_its_limits_and_pays_at_most_twice(wanted: list[tuple[int, float]]) -> None:
    """The ski rental rule: nothing that is too many is kept for longer than a start takes, and a step of the clock."""
    fleet, cluster, clock = made(least=1, most=8, starting_s=0.0)
    spare_s = 0.0
    for slots, seconds in wanted:
        before = fleet.slots or 0
        step(fleet, clock, slots, seconds)
        need = max(1, min(slots, 8))
        assert 1 <= (fleet.slots or 0) <= 8
        spare_s = spare_s + seconds if before > need else 0.0
        assert all(1 <= total <= 8 for total in cluster.asked)
        if spare_s > STARTING_S + 24:
            assert (fleet.slots or 0) <= max(need, 8)
    for _ in range(4):
        step(fleet, clock, 1, STARTING_S)
    assert fleet.slots == 1, "in the end all go that are not needed"
