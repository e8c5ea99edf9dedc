"""The fleet: executors that follow the slots, on a cluster that is only remembered and a clock that is stepped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.control.fleet import RELIEF_S, STARTING_S, Fleet, Judge, Limits
from springtide.control.memory import MemoryCluster
from springtide.errors import OptionError
from springtide.model.request import AddExecutors, Proposal, RemoveExecutor, Verdict
from springtide.policy.place.release import leaving


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


# What is wanted is proposed


def judged(most: int) -> tuple[Judge, list[list[Proposal]]]:
    """Grants up to so many executors in all, and of those that are to go every second one; what was proposed."""
    asked: list[list[Proposal]] = []

    def judge(proposals: Sequence[Proposal], executors: int) -> tuple[Verdict, ...]:
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
    told: list[object] = []
    fleet.tell = told.append
    fleet.judge, asked = judged(most=4)
    for slots in (5, 5, 6):
        step(fleet, clock, slots)
    assert cluster.asked == [4]
    # 3 of 5 are missing, then 1 of 5, and then it is proposed again and again
    assert [[(p.action, p.score) for p in proposals] for proposals in asked] == [
        [(AddExecutors(3), 3 / 5)], [(AddExecutors(1), 1 / 5)], [(AddExecutors(2), 2 / 6)],
    ]  # fmt: skip
    assert asked[0][0].reason == "5 slots: "
    refused = Proposal("the fleet", AddExecutors(1), 1 / 5, "5 slots: ").to_json()
    assert told[1:] == [{"refused": refused, "reason": "4 of 4"}], "told once"
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
    told: list[object] = []
    fleet.tell = told.append
    fleet.replace("0", "a is full")
    assert cluster.released == ["0"] and cluster.asked == [4] and fleet.slots == 3
    assert told == [{"executors": {"from": 4, "to": 4, "released": ["0"]}, "reason": "a is full"}]
    step(fleet, clock, 4, 4.0)
    assert fleet.slots == 4 and cluster.asked == [4]
    assert fleet.starting_s == 6.0  # 8 + (4 - 8)/2: its start is measured too


def test_one_at_a_time_and_a_host_not_again_for_a_while() -> None:
    fleet, cluster, clock = on_two_hosts()
    told: list[object] = []
    fleet.replace("0", "a is full")
    fleet.tell = told.append
    for _ in range(3):
        fleet.replace("1", "b is full")
    assert told == [
        {"executors": {"kept": "1"},
         "reason": "3 of 4 executors are there, the others have to come first (b is full)"},
    ]  # fmt: skip
    step(fleet, clock, 4, 4.0)
    fleet.replace("2", "a is full")
    assert cluster.released == ["0"]
    assert told[1:] == [{"executors": {"kept": "2"}, "reason": "another left a 4 s ago, within 300 s (a is full)"}]
    fleet.replace("1", "b is full")
    assert cluster.released == ["0", "1"]
    step(fleet, clock, 4, RELIEF_S)
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
