"""The fleet: executors that follow the slots, on a cluster that is only remembered and a clock that is stepped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.control.fleet import Fleet, Judge, Limits
from springtide.control.fleet_rule import MIN_SECONDS_BETWEEN_MOVES, RETRY_AFTER_S, STARTING_S
from springtide.control.memory import MemoryCluster
from springtide.errors import OptionError, SetupError
from springtide.model.executor import Executor
from springtide.model.request import AddExecutors, RemoveExecutor, Request, Verdict
from springtide.policy.place.release import leaving
from springtide.spark.driver import clusters, session
from springtide.spark.driver.clusters import LocalCluster, SparkCluster
from springtide.spark.private import executors


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


def test_the_start_of_those_that_come_with_the_session_is_measured_too() -> None:
    clock = Clock()
    cluster = MemoryCluster(clock, 4.0)
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()  # none is there
    clock.now = 20.0
    cluster.add()
    cluster.add()
    fleet.look()  # 8 + (20 - 8)/2 = 14, 14 + (20 - 14)/2 = 17
    assert fleet.starting_s == 17.0
    clock.now = 400.0
    cluster.add()
    fleet.look()  # so late that it must be for one that was lost
    assert fleet.starting_s == 17.0
    again = MemoryCluster(clock, 4.0)
    fleet.move(again)
    fleet.look()
    clock.now = 403.0
    again.add()
    fleet.look()  # 17 + (3 - 17)/2
    assert fleet.starting_s == 10.0


def test_one_that_comes_for_a_lost_one_is_no_start_of_the_session_where_nothing_is_asked_for() -> None:
    """A dry run: nothing is ever asked for. Two come with the session, one dies, and another comes 100 s after the session."""
    clock = Clock()
    cluster = MemoryCluster(clock, 4.0)
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()
    clock.now = 20.0
    cluster.add()
    cluster.add()
    fleet.look()  # 8 + (20 - 8)/2 = 14, 14 + (20 - 14)/2 = 17
    clock.now = 100.0
    cluster.kill("0")
    fleet.look()
    clock.now = 104.0
    fleet.look()
    assert fleet.slots == 2 and fleet.starting_s == 17.0
    again = MemoryCluster(clock, 4.0)
    fleet.move(again)
    fleet.look()
    clock.now = 107.0
    again.add()
    fleet.look()  # with another session: 17 + (3 - 17)/2
    assert fleet.starting_s == 10.0


def test_those_that_were_there_before_anybody_looked_tell_nothing_of_a_start() -> None:
    fleet, _, clock = made(begin=3)
    step(fleet, clock, 3, 20.0)
    assert fleet.starting_s == STARTING_S


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


def test_those_with_most_to_do_stay() -> None:
    clock = Clock()
    cluster = MemoryCluster(clock)
    for _ in range(3):
        cluster.add()
    cluster._there = {
        name: replace(one, tasks=tasks) for (name, one), tasks in zip(cluster._there.items(), (2, 0, 1), strict=True)
    }
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
    assert [(node.executors, node.memory) for node in fleet.nodes] == [(("2", "0"), None), (("1",), None)]


def test_nodes_tell_who_is_missed_least_and_how_full_the_memory_is() -> None:
    fleet, cluster, _ = on_two_hosts()
    there = cluster._there
    there["0"] = replace(there["0"], used_bytes=90, memory_bytes=100)
    there["2"] = replace(there["2"], used_bytes=10, memory_bytes=100, tasks=5)
    there["1"] = replace(there["1"], used_bytes=10, memory_bytes=0)
    fleet.look()
    assert [(node.executors, node.memory) for node in fleet.nodes] == [(("0", "2"), 0.9), (("3", "1"), None)]


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


# What the cluster did not do


@dataclass
class Deaf(MemoryCluster):
    """One that is not reached: what it is told is counted, and nothing comes of it. ``going``: those it is letting go."""

    hears: bool = False
    asked_for: list[Any] = None  # type: ignore[assignment]
    going: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.asked_for = []

    def executors(self) -> tuple[Any, ...]:
        return tuple(replace(one, leaving=one.name in self.going) for one in super().executors())

    def ask(self, total: int) -> None:
        self.asked_for.append(total)
        if self.hears:
            super().ask(total)

    def release(self, names: Sequence[str]) -> None:
        self.asked_for.append(tuple(names))
        if self.hears:
            super().release(names)


def deaf(begin: int) -> tuple[Fleet, Deaf, Clock]:
    clock = Clock()
    cluster = Deaf(clock, 4.0)
    for _ in range(begin):
        cluster.add()
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()
    return fleet, cluster, clock


def test_what_the_cluster_did_not_hear_is_asked_for_again() -> None:
    fleet, cluster, clock = deaf(1)
    step(fleet, clock, 3)  # asked at 1 s, missed from 2 s on
    for _ in range(61):
        step(fleet, clock, 3)
    assert clock.now == 62.0 and RETRY_AFTER_S == 30.0
    assert cluster.asked_for == [3, 3, 3], "at 1, 32 and 62 s: no more than every 30 s"
    cluster.hears = True
    for _ in range(34):
        step(fleet, clock, 3)  # at 92 s it is heard, and 4 s later they are there
    assert fleet.slots == 3 and cluster.asked_for == [3, 3, 3, 3]
    for _ in range(100):
        step(fleet, clock, 3)
    assert cluster.asked_for == [3, 3, 3, 3], "all are there, so nothing is repeated"


def test_a_lost_one_for_which_none_comes_is_asked_for() -> None:
    fleet, cluster, clock = deaf(1)
    step(fleet, clock, 2)
    cluster.add()
    cluster._there.pop("0")  # at 1 s, and the cluster does not care
    for _ in range(30):
        step(fleet, clock, 2)
    assert cluster.asked_for == [2]
    step(fleet, clock, 2)  # missed at 2 s, 32 s now
    assert cluster.asked_for == [2, 2]


def test_what_the_session_asked_for_is_not_asked_for_again() -> None:
    """Two of its six are there when the fleet counts them: asking for two would let the other four never come."""
    fleet, cluster, clock = deaf(2)
    step(fleet, clock, 2)
    cluster._there.pop("0")
    for _ in range(100):
        step(fleet, clock, 2)
    assert cluster.asked_for == []


def test_those_that_start_are_not_missed() -> None:
    fleet, cluster, clock = deaf(1)
    cluster.hears = True
    step(fleet, clock, 2)
    step(fleet, clock, 2, 4.0)
    cluster._there = {name: replace(one, starting=name == "1") for name, one in cluster._there.items()}
    for _ in range(100):
        step(fleet, clock, 2)
    assert fleet.slots == 1 and cluster.asked_for == [2]


def test_those_that_the_cluster_did_not_let_go_are_let_go_again() -> None:
    fleet, cluster, clock = deaf(3)
    step(fleet, clock, 1)  # at 1 s two too many
    step(fleet, clock, 1, 8.0)
    assert cluster.asked_for == [1, ("2", "1")]  # at 9 s
    cluster.going = ("1",)  # one goes, and has something to do yet
    for _ in range(60):
        step(fleet, clock, 1)
    assert cluster.asked_for[2:] == [("2",), ("2",)], "at 39 and 69 s"
    assert fleet.slots == 1
    cluster.hears = True
    for _ in range(100):
        step(fleet, clock, 1)
    assert cluster.asked_for[4:] == [("2",)] and cluster.released == ["2"]


def test_a_slow_start_is_measured_from_the_first_request() -> None:
    """It takes 100 s, is asked for at 1 s, and again at 32, 62 and 92 s, which changes nothing: 8 + (100 - 8)/2."""
    fleet, cluster, clock = made(starting_s=100.0)
    for _ in range(101):
        step(fleet, clock, 2)
    assert cluster.asked == [2] * 4
    assert fleet.slots == 2 and fleet.starting_s == 54.0


# What is wanted is proposed


def judged(most: int) -> tuple[Judge, list[list[Request]]]:
    """Grants up to so many executors in all, and of those that are to go every second one; what was proposed."""
    asked: list[list[Request]] = []

    def judge(proposals: Sequence[Request], executors: int) -> tuple[Verdict, ...]:
        asked.append(list(proposals))
        found = []
        for place, proposal in enumerate(proposals):
            if isinstance(proposal.action, AddExecutors):
                more = min(proposal.action.count, most - executors)
                found.append(Verdict(proposal, AddExecutors(more) if more > 0 else None, f"{executors} of {most}"))
            else:
                found.append(Verdict(proposal, None if place % 2 else proposal.action, "every second one"))
        return tuple(found)

    return judge, asked


def test_what_is_missing_is_proposed_and_asked_for_as_far_as_it_is_granted() -> None:
    fleet, cluster, clock = made(begin=2)
    entries: list[object] = []
    fleet.tell = entries.append
    fleet.judge, asked = judged(most=4)
    for slots in (5, 5, 6):
        step(fleet, clock, slots)
    assert cluster.asked == [4]
    # 3 of 5 are missing, then 1 of 5, and then it is proposed again and again
    assert [[(p.action, p.score) for p in proposals] for proposals in asked] == [
        [(AddExecutors(3), 3 / 5)], [(AddExecutors(1), 1 / 5)], [(AddExecutors(2), 2 / 6)],
    ]  # fmt: skip
    assert asked[0][0].reason == "5 slots: "
    refused = Request(manager="the fleet", action=AddExecutors(1), score=1 / 5, reason="5 slots: ").to_json()
    assert entries[1:] == [{"refused": refused, "reason": "4 of 4"}], "told once"
    fleet.judge = judged(most=9)[0]
    step(fleet, clock, 5)
    assert cluster.asked == [4, 5]


def test_those_too_many_go_as_far_as_that_is_granted_and_the_others_later() -> None:
    fleet, cluster, clock = made(begin=4)
    fleet.judge, asked = judged(most=9)
    step(fleet, clock, 1)  # at 1 s three too many
    step(fleet, clock, 1, 8.0)
    assert [[p.action for p in proposals] for proposals in asked] == [
        [], [RemoveExecutor("3"), RemoveExecutor("2"), RemoveExecutor("1")],
    ]  # fmt: skip
    assert [proposal.score for proposal in asked[1]] == [3 / 4] * 3
    assert cluster.released == ["3", "1"] and cluster.asked == [2]
    step(fleet, clock, 1)
    assert cluster.released == ["3", "1", "2"] and cluster.asked == [2, 1]


def test_one_that_has_not_come_yet_is_withdrawn_without_asking_anybody() -> None:
    fleet, cluster, clock = made(begin=1, starting_s=60.0)
    step(fleet, clock, 3)
    fleet.judge, asked = judged(most=0)
    step(fleet, clock, 1)
    step(fleet, clock, 1, 8.0)
    assert cluster.asked == [3, 1] and asked == [[], []]


@given(wanted=some.lists(some.tuples(some.integers(1, 8), some.floats(0.1, 12)), min_size=1, max_size=40))
def test_who_grants_everything_changes_nothing(wanted: list[tuple[int, float]]) -> None:
    found = []
    for judge in (None, lambda proposals, _: tuple(Verdict(one, one.action, "yes") for one in proposals)):
        fleet, cluster, clock = made(begin=2, most=8)
        fleet.judge = judge
        for slots, seconds in wanted:
            step(fleet, clock, slots, seconds)
        found.append((cluster.asked, cluster.released, fleet.executor_seconds, fleet.starting_s))
    assert found[0] == found[1]


# One goes for another to come elsewhere


def on_two_hosts(begin: int = 4) -> Made:
    clock = Clock()
    cluster = MemoryCluster(clock, 4.0, hosts=("a", "b"))
    for _ in range(begin):
        cluster.add()
    fleet = Fleet(cluster, Limits(1, 6), clock)
    fleet.look()
    return fleet, cluster, clock


def test_one_is_replaced_and_as_many_are_asked_for_as_before() -> None:
    fleet, cluster, clock = on_two_hosts()
    entries: list[object] = []
    fleet.tell = entries.append
    fleet.replace("0", "a is full")
    assert cluster.released == ["0"] and cluster.asked == [4] and fleet.slots == 3
    assert entries == [{"executors": {"from": 4, "to": 4, "released": ["0"]}, "reason": "a is full"}]
    step(fleet, clock, 4, 4.0)
    assert fleet.slots == 4 and cluster.asked == [4]
    assert fleet.starting_s == 6.0  # 8 + (4 - 8)/2: its start is measured too


def test_one_at_a_time_and_a_host_not_again_for_a_while() -> None:
    fleet, cluster, clock = on_two_hosts()
    entries: list[object] = []
    fleet.replace("0", "a is full")
    fleet.tell = entries.append
    for _ in range(3):
        fleet.replace("1", "b is full")
    assert entries == [
        {"executors": {"kept": "1"},
         "reason": "3 of 4 executors are there, the others have to come first (b is full)"},
    ]  # fmt: skip
    step(fleet, clock, 4, 4.0)
    fleet.replace("2", "a is full")
    assert cluster.released == ["0"]
    assert entries[1:] == [{"executors": {"kept": "2"}, "reason": "another left a 4 s ago, within 300 s (a is full)"}]
    fleet.replace("1", "b is full")
    assert cluster.released == ["0", "1"]
    step(fleet, clock, 4, MIN_SECONDS_BETWEEN_MOVES)
    fleet.replace("2", "a is full")
    assert cluster.released == ["0", "1", "2"]


def test_nobody_is_replaced_who_is_not_there_or_has_nowhere_to_go() -> None:
    fleet, cluster, _ = made(begin=2)
    fleet.replace("0", "the only host is full")
    fleet, others, _ = on_two_hosts()
    fleet.replace("nobody", "it left")
    fleet.elastic = False
    fleet.replace("0", "it only looks")
    assert cluster.released == others.released == []


@pytest.mark.parametrize(("least", "most", "cores"), [(0, 1, 1), (3, 2, 1), (1, 1, 0)])
def test_limits_that_cannot_be_are_refused(least: int, most: int, cores: int) -> None:
    words = "with 0 cores" if cores < 1 else f"min_executors={least} is not allowed.* {most}: .*max_executors"
    with pytest.raises(OptionError, match=words):
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


def test_a_host_with_many_gives_one_up_before_the_last_of_another_goes() -> None:
    """Executors 0 to 2 on a, 3 on b. Of X = 4, one of a's three moves s·1/12 bytes, the one of b s·3/12: a's newest goes; then
    a has two of three, s·1/6 against s·2/6; then one each, and the first to be missed least is the newest, b's."""
    fleet, cluster, clock = made(begin=4)
    fleet.caching = True
    cluster._there = {name: replace(one, host="b" if name == "3" else "a") for name, one in cluster._there.items()}
    fleet.look()
    for slots in (3, 2, 1):
        step(fleet, clock, slots)
        step(fleet, clock, slots, 20.0)
    assert cluster.released == ["2", "1", "3"]


def test_hosts_do_not_matter_where_nothing_is_cached() -> None:
    """The newest goes, though it is the last one of its host."""
    fleet, cluster, clock = made(begin=4)
    cluster._there = {name: replace(one, host="b" if name == "3" else "a") for name, one in cluster._there.items()}
    fleet.look()
    step(fleet, clock, 3)
    step(fleet, clock, 3, 20.0)
    assert cluster.released == ["3"]


@given(some.lists(some.integers(1, 6), min_size=1, max_size=6), some.data())
def test_as_many_leave_as_are_asked_to_and_none_twice(there: list[int], data: some.DataObject) -> None:
    count = data.draw(some.integers(0, sum(there)))
    going = leaving(there, count)
    assert sum(going) == count and all(0 <= number <= here for number, here in zip(going, there, strict=True))
    left = [here - number for here, number in zip(there, going, strict=True)]
    if any(here > 1 for here in left):  # then nobody's last one was sent away, but where there was one only
        assert all(here or not number for here, number in zip(left, going, strict=True))


# The threads of a cluster of Spark's


class Backend:
    """Stands in for Spark: executors that are there, and what it was asked. A warm-up is done at once."""

    def __init__(self, _session: object = None) -> None:
        self.there = ["0"]
        self.did: list[object] = []
        self.warmed: list[str] = []
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.broken = False
        self.failures = 0  # of what it is asked next
        self.cores = 1

    def executors(self) -> tuple[Executor, ...]:
        return tuple(Executor(name, "host", self.cores) for name in self.there)

    def names(self) -> list[str]:
        if self.broken:
            raise ConnectionError("the JVM did not answer")
        return list(self.there)

    def prepare_warm(self, name: str) -> None:
        pass

    def warm(self, name: str) -> None:
        self.warmed.append(name)

    def request_total(self, total: int) -> None:
        self.asked.set()
        self.gate.wait(HANGS_S)
        self._do(total)
        if total == 13:
            raise ConnectionError("no")

    def release(self, names: list[str]) -> None:
        self._do(names)

    def _do(self, what: object) -> None:
        self.did.append(what)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")


HANGS_S = 60.0
"""After so long a test gives up; many times what anything here takes."""


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + HANGS_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


Threads = Callable[[], set[threading.Thread]]


def spark_cluster(
    monkeypatch: pytest.MonkeyPatch, warm: bool = True, task_cpus: int = 1
) -> tuple[SparkCluster, Backend, Threads]:
    """And what tells the threads that it has."""
    backend, before = Backend(), set(threading.enumerate())
    monkeypatch.setattr(executors, "ExecutorBackend", lambda session: backend)
    cluster = SparkCluster(None, warm, task_cpus)
    return cluster, backend, lambda: set(threading.enumerate()) - before


def test_a_closed_cluster_does_what_it_was_asked_and_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, backend, running = spark_cluster(monkeypatch)
    until(lambda: backend.warmed == ["0"])
    cluster.ask(3)
    cluster.release(["0"])
    threads = running()
    assert {thread.name for thread in threads} == {"springtide-cluster", "springtide-warm-up"}
    cluster.close()
    cluster.close()
    backend.gate.set()  # only now the first is answered
    for thread in threads:
        thread.join(HANGS_S)
        assert not thread.is_alive(), thread.name
    assert backend.did == [3, ["0"]]
    backend.there.append("1")
    assert [one.starting for one in cluster.executors()] == [False, False], "nobody warms it up, so it is ready"
    assert backend.warmed == ["0"]
    LocalCluster().close()
    MemoryCluster(Clock()).close()


def test_an_errand_that_fails_is_told_once_and_the_next_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, backend, running = spark_cluster(monkeypatch)
    backend.gate.set()
    for done, total in enumerate((13, 13, 4, 13), start=1):
        cluster.ask(total)
        until(lambda done=done: len(backend.did) == done)  # type: ignore[misc]
    cluster.close()
    until(lambda: not running())
    assert backend.did == [13, 13, 4, 13, 13]  # once more at the end
    # the first, and the one after it went well
    assert caplog.messages == ["the cluster manager did not carry out a request: ConnectionError('no')"] * 2


def test_executors_are_ready_when_warming_up_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "WATCH_INTERVAL_S", 0.001)
    cluster, backend, running = spark_cluster(monkeypatch)
    until(lambda: backend.warmed == ["0"])
    backend.broken = True
    until(lambda: not running())
    backend.there.append("1")
    assert [(one.name, one.starting) for one in cluster.executors()] == [("0", False), ("1", False)]
    cluster.close()


def test_what_failed_is_asked_again_and_no_thread_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager is away for three answers: to the number, to the number again, and to who is to go."""
    monkeypatch.setattr(clusters, "RETRY_AFTER_S", 0.001)
    cluster, backend, running = spark_cluster(monkeypatch, warm=False)
    assert not running()
    backend.failures = 3
    cluster.ask(4)
    until(backend.asked.is_set)
    cluster.release(["5", "6"])
    backend.gate.set()
    until(lambda: not running())
    assert backend.did == [4, 4, ["5", "6"], 4, ["5", "6"]]
    cluster.ask(2)  # it may be asked again
    until(lambda: backend.did[-1] == 2 and not running())


def test_what_fails_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "RETRY_AFTER_S", 0.001)
    cluster, backend, running = spark_cluster(monkeypatch, warm=False)
    backend.gate.set()
    cluster.ask(13)
    until(lambda: not running())
    assert backend.did == [13] * clusters.MAX_TRIES
    cluster.release(["5"])
    until(lambda: not running())
    assert backend.did[clusters.MAX_TRIES :] == [["5"]]


def test_what_failed_is_not_asked_again_when_another_number_overtakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "RETRY_AFTER_S", 10 * HANGS_S)
    cluster, backend, running = spark_cluster(monkeypatch, warm=False)
    backend.failures = 2
    cluster.ask(4)
    until(backend.asked.is_set)
    cluster.ask(3)  # before the first was answered
    backend.gate.set()
    until(lambda: backend.did == [4, 3])
    cluster.ask(2)  # while the second waits
    until(lambda: not running())
    assert backend.did == [4, 3, 2]


@pytest.mark.parametrize(("cores", "task_cpus", "slots"), [(5, 2, 2), (4, 1, 4), (1, 2, 1)])
def test_the_cores_of_an_executor_are_the_tasks_that_it_runs(
    cores: int, task_cpus: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, backend, _ = spark_cluster(monkeypatch, warm=False, task_cpus=task_cpus)
    backend.there, backend.cores = ["0", "1", "2"], cores
    fleet = Fleet(cluster, Limits(1, 6, slots), Clock())
    fleet.look()
    assert fleet.slots == 3 * slots and fleet.nodes[0].cores == 3 * slots


def session_with(**settings: str) -> Any:
    """As much of one as is looked at, on a standalone cluster."""
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    context = SimpleNamespace(master="spark://host:7077", getConf=lambda: conf)
    return SimpleNamespace(sparkContext=context, conf=conf)


def test_what_a_task_takes_of_the_cores_is_read_from_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend()
    backend.cores = 7
    monkeypatch.setattr(executors, "ExecutorBackend", lambda session: backend)
    session = session_with(spark_task_cpus="3", spark_executor_cores="7")
    assert [one.cores for one in clusters.cluster_of(session, warm=False).executors()] == [2]
    assert clusters.cores_each(session) == 2
    assert clusters.cores_each(session_with(spark_executor_cores="7")) == 7


@pytest.mark.parametrize("word", ["true", "True", " TRUE "])
def test_what_is_on_is_on_in_any_case(word: str) -> None:
    with pytest.raises(SetupError, match="by itself"):
        clusters.check(session_with(spark_dynamicAllocation_enabled=word))
    with pytest.raises(SetupError, match="against the plan"):
        session.check_settings({"spark.dynamicAllocation.enabled": word}, ())
    spark = MagicMock()
    spark.sparkContext.getConf = lambda: {"spark.decommission.enabled": word}
    assert executors.ExecutorBackend(spark)._graceful
    spark.sparkContext.getConf = dict
    assert not executors.ExecutorBackend(spark)._graceful
    clusters.check(session_with(spark_dynamicAllocation_enabled="False"))
