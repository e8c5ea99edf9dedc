"""Tide: what it learns, how it routes by that, and that no report can break it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.model.costs import TaskCosts
from springtide.policy.group import Share, State
from springtide.policy.group.greedy import in_turn
from springtide.policy.group.keys import mix
from springtide.policy.group.lpt import Lpt
from springtide.policy.group.tide import Tide

Floats = npt.NDArray[np.float64]


def keys_of(items: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    return mix(np.asarray(items, dtype=np.uint64))


def state_after(grouping: Tide | Lpt, batches: list[list[TaskCosts]], width: int) -> State:
    state = grouping.initial()
    for batch in batches:
        state = grouping.learn(state, width, batch)
    return state


def reports(items: npt.NDArray[np.int64], seconds: Floats, width: int, factors: Floats | None = None) -> list[TaskCosts]:
    """What ``width`` tasks report of records that were dealt out in turn."""
    tasks = np.arange(len(items)) % width
    speeds = np.ones(width) if factors is None else factors
    return [TaskCosts.of(t, keys_of(items[tasks == t]), seconds[tasks == t] * speeds[t]) for t in range(width)]


def makespan(targets: npt.NDArray[np.int64], seconds: Floats, width: int) -> float:
    return float(np.bincount(targets, seconds, width).max())


def share(items: npt.NDArray[np.int64], width: int, origin: int = 0) -> Share:
    return Share(len(items), width, origin, hashes=lambda: keys_of(items))


def test_with_all_costs_known_a_batch_is_all_but_even() -> None:
    rng = np.random.default_rng(1)
    costs = rng.permutation(np.repeat(np.arange(1, 65), 8)) / 1000
    tide = Tide()
    items = rng.integers(0, 512, 20_000)
    state = state_after(tide, [reports(part, costs[part], 5) for part in np.array_split(items, 20)], 5)
    for _ in range(20):
        batch = rng.integers(0, 512, 100)
        even = max(costs[batch].sum() / 5, costs[batch].max())
        assert makespan(tide.route(share(batch, 5), tide.table(state, 5)), costs[batch], 5) < 1.02 * even
        assert makespan(in_turn(share(batch, 5)), costs[batch], 5) > 1.02 * even


def test_one_report_is_enough_to_route_by() -> None:
    tide = Tide()
    state = state_after(tide, [[TaskCosts.of(0, keys_of([1, 2, 3, 4]), np.array([0.09, 0.03, 0.03, 0.03]))]], 2)
    targets = tide.route(share(np.array([2, 3, 1, 4]), 2), tide.table(state, 2))
    assert targets[2] != targets[0] == targets[1] == targets[3]


def test_costs_that_have_nothing_to_do_with_the_key_are_not_believed() -> None:
    """Means of few records differ by chance; believed, they would make batches less even than dealing out in turn."""
    rng = np.random.default_rng(2)
    tide, items = Tide(), rng.integers(0, 2_000, 10_000)
    seconds = rng.exponential(0.01, len(items))
    state = state_after(
        tide, [reports(i, s, 4) for i, s in zip(np.array_split(items, 50), np.array_split(seconds, 50), strict=True)], 4
    )
    costs = tide.table(state, 4).get("costs", np.zeros(1))
    raw = state["seconds"] / state["weights"]
    assert costs.std() < 0.2 * raw.std()
    counts = np.bincount(tide.route(share(rng.integers(0, 2_000, 400), 4), tide.table(state, 4)), minlength=4)
    assert counts.max() - counts.min() <= 12


def test_a_slow_replica_gets_less() -> None:
    rng = np.random.default_rng(3)
    costs = rng.permutation(np.repeat(np.arange(1, 65), 8)) / 1000
    factors = np.array([0.8, 1.0, 1.0, 1.4])
    tide, state = Tide(), Tide().initial()
    for _ in range(40):
        items = rng.integers(0, 512, 500)
        targets = tide.route(share(items, 4), tide.table(state, 4))
        own = [TaskCosts.of(t, keys_of(items[targets == t]), costs[items[targets == t]] * factors[t]) for t in range(4)]
        state = tide.learn(state, 4, own)
    learned = tide.table(state, 4)["factors"]
    assert learned / learned.mean() == pytest.approx(factors / factors.mean(), rel=0.05)
    work = np.bincount(targets, costs[items], 4) * factors
    assert work.max() < 1.05 * work.mean()


def test_one_uneven_batch_makes_no_replica_slow() -> None:
    """Costs that were measured under another load are off for some keys: what that does to a replica's records is no speed."""
    rng = np.random.default_rng(5)
    costs = rng.permutation(np.repeat(np.arange(1, 65), 8)) / 1000
    tide, state = Tide(), Tide().initial()
    for _ in range(60):
        items = rng.integers(0, 512, 400)
        own = reports(items, costs[items] * rng.lognormal(0, 0.3, 400), 4)
        off = rng.normal(1.0, 0.05, 4)
        own = [TaskCosts(t.task, t.keys, t.counts, t.seconds * off[t.task]) for t in own]
        state = tide.learn(state, 4, own)
        assert np.abs(tide.table(state, 4)["factors"] - 1).max() < 0.06


def test_costs_that_are_alike_are_dealt_out_in_turn() -> None:
    tide = Tide()
    items = np.arange(1_000) % 50
    state = state_after(tide, [reports(items, np.full(1_000, 0.01) + items * 1e-6, 4) for _ in range(3)], 4)
    assert tide.table(state, 4) == {}
    drawn = np.random.default_rng(1).integers(0, 50, (30, 1_000))
    slow = state_after(tide, [reports(items, np.full(1_000, 0.01), 4, np.array([1.0, 1.0, 1.0, 2.0])) for items in drawn], 4)
    assert tide.table(slow, 4)["factors"][3] > 1.4, "but not where a replica is slow"


def test_what_was_learned_ages() -> None:
    tide = Tide(half_life=100)
    state = state_after(tide, [[TaskCosts.of(0, keys_of([1] * 100), np.full(100, 0.1))]], 1)
    state = tide.learn(state, 1, [TaskCosts.of(0, keys_of([1] * 500), np.full(500, 0.2))])
    assert state["seconds"][0] / state["weights"][0] > 0.199


def test_the_cheapest_keys_move_into_the_sketch_and_nothing_is_lost() -> None:
    tide = Tide(exact=64, half_life=1e12)
    rng = np.random.default_rng(4)
    items = rng.integers(0, 400, 4_000)
    seconds = 0.001 + items / 1000
    state = state_after(tide, [reports(items, seconds, 1)], 1)
    assert len(state["keys"]) <= 64
    assert state["weights"].sum() + state["F"][0].sum() == pytest.approx(4_000)
    assert state["seconds"].sum() + state["W"][0].sum() == pytest.approx(seconds.sum())
    table = tide.table(state, 1)
    estimates = tide._estimates(table, keys_of(np.arange(400)))
    assert np.corrcoef(estimates, np.arange(400))[0, 1] > 0.7


def test_shares_of_several_tasks_do_not_all_begin_with_the_same_target() -> None:
    tide = Tide()
    state = state_after(tide, [[TaskCosts.of(0, keys_of([1]), np.array([0.1]))]], 4)
    firsts = [int(tide.route(share(np.array([1]), 4, origin), tide.table(state, 4))[0]) for origin in range(4)]
    assert sorted(firsts) == [0, 1, 2, 3]


# Any reports

odd_seconds = st.floats(0, 1e12) | st.just(0.0)
odd_reports = st.lists(
    st.builds(
        lambda task, pairs: TaskCosts.of(
            task,
            keys_of([k for k, _ in pairs]) if pairs else np.zeros(0, dtype=np.uint64),
            np.array([s for _, s in pairs], dtype=np.float64),
        ),
        st.integers(-1, 9),
        st.lists(st.tuples(st.integers(0, 20), odd_seconds | st.just(float("nan")) | st.floats(-5, 0)), max_size=8),
    ),
    max_size=5,
)


@pytest.mark.parametrize("grouping", [Tide(), Tide(exact=8, half_life=3), Lpt()], ids=["tide", "small", "lpt"])
@settings(max_examples=60)
@given(batches=st.lists(st.tuples(st.integers(1, 8), odd_reports), max_size=6), rows=st.integers(0, 40))
def test_whatever_is_reported_every_record_has_a_target(
    grouping: Tide | Lpt, batches: list[tuple[int, list[TaskCosts]]], rows: int
) -> None:
    state = grouping.initial()
    for width, batch in [*batches, (3, [])]:
        state = grouping.learn(state, width, batch)
        table = grouping.table(state, width)
        items = np.arange(rows) % 23
        targets = grouping.route(share(items, width), table)
        assert targets.shape == (rows,)
        assert ((targets >= 0) & (targets < width)).all()
        assert (targets == grouping.route(share(items, width), table)).all()
        assert all(np.isfinite(values).all() for values in table.values())
        assert grouping.route(Share(rows, width), table).shape == (rows,), "without a key"


@settings(max_examples=40)
@given(seconds=st.lists(st.floats(0.001, 1), min_size=1, max_size=9), width=st.integers(2, 4))
def test_the_longest_first_is_within_grahams_bound(seconds: list[float], width: int) -> None:
    """4/3 − 1/(3k) of the least makespan, found by trying all."""
    tide, items = Tide(), np.arange(len(seconds))
    costs = np.array(seconds)
    state = state_after(tide, [[TaskCosts.of(0, keys_of(items), costs)]], width)
    targets = tide.route(share(items, width), tide.table(state, width))
    ways = np.stack(np.unravel_index(np.arange(width ** len(seconds)), (width,) * len(seconds)), axis=1)
    least = np.max([(ways == target) @ costs for target in range(width)], axis=0).min()
    assert makespan(targets, costs, width) <= (4 / 3 - 1 / (3 * width)) * least * (1 + 1e-4)
