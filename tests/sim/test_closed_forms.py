"""The simulator against queueing theory: where there is a formula, the simulation agrees with it within 2 %."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from springtide.bench.simulator import mean_sojourn
from springtide.sim import ByItem, Edge, Exponential, Given, Model, Normal, Operator, Source, Uniform, Weighted, Zipf, simulate

pytestmark = pytest.mark.long

CLOSE = 0.02


def station(name: str, inputs: tuple[str | Edge, ...], service: float, replicas: int = 1, **options: Any) -> Operator:
    return Operator(name, inputs, Exponential(service), replicas=replicas, **options)


def poisson(rate: float) -> tuple[Source, ...]:
    return (Source("source", rate, arrivals="poisson"),)


def responses(summary: Mapping[str, Any]) -> dict[str, float]:
    return {operator["name"]: operator["response_ms"] / 1000 for operator in summary["operators"]}


def response(rate: float, service: float, replicas: int = 1) -> float:
    return service * mean_sojourn(replicas, rate * service / replicas)


def test_mm1() -> None:
    model = Model("mm1", poisson(0.7), (station("server", ("source",), 1.0),))
    found = simulate(model, grouping="full-knowledge", records=2_000_000).summary
    assert found["latency_ms"]["mean"] / 1000 == pytest.approx(1 / (1 - 0.7), rel=CLOSE)
    # the time in an M/M/1 queue is exponential, so its quantiles are known too
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found["latency_ms"][name] / 1000 == pytest.approx(-math.log(1 - share) / 0.3, rel=CLOSE)


@pytest.mark.parametrize(("replicas", "load"), [(2, 0.5), (8, 0.9)])
def test_mmk(replicas: int, load: float) -> None:
    model = Model("mmk", poisson(replicas * load), (station("servers", ("source",), 1.0, replicas),))
    found = simulate(model, grouping="full-knowledge", records=4_000_000, seed=1).summary
    assert found["latency_ms"]["mean"] / 1000 == pytest.approx(mean_sojourn(replicas, load), rel=CLOSE)
    busy = found["operators"][0]["busy_s"] / (replicas * found["duration_s"])
    assert busy == pytest.approx(load, rel=CLOSE)


def test_mg1_waits_as_pollaczek_and_khinchine_say() -> None:
    model = Model("mg1", poisson(0.6), (Operator("server", ("source",), Normal(1.0, 0.3)),))
    found = simulate(model, grouping="full-knowledge", records=2_000_000).summary
    waiting = 0.6 * (1.0 + 0.3**2) / (2 * (1 - 0.6))
    assert found["latency_ms"]["mean"] / 1000 == pytest.approx(1 + waiting, rel=CLOSE)


def test_mm1k_drops_as_erlang_says() -> None:
    """Three may wait and one is served: the fifth is dropped. P(drop) = (1 - ρ)ρ⁴ / (1 - ρ⁵)."""
    model = Model("mm1k", poisson(0.8), (station("server", ("source",), 1.0, queue_limit=3),))
    found = simulate(model, grouping="full-knowledge", records=1_000_000).summary
    assert found["rows_lost"] / found["rows_in"] == pytest.approx((1 - 0.8) * 0.8**4 / (1 - 0.8**5), rel=CLOSE)


def test_a_jackson_network_with_splits_and_merges() -> None:
    """Every queue is an M/M/k of its own: a splits to b and c, both go on to d, which gets half of a second source too."""
    sources = (Source("source", 1.0, arrivals="poisson"), Source("other", 0.6, arrivals="poisson"))
    operators = (
        station("a", ("source",), 1.5, 2, splits=True),
        station("b", (Edge("a", 0.3),), 2.0),
        station("c", (Edge("a", 0.7),), 2.0, 2),
        station("d", ("b", "c", Edge("other", 0.5)), 1.5, 3),
    )
    model = Model("jackson", sources, operators)
    found = simulate(model, grouping="full-knowledge", duration=1_500_000, seed=2).summary
    expected = {
        "a": response(1.0, 1.5, 2), "b": response(0.3, 2.0), "c": response(0.7, 2.0, 2), "d": response(1.3, 1.5, 3),
    }  # fmt: skip
    measured = responses(found)
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, rel=CLOSE), name
    through = expected["a"] + 0.3 * expected["b"] + 0.7 * expected["c"] + expected["d"]
    mean = (1.0 * through + 0.3 * expected["d"]) / 1.3
    assert found["latency_ms"]["mean"] / 1000 == pytest.approx(mean, rel=CLOSE)
    reached = {operator["name"]: operator["rows_in"] for operator in found["operators"]}
    assert reached["b"] / reached["a"] == pytest.approx(0.3, rel=CLOSE)
    assert reached["d"] == pytest.approx(1.3 * 1_500_000, rel=CLOSE)


def test_copies_are_whole_ones_and_by_chance_one_more() -> None:
    operators = (station("a", ("source",), 0.1), station("b", (Edge("a", 2.5),), 0.01), station("c", ("a",), 0.01))
    found = simulate(Model("copies", poisson(1.0), operators), grouping="full-knowledge", records=200_000).summary
    reached = {operator["name"]: operator["rows_in"] for operator in found["operators"]}
    assert reached["b"] == pytest.approx(2.5 * 200_000, rel=CLOSE)
    assert reached["c"] == 200_000
    assert found["processed_ratio"] == pytest.approx(1.0, rel=CLOSE)


@pytest.mark.parametrize("items", [Zipf(100, 1.2), Weighted(np.arange(100.0)), Given(np.arange(60) ** 2 % 97)])
def test_what_is_to_leave_goes_by_each_sources_items(items: Any) -> None:
    """Copies by item, of two sources whose items differ and of which one brings three times as many records as it seems to."""
    model = Model(
        "items", (Source("many", 1.0, items, limit=90_000), Source("few", 3.0, Uniform(10), limit=30_000)),
        (
            Operator("first", (Edge("many", np.arange(100) / 50), Edge("few", np.linspace(0, 3, 100)))),
            Operator("second", (Edge("first", np.arange(100) / 100),)),
        ),
    )  # fmt: skip
    found = simulate(model, grouping="round-robin", seed=3).summary
    assert found["processed_ratio"] == pytest.approx(1.0, rel=CLOSE)
    assert model.visits(model.sources[1], 3)["second"] == pytest.approx(
        np.mean(np.linspace(0, 3, 100)[:10] * np.arange(10) / 100)
    )


def test_costs_by_item_go_with_the_chances_of_the_items() -> None:
    chances, costs = np.array([0.1, 0.0, 0.6, 0.3]), np.array([3.0, 100.0, 1.0, 2.0])
    source = Source("source", 0.1, items=Weighted(chances))
    found = simulate(
        Model("items", (source,), (Operator("server", ("source",), ByItem(costs), replicas=2),)),
        grouping="full-knowledge", records=300_000,
    ).summary  # fmt: skip
    assert found["operators"][0]["busy_s"] / 300_000 == pytest.approx(float(chances @ costs), rel=CLOSE)
