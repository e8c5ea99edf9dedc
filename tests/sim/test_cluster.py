"""Machines, networks, speeds, keys and rates: what a model says is what is simulated."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError, SetupError
from springtide.model.rate import Rate, constant
from springtide.policy.group import Online, kernel
from springtide.policy.group.keys import mix, mixed_one
from springtide.sim import (
    ByItem,
    Cluster,
    Constant,
    Given,
    Model,
    Node,
    Normal,
    Operator,
    Outcome,
    Source,
    Speeds,
    Uniform,
    Weighted,
    Zipf,
    compile,
    simulate,
)
from springtide.sim.arrivals import BLOCK, Arrivals
from springtide.sim.compile import compiled, reads
from springtide.sim.draws import generator


def run(operators: tuple[Operator, ...], cluster: Cluster | None = None, rate: float = 1.0, **options: Any) -> Outcome:
    chosen = {"grouping": "round-robin", "records": 40, "by_record": True, **options}
    return simulate(Model("cluster", (Source("source", rate, node=0 if cluster else None),), operators, cluster), **chosen)


def server(replicas: int = 1, cost: float = 0.1, **options: Any) -> tuple[Operator, ...]:
    return (Operator("server", ("source",), Constant(cost), replicas=replicas, **options),)


def latencies(outcome: Outcome) -> Any:
    assert outcome.latencies_s is not None
    return outcome.latencies_s


def test_replicas_beyond_the_cores_share_them() -> None:
    assert latencies(run(server(4), Cluster((Node(cores=2),)))) == pytest.approx(0.2)
    assert latencies(run(server(2), Cluster((Node(cores=2),)))) == pytest.approx(0.1)
    assert latencies(run(server(4), Cluster((Node(cores=2), Node(cores=2))))) == pytest.approx(0.1)  # spread evenly
    placed = server(3, nodes=(0, 0, 1))
    assert set(latencies(run(placed, Cluster((Node(cores=1), Node(cores=1))))).round(6)) == {0.1, 0.2}


def test_cores_are_shared_anew_when_degrees_change() -> None:
    script = {"script": "server 0:4 20:2"}
    outcome = run(server(4), Cluster((Node(cores=2),)), policy="scripted", settings=script)
    assert latencies(outcome) == pytest.approx(np.where(np.arange(1, 41) <= 20, 0.2, 0.1))


def test_the_way_between_nodes_takes_its_time() -> None:
    delays = ((0.0, 0.03), (0.05, 0.0))
    two = (*server(nodes=(1,)), Operator("next", ("server",), Constant(0.2), nodes=(0,)))
    found = run(two, Cluster((Node(), Node()), delays))
    assert latencies(found) == pytest.approx(0.03 + 0.1 + 0.05 + 0.2)
    assert latencies(run(server(nodes=(0,)), Cluster((Node(), Node()), delays))) == pytest.approx(0.1)


def test_an_interface_is_a_queue_that_operators_share() -> None:
    """125 bytes on 1 Mbit/s take 1 ms; two readers of 400 records/s each fill 0.8 of it, three would be too much."""
    cluster = Cluster((Node(mbit_s=1.0), Node()), record_bytes=125)
    readers = tuple(Operator(f"reader-{i}", ("source",), Constant(0.0001), nodes=(1,)) for i in range(3))
    light = run(readers[:2], cluster, rate=400.0, records=4000).summary
    assert 1.0 < light["latency_ms"]["mean"] < 20
    assert light["rows_out"] == 8000
    heavy = run(readers, cluster, rate=400.0, records=4000).summary
    assert heavy["throughput_rows_s"] == pytest.approx(1000 / 3, rel=0.02), "of the source's records, each sent thrice"


def test_wrong_clusters_are_refused() -> None:
    with pytest.raises(OptionError, match="delay_s of a cluster of 2 nodes is one number, or 2 rows of 2"):
        run(server(), Cluster((Node(), Node()), ((0.0,),)))
    with pytest.raises(OptionError, match="'server': there is no node 7, only 0 to 0"):
        run(server(nodes=(7,)), Cluster((Node(),)))


def test_speeds_change_at_a_record_or_at_a_time() -> None:
    first, later = Speeds((2.0, 1.0)), Speeds((0.5, 3.0), from_record=20)
    found = latencies(run(server(2, speeds=(first, later))))
    assert found == pytest.approx([0.1 * f for f in [2.0, 1.0] * 10 + [0.5, 3.0] * 10])
    by_time = latencies(run(server(2, speeds=(first, Speeds((0.5, 3.0), from_s=21.0)))))
    alone = latencies(run(server(2, speeds=(later,))))
    both = latencies(run(server(2, speeds=(Speeds((1.0, 1.0)), later))))
    np.testing.assert_allclose(alone, both)  # before the first of them every replica has 1
    assert by_time == pytest.approx(found)
    sliced = run(server(2, speeds=(first, later)), policy="static", settings={"degree": 2}, interval=0.7)
    assert latencies(sliced) == pytest.approx(found)
    assert latencies(run(server(3, speeds=(first,))))[2] == pytest.approx(0.1)  # those that are not told of have 1


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30).filter(lambda chances: sum(chances) > 1e-6))
@settings(max_examples=100)
def test_the_alias_tables_give_every_item_its_chance(chances: list[float]) -> None:
    chance, other = Weighted(np.array(chances)).alias
    given = chance.copy()
    np.add.at(given, other, 1 - chance)
    np.testing.assert_allclose(given / len(chances), np.array(chances) / sum(chances), atol=1e-9)


def items(distribution: Any, count: int = 60_000, rate: float = 1000.0, seed: int = 0) -> Any:
    arrivals = Arrivals(Source("source", rate, distribution), seed, count, 0)
    found = []
    while not arrivals.exhausted:
        found.append(arrivals.take(arrivals.block_end).item)
    return np.concatenate(found)


def test_zipf_is_dealt_out_by_the_seed() -> None:
    counts = np.bincount(items(Zipf(100, 1.0)), minlength=100)
    expected = np.arange(1, 101) ** -1.0
    ranked = np.sort(counts)[::-1]
    np.testing.assert_allclose(ranked[:10] / 60_000, (expected / expected.sum())[:10], rtol=0.05)
    assert counts.argmax() != np.bincount(items(Zipf(100, 1.0), seed=2)).argmax()
    np.testing.assert_allclose(np.bincount(items(Uniform(4))) / 60_000, 0.25, rtol=0.05)


def test_shuffles_come_so_many_times_a_minute() -> None:
    found = items(Zipf(1000, 2.0, shuffles=6.0))  # 60 s, so every 10 s another item is the most frequent
    hottest = [np.bincount(found[i * 10_000 : (i + 1) * 10_000]).argmax() for i in range(6)]
    assert len(set(hottest)) == 6
    shares = [np.bincount(found[i * 10_000 : (i + 1) * 10_000 - 1]).max() / 10_000 for i in range(6)]
    assert shares == [pytest.approx(0.608, rel=0.05)] * 6  # 1/ζ(2), so the cuts are where they should be


def test_costs_are_as_given() -> None:
    out, none = np.empty(100_000), np.zeros(100_000, dtype=np.int64)
    Normal(1.0, np.sqrt(0.5)).draw(generator(0, "test"), none, out)
    assert out.min() > 0
    assert out.mean() == pytest.approx(1.098, rel=0.02)  # of the normal distribution, what is above 0
    ByItem(np.array([3.0, 4.0])).draw(generator(0, "test"), np.tile([0, 1], 50_000), out)
    assert (out == np.tile([3.0, 4.0], 50_000)).all()
    with pytest.raises(OptionError, match="the mean is above 0"):
        Normal(0.0, 1.0)


@pytest.mark.parametrize("arrivals", ["even", "poisson"])
def test_records_come_at_the_rate(arrivals: Any) -> None:
    rate = Rate((0.0, 10.0, 20.0), (100.0, 0.0, 300.0), 30.0)
    source = Arrivals(Source("source", rate, arrivals=arrivals), 0, None, 0)
    times = source.take(30.0).at
    counts, _ = np.histogram(times, [0, 10.001, 20, 30.001])
    assert counts.tolist() == (
        [1000, 0, 3000] if arrivals == "even" else [pytest.approx(1000, rel=0.1), 0, pytest.approx(3000, rel=0.1)]
    )
    assert source.exhausted
    if arrivals == "even":
        np.testing.assert_array_equal(times, rate.created(0, 4000))


def test_blocks_do_not_show() -> None:
    count = 2 * BLOCK + 100
    arrivals = Arrivals(Source("source", constant(1000.0), Given(np.arange(7))), 0, count, 0)
    batches = [arrivals.take(arrivals.block_end) for _ in range(3)]
    assert arrivals.exhausted
    np.testing.assert_array_equal(np.concatenate([b.at for b in batches]), constant(1000.0).created(0, count))
    np.testing.assert_array_equal(np.concatenate([b.root for b in batches]), np.arange(count))
    np.testing.assert_array_equal(np.concatenate([b.item for b in batches]), np.arange(count) % 7)


def test_groupings_get_the_mixed_key_and_may_make_arrays() -> None:
    @kernel
    def by_table(state: Any, key: int, now: float, free: Any, queue: Any) -> int:
        both = np.zeros(2, dtype=np.uint64)  # makes an array, which takes another way of compiling
        both[0] = mixed_one(3)
        return 1 if key == both[0] else 0

    class Third:
        name = "third"

        def online(self, k: int, seed: int, before: Any = None) -> Online:
            return Online((np.zeros(1),), by_table)

    source = Source("source", 1.0, Given(np.arange(10)))
    costs = Operator("server", ("source",), Constant(0.1), replicas=2, speeds=(Speeds((1.0, 5.0)),))
    outcome = simulate(Model("keys", (source,), (costs,)), grouping=Third(), records=10, by_record=True)
    assert latencies(outcome) == pytest.approx([0.5 if i == 3 else 0.1 for i in range(10)])


def test_kernels_are_compiled_with_those_that_they_call() -> None:
    @kernel
    def twice(key: int, unused: int) -> int:
        return mixed_one(mixed_one(key))

    key = np.full(1, 5, dtype=np.uint64)
    assert compiled(twice)(key[0], 0) == mix(mix(key))[0]
    assert compiled(twice) is compiled(twice)
    assert (reads(twice, 0), reads(twice, 1)) == (True, False)
    assert not hasattr(mixed_one, "py_func")  # the kernels themselves stay plain functions


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(SetupError, match=r"the simulator needs numba; pip install 'springtide\[sim\]'"):
        compile._numba.__wrapped__()
