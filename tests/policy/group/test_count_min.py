"""The pair of Count-Min matrices: the paper's bounds, and that the kernels put a key where the whole columns do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.policy.group import count_min
from springtide.policy.group.count_min import Cells, Matrix

Keys = npt.NDArray[np.uint64]
KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60)


def sketched(keys: Keys, seconds: npt.ArrayLike, r: int, c: int, seed: int = 0) -> tuple[Matrix, Matrix, Cells]:
    places = count_min.cells(count_min.row_hashes(r, seed), c, keys)
    F, W = count_min.empty(r, c)
    count_min.update(F, W, places, np.ones(len(keys)), seconds)
    return F, W, places


def frequencies(F: Matrix, places: Cells) -> npt.NDArray[np.float64]:
    least: npt.NDArray[np.float64] = np.min([F[row][places[row]] for row in range(len(F))], axis=0)
    return least


def test_size_of_the_paper() -> None:
    """POSG, section V-A: ε = 0.05 and δ = 0.1 make 54 columns and 4 rows; ⌈e/ε⌉ is 55."""
    assert count_min.rows(0.1) == 4
    assert count_min.columns(0.05) == 55
    assert count_min.columns(0.05, 2.7) == 54
    assert count_min.columns(1.0) == 3
    assert count_min.rows(1.0) == 1


@given(keys=KEYS, r=st.integers(1, 5), c=st.integers(1, 70), seed=st.integers(0, 2**63 - 1))
def test_frequency_is_never_below_the_truth(keys: list[int], r: int, c: int, seed: int) -> None:
    array = np.array(keys, dtype=np.uint64)
    F, _, places = sketched(array, np.ones(len(keys)), r, c, seed)
    assert ((places >= 0) & (places < c)).all()
    true = np.array([keys.count(key) for key in keys])
    assert (frequencies(F, places) >= true).all()
    assert (F.sum(axis=1) == len(keys)).all()


@pytest.mark.parametrize(("epsilon", "delta", "alpha"), [(0.05, 0.1, 1.0), (0.1, 0.25, 0.0), (0.02, 0.01, 1.5)])
def test_frequency_is_seldom_far_above_it(epsilon: float, delta: float, alpha: float) -> None:
    """P{f̂ − f ≥ ε(m − f)} ≤ δ, over 200 draws of the hashes for each key (section III-A)."""
    m, n = 4000, 500
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, n + 1) ** alpha
    items = rng.choice(n, m, p=weights / weights.sum()).astype(np.uint64)
    true = np.bincount(items, minlength=n)
    keys = np.arange(n, dtype=np.uint64)
    far = np.zeros(n)
    for seed in range(200):
        r, c = count_min.rows(delta), count_min.columns(epsilon)
        F, _, _ = sketched(items, np.ones(m), r, c, seed)
        far += frequencies(F, count_min.cells(count_min.row_hashes(r, seed), c, keys)) - true >= epsilon * (m - true)
    assert far.mean() / 200 <= delta
    assert far.max() / 200 <= delta + 3 * np.sqrt(delta * (1 - delta) / 200)


def test_two_keys_share_a_cell_as_seldom_as_by_lot() -> None:
    """2-universal: P{h(x) = h(y)} ≤ 1/c, also for keys that differ in a single bit of either half."""
    c, draws = 20, 6000
    pairs = np.array([0, 1, 2**32, 2**63, 2**64 - 1, 12345], dtype=np.uint64)
    seen = np.array([count_min.cells(count_min.row_hashes(1, seed), c, pairs)[0] for seed in range(draws)])
    for i in range(len(pairs)):
        for j in range(i):
            assert (seen[:, i] == seen[:, j]).mean() <= 1 / c + 4 * np.sqrt(1 / c / draws)


@given(keys=KEYS, c=st.integers(1, 20), data=st.data())
def test_estimates_lie_between_the_least_and_the_greatest_cost(keys: list[int], c: int, data: st.DataObject) -> None:
    """Equation 6."""
    size = len(keys)
    costs = data.draw(st.lists(st.floats(0.001, 1000), min_size=size, max_size=size))
    F, W, places = sketched(np.array(keys, dtype=np.uint64), costs, 4, c)
    estimates = count_min.estimate(F, W, places, default=-1.0)
    assert (estimates >= min(costs) * (1 - 1e-9)).all()
    assert (estimates <= max(costs) * (1 + 1e-9)).all()


def test_estimate_is_that_of_the_row_with_the_least_others() -> None:
    """Two keys share a cell of the first row, where 99 cheap records hide the expensive one; the second row separates them."""
    F, W = np.array([[100.0, 0.0], [1.0, 99.0]]), np.array([[199.0, 0.0], [100.0, 99.0]])
    places = np.array([[0, 0], [0, 1]])
    assert count_min.estimate(F, W, places, default=0.0).tolist() == [100.0, 1.0]


def test_unknown_key_costs_the_default() -> None:
    F, W = count_min.empty(3, 7)
    places = count_min.cells(count_min.row_hashes(3, 0), 7, np.array([1, 2], dtype=np.uint64))
    assert count_min.estimate(F, W, places, default=0.25).tolist() == [0.25, 0.25]
    both = count_min.estimate(np.stack([F, F], axis=-1), np.stack([W, W], axis=-1), places, default=[0.5, 0.75])
    assert both.tolist() == [[0.5, 0.75], [0.5, 0.75]]


def test_merged_and_aged() -> None:
    rng = np.random.default_rng(2)
    keys, costs = rng.integers(0, 30, 400, dtype=np.uint64), rng.random(400)
    F, W, places = sketched(keys, costs, 4, 20)
    halves = [sketched(keys[half], costs[half], 4, 20) for half in (slice(0, 150), slice(150, None))]
    assert np.allclose(F, halves[0][0] + halves[1][0]) and np.allclose(W, halves[0][1] + halves[1][1])
    assert np.allclose(count_min.estimate(0.3 * F, 0.3 * W, places, 0.0), count_min.estimate(F, W, places, 0.0))


@settings(max_examples=30)
@given(keys=KEYS, c=st.integers(1, 60), seed=st.integers(0, 2**63 - 1))
def test_kernels_agree_with_whole_columns(keys: list[int], c: int, seed: int) -> None:
    array, costs = np.array(keys, dtype=np.uint64), np.arange(1.0, len(keys) + 1)
    hashes = count_min.row_hashes(3, seed)
    F, W, places = sketched(array, costs, 3, c, seed)
    with np.errstate(over="ignore"):
        one_F, one_W = count_min.empty(3, c)
        for key, cost in zip(array, costs, strict=True):
            count_min.update_one(one_F, one_W, hashes, key, cost)
        assert np.array_equal(F, one_F) and np.allclose(W, one_W)
        estimates = [count_min.estimate_one(F, W, hashes, key, 0.5) for key in array]
        missing = count_min.estimate_one(*count_min.empty(3, c), hashes, array[0], 0.5)
    assert estimates == count_min.estimate(F, W, places, 0.5).tolist()
    assert missing == 0.5


def test_replicas_estimates_are_those_of_each() -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2**64, 50, dtype=np.uint64)
    sketches = [sketched(keys, rng.random(50) * scale, 4, 11) for scale in (1, 2, 3)]
    places = sketches[0][2]
    F = np.stack([sketch[0] for sketch in sketches], axis=-1)
    W = np.stack([sketch[1] for sketch in sketches], axis=-1)
    together = count_min.estimate(F, W, places, np.zeros(3))
    for i, (one_F, one_W, _) in enumerate(sketches):
        assert np.array_equal(together[:, i], count_min.estimate(one_F, one_W, places, 0.0))
