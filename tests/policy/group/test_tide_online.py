"""Tide record by record: what it believes of keys and replicas, against the same made from all that it keeps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from springtide.policy.group import Online
from springtide.policy.group.tide import Tide
from springtide.policy.group.tide.online import INVERSE, KEYS, MEANS, SQUARES, UNIT, Knowledge, _credit, _estimate

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]


@pytest.fixture(autouse=True)
def _wrapping() -> Iterator[None]:
    """Kernels that are not compiled: hashes wrap around without a warning."""
    with np.errstate(over="ignore"):
        yield


def fed(tide: Tide, keys: Keys, costs: Floats, targets: npt.NDArray[np.int64], k: int = 2) -> Knowledge:
    """What is known after these records, each done before the next comes."""
    work = tide.online(k, 0)
    feed(work, keys, costs, targets)
    state: Knowledge = work.state
    return state


def feed(work: Online, keys: Keys, costs: Floats, targets: npt.NDArray[np.int64]) -> None:
    assert work.completed is not None
    for i, (key, cost, target) in enumerate(zip(keys, costs, targets, strict=True)):
        work.completed(work.state, int(target), key, float(cost), float(i))


def spread_keys(state: Knowledge) -> tuple[Floats, Floats]:
    """The exact keys' means, and their weights in records."""
    there = state.weights > 0
    return state.seconds[there] / state.weights[there], state.weights[there] / state.sums[UNIT]


def credit(state: Knowledge) -> float:
    return _credit(state.sums, float(state.sums[MEANS] / state.sums[KEYS]))


# keys


def test_costs_that_have_nothing_to_do_with_the_key_make_the_mean_of_all_believed() -> None:
    """Each key has 7 records' weight: their means differ by chance only, and estimates must not."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 40, 6_000).astype(np.uint64)
    state = fed(Tide(half_life=200, report_every=1), keys, rng.uniform(0.005, 0.015, 6_000), keys.view(np.int64) % 2)
    means, weights = spread_keys(state)
    assert state.sums[INVERSE] == pytest.approx((1 / np.maximum(weights, 1.0)).sum(), rel=0.3)
    assert credit(state) > 50
    estimates = np.array([_estimate(state, np.uint64(key)) for key in range(40)])  # type: ignore[arg-type]
    assert estimates.std() < 0.15 * means.std()


def test_costs_that_go_by_the_key_make_the_key_believed() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 40, 6_000).astype(np.uint64)
    costs = (keys + np.uint64(1)) * 0.001 * rng.uniform(0.95, 1.05, 6_000)
    assert credit(fed(Tide(half_life=200, report_every=1), keys, costs, keys.view(np.int64) % 2)) < 0.1


@pytest.mark.parametrize("half_life", [1, 50, 1e9])
def test_sums_over_the_keys_are_those_of_the_keys(half_life: float) -> None:
    """The keys change, so some are evicted, some fade away to nothing, and the unit is scaled back now and then."""
    rng = np.random.default_rng(2)
    keys = (rng.integers(0, 30, 6_432) + np.arange(6_432) // 200).astype(np.uint64)
    state = fed(Tide(half_life=half_life, exact=64, report_every=16), keys, rng.exponential(1.0, 6_432), np.zeros(6_432, int))
    means, weights = spread_keys(state)
    assert state.sums[KEYS] == len(means)
    assert state.sums[MEANS] == pytest.approx(means.sum())
    assert state.sums[SQUARES] == pytest.approx((means**2).sum())
    assert state.sums[INVERSE] == pytest.approx((1 / np.maximum(weights, 1.0)).sum(), rel=0.1)


# replicas


def test_factors_have_a_mean_of_one_and_estimates_are_of_a_replica_like_that() -> None:
    rng, speeds = np.random.default_rng(3), np.array([0.5, 1.0, 1.5])
    keys = rng.integers(0, 20, 9_000).astype(np.uint64)
    targets = np.arange(9_000) % 3
    costs = (keys + np.uint64(1)) * speeds[targets]
    state = fed(Tide(half_life=1000), keys, costs, targets, k=3)
    assert state.factor.mean() == pytest.approx(1.0)
    assert state.factor.tolist() == pytest.approx(speeds.tolist(), rel=0.05)
    estimates = [_estimate(state, np.uint64(key)) for key in range(20)]  # type: ignore[arg-type]
    assert estimates == pytest.approx(list(range(1, 21)), rel=0.05)


def test_keys_that_are_rare_and_dear_do_not_make_a_speed_wait() -> None:
    """A slow replica is believed after so many records as are tried, of what a record costs and not a key."""
    rare = np.arange(1, 11, dtype=np.uint64)
    keys = np.concatenate([rare, np.zeros(1_100, dtype=np.uint64)])
    targets = np.repeat([0, 1], [1_010, 100])
    costs = np.concatenate([np.full(10, 100.0), np.repeat([1.0, 2.0], [1_000, 100])])
    state = fed(Tide(report_every=1), keys, costs, targets)
    assert state.factor[1] / state.factor[0] > 1.5


def test_keys_that_are_new_tell_nothing_of_a_speed() -> None:
    keys = np.concatenate([np.arange(64), np.arange(64) % 4, 1000 + np.arange(640)]).astype(np.uint64)
    costs = np.concatenate([np.ones(128), np.full(640, 5.0)])
    state = fed(Tide(), keys, costs, np.repeat([0, 1], [128, 640]))
    assert state.factor.tolist() == pytest.approx([1.0, 1.0], abs=0.05)


def test_records_that_cost_nothing_tell_nothing_of_a_speed() -> None:
    zeros, later = np.zeros(64), np.ones(64)
    keys, targets = np.arange(128, dtype=np.uint64) % np.uint64(4), np.arange(128) % 2
    state = fed(Tide(), keys, np.concatenate([zeros, later]), targets)
    assert np.isfinite(state.factor).all()
    assert 0 < _estimate(state, np.uint64(1)) <= 1  # type: ignore[arg-type]
