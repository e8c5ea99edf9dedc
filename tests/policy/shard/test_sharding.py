"""Which task has a shard: Elasticutor's balancing by hand and by properties, and the maps that a run's plans get."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import springtide as st
from springtide.control.sharding import LOAD_SMOOTHING, Sharding
from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.report import BatchReport, StateReport
from springtide.policy import registry
from springtide.policy.group import Share
from springtide.policy.group.shards import OWNER, Shards, shards_of
from springtide.policy.shard import spread
from springtide.policy.shard.balance import Balance, balanced

# Balancing


def imbalance(owner: Any, loads: Any, width: int) -> float:
    """δ: the greatest load of a task over the mean."""
    tasks = np.bincount(owner, loads, minlength=width)
    return float(tasks.max() * width / tasks.sum()) if tasks.sum() > 0 else 1.0


def test_the_shard_that_lowers_the_imbalance_most_moves() -> None:
    """Loads 8 and 2, mean 5, δ = 1.6. Moving 4 gives 4 and 6, 3 gives 5 and 5, 1 gives 7 and 3: the 3 moves, and δ = 1."""
    owner = balanced(np.array([0, 0, 0, 1]), np.array([4.0, 3.0, 1.0, 2.0]), 2)
    assert owner.tolist() == [0, 1, 0, 1]


def test_what_is_balanced_enough_stays() -> None:
    """Loads 6 and 4: δ = 1.2, which is θ. At θ = 1.1 the 1 moves: 5 and 5."""
    owner, loads = np.array([0, 0, 1]), np.array([5.0, 1.0, 4.0])
    assert balanced(owner, loads, 2).tolist() == [0, 0, 1]
    assert balanced(owner, loads, 2, theta=1.1).tolist() == [0, 1, 1]


def test_a_hot_shard_ends_up_by_itself() -> None:
    """Loads of 100 and nine times 1 on two tasks: δ cannot fall to 1.2, but the others leave the hot shard's task."""
    loads = np.array([100.0, *[1.0] * 9])
    owner = balanced(np.zeros(10, dtype=np.int64), loads, 2)
    assert (owner[1:] != owner[0]).all()


def test_shards_of_tasks_that_are_gone_go_to_the_least_loaded() -> None:
    """Tasks 2 and 3 go, with loads of 5 and 1; task 0 has 4, task 1 has 2. The 5 goes to task 1, then the 1 to task 0."""
    assert balanced(np.array([0, 1, 2, 3]), np.array([4.0, 2.0, 5.0, 1.0]), 2, theta=9.0).tolist() == [0, 1, 1, 0]


def test_without_loads_shards_are_spread_by_their_number() -> None:
    wider = balanced(spread(256, 2), np.zeros(256), 8)
    counts = np.bincount(wider, minlength=8)
    assert counts.max() <= 1.2 * 32
    assert counts.min() > 0


loads = some.lists(some.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=60).map(np.array)


@given(loads, some.integers(1, 9), some.integers(1, 9), some.randoms(use_true_random=False))
def test_every_shard_has_a_task_and_it_never_gets_worse(shards: Any, before: int, width: int, chance: Any) -> None:
    owner = np.array([chance.randrange(before) for _ in shards])
    unchanged = owner.copy()
    found = balanced(owner, shards, width)
    assert (owner == unchanged).all(), "the argument was changed"
    assert found.shape == owner.shape and found.min() >= 0 and found.max() < width
    if before <= width and shards.sum() > 0:
        floored = np.maximum(shards, 0.01 * shards.sum() / len(shards))
        assert imbalance(found, floored, width) <= imbalance(owner, floored, width) * (1 + 1e-9)
        moved = int((found != owner).sum())
        if imbalance(owner, floored, width) <= 1.2:
            assert moved == 0


@given(loads, some.integers(1, 9))
def test_a_second_time_moves_nothing(shards: Any, width: int) -> None:
    once = balanced(spread(len(shards), width), shards, width)
    assert (balanced(once, shards, width) == once).all()


# Grouping


def test_a_shard_is_a_range_of_hashes_and_all_are_used() -> None:
    hashes = np.sort(np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64))
    for count in (1, 2, 7, 256, 4096):
        shards = shards_of(hashes, count)
        assert (np.diff(shards) >= 0).all() and shards.min() == 0 and shards.max() == count - 1
    assert shards_of(np.array([0, 2**64 - 1], dtype=np.uint64), 4096).tolist() == [0, 4095]


def test_records_go_to_the_owner_of_their_shard() -> None:
    hashes = np.array([0, 2**62, 2**63, 2**63 + 2**62], dtype=np.uint64)
    share = Share(4, width=3, hashes=lambda: hashes)
    assert Shards().route(share, {OWNER: np.array([2, 0, 1, 2])}).tolist() == [2, 0, 1, 2]


def test_sharding_is_chosen_by_name() -> None:
    assert registry.create("shard", "balance", {"theta": "1.5"}).theta == 1.5
    assert registry.create("shard", "fixed").assign(np.array([1, 1, 1, 1]), np.ones(4), 2).tolist() == [0, 0, 1, 1]
    with pytest.raises(OptionError, match="theta"):
        registry.create("shard", "balance", {"theta": 0.5})


def test_what_is_gained_has_to_be_worth_a_new_table() -> None:
    """Tasks of 8 and 2 ms, the mean is 5 ms: the gain is 3 ms a batch. Of ten times as much it is 30 ms."""
    owner, loads = np.array([0, 0, 0, 1]), np.array([0.003, 0.003, 0.002, 0.002])
    balance = Balance()
    assert balance.assign(owner, loads, 2).tolist() == [0, 0, 0, 1]
    assert balance.assign(owner, 10 * loads, 2).tolist() == [1, 0, 0, 1]
    assert Balance(least_gain=0.002).assign(owner, loads, 2).tolist() == [1, 0, 0, 1]


def test_a_task_that_has_nothing_gets_shards_however_little_they_cost() -> None:
    owner, loads = np.array([0, 0, 1, 1]), np.full(4, 1e-6)
    assert sorted(Balance().assign(owner, loads, 4).tolist()) == [0, 1, 2, 3]
    assert Balance().assign(np.array([0, 1, 2, 3]), loads, 2).max() == 1


# The maps of a run


@dataclasses.dataclass(frozen=True)
class One:
    key: int


class Count(st.Processor):
    def process(self, key: int, records: list[One], state: st.State) -> Iterator[One]:
        return iter(())


def topology(shards: int = 8) -> st.Topology:
    source = st.source.generate(lambda draw: One(1), rate=1, schema=One)
    return source.key_by("key").stateful(Count, shards=shards).to(st.sink.discard()).named("t")


def report(seconds: dict[int, float]) -> BatchReport:
    state = StateReport(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 1, seconds=seconds)
    return BatchReport(0, 1, Plan({}, 1, {}), 0.0, 1.0, 0, 0, 0, (), {}, state={"count": state})


def test_maps_follow_widths_and_loads() -> None:
    sharding = Sharding(topology())
    assert sharding.maps({"count": 2})["count"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert sharding.maps({"count": 2}) == sharding.maps({"count": 2})
    sharding.report(report({0: 4.0, 1: 3.0, 2: 1.0, 4: 2.0}))
    first = sharding.maps({"count": 2})["count"]
    assert first[0] != first[1], "the two heaviest are apart"
    four = sharding.maps({"count": 4})["count"]
    assert set(four) == {0, 1, 2, 3}
    assert set(sharding.maps({"count": 1})["count"]) == {0}


def test_the_newest_batch_counts_most() -> None:
    sharding = Sharding(topology())
    sharding.report(report({0: 4.0}))
    sharding.report(report({1: 4.0}))
    assert sharding._loads["count"][:2] == pytest.approx([4.0 * LOAD_SMOOTHING * (1 - LOAD_SMOOTHING), 4.0 * LOAD_SMOOTHING])


@pytest.mark.parametrize("found", [np.array([0, 1]), np.full(8, 7), np.full(8, -1), None])
def test_a_sharder_that_talks_nonsense_is_overruled(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        name: ClassVar[str] = "odd"

        def assign(self, owner: Any, loads: Any, width: int) -> Any:
            return found

    sharding = Sharding(topology(), Odd())
    with caplog.at_level(logging.WARNING):
        assert sharding.maps({"count": 2})["count"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert "sharding odd failed; shards are spread evenly" in caplog.text
