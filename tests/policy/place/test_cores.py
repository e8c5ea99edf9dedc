"""Elasticutor's algorithm 1: worked by hand, and what holds for any cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.policy.place.cores import PHI, Assigned, Floats, Ints, assign, naive


def assigned(
    granted: list[int], cores: list[list[int]], capacity: list[int], home: list[int], state: list[float] | None = None,
    intensity: list[float] | None = None, **options: Any,
) -> Assigned:  # fmt: skip
    count = len(granted)
    return assign(
        np.array(granted), np.array(cores), np.array(capacity), np.array(home), np.array(state or [100.0] * count),
        np.array(intensity or [0.0] * count), **options,
    )  # fmt: skip


def migration_cost(before: Ints, after: Ints, state: Floats) -> float:
    """C(X|X̃): the bytes that leave a node, each executor's state being spread evenly over its cores before and after."""
    shares = [cores / np.maximum(cores.sum(axis=0), 1) for cores in (before, after)]
    return float((state * np.maximum(shares[0] - shares[1], 0.0)).sum().round(6))


def test_the_cost_of_a_core_more_and_one_fewer() -> None:
    """s = 60, x = (2, 1), X = 3. One more on node 1: C⁺ = 60·(3−1)/(3·4) = 10; on node 0: 60·(3−2)/12 = 5.
    One fewer on node 1: C⁻ = 60·(3−1)/(3·2) = 20; on node 0: 60·(3−2)/6 = 10."""
    before, state = np.array([[2], [1]]), np.array([60.0])
    assert migration_cost(before, np.array([[2], [2]]), state) == 10
    assert migration_cost(before, np.array([[3], [1]]), state) == 5
    assert migration_cost(before, np.array([[2], [0]]), state) == 20
    assert migration_cost(before, np.array([[1], [1]]), state) == 10
    assert migration_cost(before, before, state) == 0


def test_the_cheapest_core_is_taken() -> None:
    """Executor 0 needs a core. Executor 1 has too many on both nodes, (3, 1) of X = 4, s = 120: C⁻ = 120·1/12 = 10 on node 0
    and 120·3/12 = 30 on node 1. Executor 0 has (0, 2) of X = 2, s = 120: C⁺ = 120·2/6 = 40 on node 0, 0 on node 1. Sums: 50
    and 30."""
    found = assigned([3, 3], [[0, 3], [2, 1]], [3, 3], [1, 0], [120.0, 120.0])
    assert found.cores.tolist() == [[0, 3], [3, 0]]
    # with a state of 12 it costs 10 + 4 on node 0 and 30 on node 1
    assert assigned([3, 3], [[0, 3], [2, 1]], [3, 3], [1, 0], [12.0, 120.0]).cores.tolist() == [[1, 2], [2, 1]]


def test_free_cores_cost_nothing_and_home_is_preferred() -> None:
    # executor 1 has a core too many on node 0, at C⁻ = 0, as all its cores are there. Node 1 has a free core, at home; C⁺ = 0
    # for an executor without a core
    found = assigned([1, 1], [[0, 2], [0, 0]], [2, 1], [1, 0])
    assert found.cores.tolist() == [[0, 2], [1, 0]]  # nobody needs the core too many, so it stays
    # no free core: the core at home (node 0) costs the same as that of node 1
    assert assigned([1, 1, 1], [[0, 0, 2], [0, 2, 0]], [2, 2], [0, 1, 0]).cores.tolist() == [[1, 0, 1], [0, 2, 0]]
    assert assigned([1, 1, 1], [[0, 0, 2], [0, 2, 0]], [2, 2], [1, 1, 0]).cores.tolist() == [[0, 0, 2], [1, 1, 0]]


def test_data_intensive_executors_stay_at_home() -> None:
    """Executor 0, at home on node 0 and with a state of 1, needs a core more. A free one on node 1 costs C⁺ = 1·1/(1·2) = 0.5.
    One on node 0 costs executor 1, with (1, 2) of X = 3 and a state of 100, C⁻ = 100·2/(3·2) = 33."""
    cores, capacity, home = [[1, 1], [0, 2]], [2, 3], [0, 1]
    still = assigned([2, 2], cores, capacity, home, [1.0, 100.0], [PHI, 0.0])
    assert still.cores.tolist() == [[1, 1], [1, 2]]  # φ itself is not above φ
    moving = assigned([2, 2], cores, capacity, home, [1.0, 100.0], [PHI + 1, 0.0])
    assert moving.cores.tolist() == [[2, 0], [0, 2]] and moving.phi == PHI


def test_phi_is_doubled_until_it_can_be_done() -> None:
    """Executor 0 needs a second core and its node has none to give: executor 1 has no more than it was granted."""
    found = assigned([2, 1], [[1, 1], [0, 0]], [2, 1], [0, 0], intensity=[3 * PHI, 0.0])
    assert found.cores.tolist() == [[1, 1], [1, 0]]
    assert found.phi == 4 * PHI
    far = assigned([2, 1], [[1, 1], [0, 0]], [2, 1], [0, 0], intensity=[1e15, 0.0])
    assert far.cores.tolist() == [[1, 1], [1, 0]] and 1e15 <= far.phi < 2e15


def test_those_with_more_data_come_first() -> None:
    """Both are at home on node 0 and need a core; a single core is free there. The other executor has to go elsewhere."""
    for intensity, expected in (([3 * PHI, 5 * PHI], [[1, 2], [1, 0]]), ([5 * PHI, 3 * PHI], [[2, 1], [0, 1]])):
        found = assigned([2, 2], [[1, 1], [0, 0]], [3, 2], [0, 0], intensity=intensity)
        assert found.cores.tolist() == expected and found.phi == 4 * PHI


def test_line_7_to_the_letter() -> None:
    """Node 0 is full: executor 0, data-intensive, has 1 of 2 there, executor 1, which is not, 2 of 2. It gives one up and gets
    the free one of node 1."""
    cores, capacity, home, data = [[1, 2], [0, 0]], [3, 1], [0, 0], [2 * PHI, 0.0]
    found = assigned([2, 2], cores, capacity, home, intensity=data, from_any=True)
    assert found.cores.tolist() == [[2, 1], [0, 1]] and found.phi == PHI
    assert assigned([2, 2], cores, capacity, home, intensity=data).cores.tolist() == [[1, 2], [1, 0]]
    # an executor's last core is never taken: that of executor 1 is not even considered
    three = assigned([2, 1, 2], [[1, 1, 2], [0, 0, 0]], [4, 1], [0, 0, 0], intensity=[*data, 0.0], from_any=True)
    assert three.cores.tolist() == [[2, 1, 1], [0, 0, 1]]
    assert assigned([2, 1], [[1, 1], [0, 0]], [2, 1], [0, 0], intensity=data, from_any=True).cores.tolist() == [[1, 1], [1, 0]]


def test_what_cannot_be_granted() -> None:
    with pytest.raises(OptionError, match="5 cores are granted and there are 4"):
        assigned([3, 2], [[1, 1], [1, 1]], [2, 2], [0, 1])
    with pytest.raises(OptionError, match=r"every executor needs a core; granted: \[2, 0\]"):
        assigned([2, 0], [[1, 1], [1, 1]], [2, 2], [0, 1])
    with pytest.raises(OptionError, match="node 1 has 1 cores and 2 of them are in use"):
        assigned([1, 1], [[1, 1], [1, 1]], [2, 1], [0, 1])
    with pytest.raises(OptionError, match="finite"):
        assigned([1, 1], [[1, 1], [1, 1]], [2, 2], [0, 1], intensity=[np.nan, 0.0])
    with pytest.raises(OptionError, match="φ above 0"):
        assigned([1, 1], [[1, 1], [1, 1]], [2, 2], [0, 1], phi=0.0)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """Any capacities, what is in use of them by whom, and any grants that there are cores for."""
    nodes, count = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    capacity = draw(st.lists(st.integers(1, 6), min_size=nodes, max_size=nodes).filter(lambda cores: sum(cores) >= count))
    owners = [draw(st.integers(-1, count - 1)) for _ in range(sum(capacity))]
    cores = np.zeros((nodes, count), dtype=np.int64)
    for node, owner in zip(np.repeat(np.arange(nodes), capacity), owners, strict=True):
        if owner >= 0:
            cores[node, owner] += 1
    granted, left = np.ones(count, dtype=np.int64), sum(capacity) - count
    for j in range(count):
        more = draw(st.integers(0, left))
        granted[j], left = 1 + more, left - more
    amounts = st.lists(st.floats(0, 1e9), min_size=count, max_size=count)
    return {
        "granted": granted, "cores": cores, "capacity": np.array(capacity), "home": np.array(draw(
            st.lists(st.integers(0, nodes - 1), min_size=count, max_size=count))),
        "state": np.array(draw(amounts)), "intensity": np.array(draw(amounts)) / 100,
    }  # fmt: skip


def check(found: Assigned, cluster: dict[str, Any]) -> None:
    have = found.cores.sum(axis=0)
    assert (found.cores >= 0).all()
    assert (have >= cluster["granted"]).all() and (have >= 1).all()
    assert (found.cores.sum(axis=1) <= cluster["capacity"]).all()
    before = cluster["cores"].sum(axis=0)
    # whoever had enough gives up no more than it need not have, whoever had too few gets no more than the grant
    assert (have <= np.maximum(before, cluster["granted"])).all()


@settings(max_examples=300)
@given(clusters(), st.booleans())
def test_every_executor_gets_its_cores_and_no_node_gives_more_than_it_has(cluster: dict[str, Any], from_any: bool) -> None:
    asked = {name: value.copy() for name, value in cluster.items()}
    found = assign(**cluster, from_any=from_any)
    check(found, cluster)
    assert all((cluster[name] == asked[name]).all() for name in asked)  # nothing that was handed in is changed
    again = assign(**cluster, from_any=from_any)
    assert (again.cores == found.cores).all() and again.phi == found.phi
    # executors above the final φ gained cores at home only
    for j in np.flatnonzero(cluster["intensity"] > found.phi):
        gained = np.maximum(found.cores[:, j] - cluster["cores"][:, j], 0)
        assert gained.sum() == gained[cluster["home"][j]]


@settings(max_examples=200)
@given(clusters(), st.integers(0, 2**32))
def test_the_naive_one_keeps_the_same_bounds(cluster: dict[str, Any], seed: int) -> None:
    found = naive(cluster["granted"], cluster["cores"], cluster["capacity"], np.random.default_rng(seed))
    check(found, cluster)


@settings(max_examples=300)
@given(clusters(), st.integers(0, 2**32))
def test_one_core_is_never_dearer_than_the_naive_one(cluster: dict[str, Any], seed: int) -> None:
    """A single core is the cheapest. For several cores this need not be so: a cheap core may make the next cores expensive."""
    have = cluster["cores"].sum(axis=0)
    short = np.flatnonzero(cluster["granted"] > have)
    if len(short) == 0 or (have == 0).any():
        return
    cluster["granted"] = np.minimum(cluster["granted"], have)
    cluster["granted"][short[0]] = have[short[0]] + 1
    cluster["intensity"] = np.zeros(len(have))
    rng = np.random.default_rng(seed)
    costs = [
        migration_cost(cluster["cores"], assigned.cores, cluster["state"])
        for assigned in (assign(**cluster), naive(cluster["granted"], cluster["cores"], cluster["capacity"], rng))
    ]
    assert costs[0] <= costs[1] * (1 + 1e-9) + 1e-3


def test_on_a_cluster_it_moves_less_than_the_naive_one() -> None:
    """32 nodes of 8 cores, an executor on each, loads that change by a quarter: 20 rounds."""
    rng = np.random.default_rng(7)
    home, capacity, state = np.arange(32), np.full(32, 8), np.full(32, 8e6)
    own = plain = np.diag(np.full(32, 8))
    moved = [0.0, 0.0]
    for _ in range(20):
        shares = rng.gamma(16.0, 1.0, 32)
        granted = np.maximum(1, np.floor(shares / shares.sum() * 256).astype(np.int64))
        own_next = assign(granted, own, capacity, home, state, np.zeros(32)).cores
        plain_next = naive(granted, plain, capacity, rng).cores
        moved[0] += migration_cost(own, own_next, state)
        moved[1] += migration_cost(plain, plain_next, state)
        own, plain = own_next, plain_next
    assert moved[0] < 0.9 * moved[1]
    assert np.trace(own) > 2 * np.trace(plain)  # and so more stays at home
