"""One queue for all replicas: records get a replica when they start, however steps are cut and whatever changes meanwhile."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from springtide.sim import ByItem, Exponential, Given, Model, Operator, Outcome, Reconfiguration, Source, simulate
from springtide.sim.arrivals import BLOCK
from springtide.sim.draws import reads_items

Floats = npt.NDArray[np.float64]

quarters = st.integers(0, 8).map(lambda n: n / 4)  # exact in binary, so that times may be equal, and results have to be
loads = st.lists(st.tuples(quarters, quarters), min_size=1, max_size=80)
changes = st.dictionaries(st.integers(1, 30), st.integers(1, 5), max_size=4)
few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def departures(times: Floats, costs: Floats, degrees: dict[int, int], timeout: float = math.inf) -> Floats:
    """Record by record, in plain Python; those that are removed leave never. ``degrees``: from which second on."""
    free, depart, i = np.zeros(max(degrees.values())), np.full(len(times), np.nan), 0
    for (begin, degree), (end, _) in pairwise([*sorted(degrees.items()), (math.inf, 0)]):
        if begin and (np.nanmax(depart, initial=0.0) > begin or (i < len(times) and times[i] <= begin)):
            free = np.maximum(free, begin)  # somebody is there, and what waits is dealt out anew
        while i < len(times):
            replica = int(np.argmin(free[:degree]))
            start = max(times[i], free[replica])
            if start > end:
                break
            if start - times[i] <= timeout:
                depart[i] = free[replica] = start + costs[i]
            i += 1
    return depart


def run(
    times: Floats, costs: Floats, degrees: dict[int, int], interval: float, timeout: float | None, **options: Any
) -> Outcome:
    source = Source("source", times=times, items=Given(np.arange(len(times))))
    server = Operator("server", ("source",), ByItem(costs), replicas=degrees[0], queue="shared")
    script = "server " + " ".join(f"{second}:{degree}" for second, degree in degrees.items())
    return simulate(
        Model("one", (source,), (server,), timeout_s=timeout), policy="scripted", settings={"script": script},
        interval=interval, records=len(times), by_record=True, **options,
    )  # fmt: skip


def different(first: int, later: dict[int, int]) -> dict[int, int]:
    """Without changes that change nothing."""
    found = {0: first}
    for second, degree in sorted(later.items()):
        if degree != list(found.values())[-1]:
            found[second] = degree
    return found


@given(loads, st.integers(1, 4), changes, st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([None, 2.0]))
@few
def test_changes_and_steps_do_what_they_say(
    load: list[tuple[float, float]], first: int, later: dict[int, int], interval: float, timeout: float | None
) -> None:
    gaps, costs = np.array(load).T
    times, degrees = np.cumsum(gaps), different(first, later)
    outcome = run(times, costs, degrees, interval, timeout)
    found = departures(times, costs, degrees, timeout or math.inf)
    np.testing.assert_array_equal(outcome.latencies_s, found - times)
    assert outcome.summary["rows_timed_out"] == np.isnan(found).sum()


@pytest.mark.long
@pytest.mark.parametrize("interval", [1.0, 0.125])
def test_a_large_backlog_is_served_as_it_came(interval: float) -> None:
    """Four blocks and more wait, replicas come and go meanwhile, and all columns move to the front again."""
    count = 6 * BLOCK
    random = np.random.default_rng(4)
    times = np.sort(np.concatenate([random.uniform(0, 4, count), random.uniform(30, 60, BLOCK)]))
    costs = random.exponential(4.0 / BLOCK, len(times))
    degrees = {0: 1, 3: 3, 5: 2, 9: 7, 12: 1, 30: 3}
    outcome = run(times, costs, degrees, interval, None)
    np.testing.assert_array_equal(outcome.latencies_s, departures(times, costs, degrees) - times)
    assert max(snapshot.backlog or 0 for snapshot in outcome.snapshots) > 4 * BLOCK


@pytest.mark.parametrize("kind", ["pause", "restart"])
def test_a_pause_or_a_restart_loses_nothing_unseen(kind: Any) -> None:
    """What waits for the first free replica is where it was, or is lost; and the same in short steps as in long ones."""
    source = Source("source", 400.0, arrivals="poisson")
    operators = tuple(
        Operator(name, (before,), Exponential(0.01), queue="shared") for before, name in (("source", "a"), ("a", "b"))
    )
    found = []
    for interval in (5.0, 0.5):
        outcome = simulate(
            Model("two", (source,), operators), policy="scripted", settings={"script": "a 5:2 20:6; b 10:8 25:3"},
            interval=interval, duration=40.0, reconfiguration=Reconfiguration(kind, 1.0), seed=3,
        )  # fmt: skip
        summary = outcome.summary
        assert summary["rows_in"] == summary["rows_out"] + summary["rows_lost"] + summary["rows_there"]
        assert (summary["rows_lost"] > 0) == (kind == "restart")
        found.append((summary["rows_in"], summary["rows_out"], summary["rows_lost"], summary["latency_ms"]))
    assert found[0] == found[1]


class Bare:
    """A cost whose arguments have no names, so that nobody can tell which of them it reads."""

    def draw(self, *told: Any) -> None:
        _, items, out = told
        out[:] = 0.25 * (1 + items % 2)


def test_a_cost_that_does_not_tell_what_it_reads_gets_the_items() -> None:
    assert reads_items(Bare())
    model = Model("bare", (Source("s", 1.0, Given(np.array([0, 1, 1, 0])), "even"),), (Operator("o", ("s",), Bare()),))
    assert simulate(model, records=8).summary["latency_ms"]["mean"] == pytest.approx(375)
