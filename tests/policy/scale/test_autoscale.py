"""AUTOSCALE and AUTOSCALE+ against DABS-Storm, section 4, with the arithmetic written out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, ReplicaSnapshot, Snapshot, SourceSnapshot
from springtide.policy.registry import create, validate
from springtide.policy.scale.autoscale import Autoscale
from springtide.policy.scale.autoscale_plus import AutoscalePlus, usable

RNG = np.random.default_rng(0)
INTERVAL_S = 10.0


def operator(name: str, degree: int, rate: float | None, cost_s: float = 0.005, **measured: Any) -> OperatorSnapshot:
    """One that served all that came, if nothing else is said."""
    rows = None if rate is None else round(rate * INTERVAL_S)
    usual: dict[str, Any] = {
        "width": degree, "rows_in": rows, "rows_out": rows, "failures": 0, "rate": rate, "utilisation": None, "backlog": 0,
        "latency_ms": None, "served": rows, "busy_s": None if rows is None else rows * cost_s,
    }  # fmt: skip
    return OperatorSnapshot(name, degree, **{**usual, **measured})


def snapshot(*operators: OperatorSnapshot, **measured: Any) -> Snapshot:
    degrees = {o.name: o.degree for o in operators}
    usual: dict[str, Any] = {
        "at": 100.0, "interval_s": INTERVAL_S, "batches": (), "rate": None, "backlog": None, "latency": None,
    }  # fmt: skip
    plan = Plan(degrees, max(1, sum(degrees.values())), degrees)
    return Snapshot(plan=plan, operators=operators, **{**usual, **measured})


def decisions(policy: Autoscale, measured: Sequence[Snapshot]) -> list[dict[str, int]]:
    """What is wanted after each interval; nobody grants it."""
    state, found = policy.initial(), []
    for one in measured:
        state, requests = policy.decide(json.loads(json.dumps(state, allow_nan=False)), one, RNG)
        found.append({request.operator: request.degree for request in requests})
    return found


def wanted(policy: Autoscale, *operators: OperatorSnapshot, **measured: Any) -> dict[str, int]:
    return decisions(policy, [snapshot(*operators, **measured)])[0]


def followed(policy: Autoscale, rates: Sequence[float], degree: int, cost_s: float = 0.005) -> list[int]:
    """The degree in each interval when every request is granted."""
    state, degrees = policy.initial(), []
    for rate in rates:
        state, requests = policy.decide(state, snapshot(operator("a", degree, rate, cost_s)), RNG)
        degrees.append(degree)
        degree = requests[0].degree if requests else degree
    return degrees


# AUTOSCALE: equations 3 to 6 and 10 to 12


def test_the_example_of_the_docstring() -> None:
    # 1,000/s · 60 s + 6,000 = 66,000; a replica does 60 s / 5 ms = 12,000; 66,000 / 12,000 = 5.5
    assert wanted(Autoscale(), operator("a", 5, 1_000.0, backlog=6_000)) == {"a": 6}
    assert wanted(Autoscale(), operator("a", 6, 1_000.0, backlog=6_000)) == {}


def test_the_reason_has_the_numbers() -> None:
    _, (request,) = Autoscale().decide(
        Autoscale().initial(), snapshot(operator("a", 5, 1_000.0, backlog=6_000)), RNG
    )  # fmt: skip
    assert request.reason == "in 60 s 60,000 will come, waiting 6,000, 12,000 per replica: 5.50, outside 4.00 to 5"


def test_the_forecast_is_summed_over_the_next_window() -> None:
    # 100, 200, 300/s: the line goes on with 400 … 900/s, 3,900 in six points, 39,000 records of 10 s each.
    # At 5 ms a replica does 12,000: 3.25, so 4. By the last value alone it would be 18,000 / 12,000 = 1.5, so 2.
    rates = [100.0, 200.0, 300.0]
    assert decisions(Autoscale(), [snapshot(operator("a", 3, rate)) for rate in rates])[-1] == {"a": 4}


def test_the_working_interval() -> None:
    # 5 ms: 1,000/s are 5.0 replicas.
    for degree, degrees in ((4, {"a": 5}), (5, {}), (6, {}), (7, {"a": 5})):
        assert wanted(Autoscale(beta=0.8), operator("a", degree, 1_000.0)) == degrees, degree  # 0.8 · 6 = 4.8 ≤ 5 < 5.6
    assert wanted(Autoscale(beta=0.1), operator("a", 40, 1_000.0)) == {}  # 4 ≤ 5
    assert wanted(Autoscale(beta=0.1), operator("a", 51, 1_000.0)) == {"a": 5}
    assert wanted(Autoscale(beta=0.0), operator("a", 500, 1_000.0)) == {}


def test_a_rate_of_zero_is_a_measurement() -> None:
    busy, idle = snapshot(operator("a", 5, 1_000.0)), snapshot(operator("a", 5, 0.0))
    assert decisions(Autoscale(), [busy, *[idle] * 8])[-1] == {"a": 1}


def line(first: OperatorSnapshot, second: OperatorSnapshot, **measured: Any) -> Snapshot:
    return snapshot(first, second, sources=(SourceSnapshot("source", first.rows_in),), **measured)


def test_a_producers_backlog_is_on_its_way() -> None:
    # a: 200/s come and 200/s are served, 60,000 wait: 72,000 in the window. Half of what a takes reaches b: 36,000, against
    # b's own 100/s · 60 s = 6,000. b at 5 ms: 36,000 / 12,000 = 3. The min leaves it at 6,000 / 12,000, so 1.
    def measured(**more: Any) -> Snapshot:
        return line(
            operator("a", 9, 200.0, backlog=60_000, inputs=(("source", 2_000),)),
            operator("b", 2, 100.0, inputs=(("a", 1_000),)),
            **more,
        )

    assert decisions(Autoscale(), [measured()])[0] == {"a": 6, "b": 3}
    assert decisions(Autoscale(combine="min"), [measured()])[0] == {"a": 6, "b": 1}
    # In batches b's backlog holds its part of what waits at the source; b would count it twice.
    assert decisions(Autoscale(), [measured(batches=((2_000, 5.0),))])[0] == {"a": 6, "b": 1}


def test_the_selectivity_is_the_mean_of_the_window() -> None:
    # b got 1,000 of 2,000, then 1,000 of 6,000: ᾱ = 2,000 / 8,000 = 0.25. a takes 200 and 600/s, the line is too short, so the
    # last holds: 36,000, of which b gets 9,000 (6,000 by its own 100/s). At 10 ms a replica of b does 6,000: 1.5, so 2.
    def measured(rate: float) -> Snapshot:
        first = operator("a", 3, rate, inputs=(("source", round(rate * 10)),))
        return line(first, operator("b", 1, 100.0, 0.010, inputs=(("a", 1_000),)))

    assert decisions(Autoscale(), [measured(200.0), measured(600.0)])[-1] == {"b": 2}
    assert decisions(Autoscale(), [measured(600.0), measured(600.0)])[-1] == {}  # ᾱ = 1/6: 6,000


def test_selectivity_is_of_what_a_producer_served() -> None:
    # a gets 200/s and serves 100/s, and b gets as many: ᾱ = 1, not 0.5. With 6,000 waiting a's 18,000 all reach b: 1.5 of b's.
    first = operator("a", 2, 200.0, served=1_000, busy_s=5.0, backlog=6_000, inputs=(("source", 2_000),))
    assert wanted(Autoscale(), first, operator("b", 1, 100.0, inputs=(("a", 1_000),))) == {"b": 2}


def test_a_producer_that_is_unknown_leaves_the_own_forecast() -> None:
    known = operator("a", 9, 200.0, backlog=60_000, inputs=(("source", 2_000),))
    missing = operator("a", 9, None, inputs=(("source", 0),))
    second = operator("b", 2, 100.0, inputs=(("a", 1_000),))
    # without a's rate nothing is known of a, and b's own 6,000 / 12,000 = 0.5 < 0.8 · 2 holds
    assert decisions(Autoscale(), [line(known, second), line(missing, second)])[-1] == {"b": 1}


# Missing measurements


def test_nothing_is_done_on_a_missing_measurement() -> None:
    policy = Autoscale()
    good = snapshot(operator("a", 5, 1_000.0))
    for missing in (
        operator("a", 9, None),
        operator("a", 9, 1_000.0, backlog=None),  # too low an estimate to scale in
        operator("a", 9, 1_000.0, busy_s=None, served=None),
    ):
        assert decisions(policy, [snapshot(missing)])[-1] == {}
    assert wanted(policy, operator("a", 4, 1_000.0, backlog=None)) == {"a": 5}  # and good enough to scale out
    assert decisions(policy, [good, snapshot(operator("a", 5, None, backlog=None))])[-1] == {}


def test_odd_snapshots() -> None:
    for policy in (Autoscale(), AutoscalePlus()):
        for odd in (
            snapshot(),
            snapshot(operator("a", 1, 100.0), interval_s=0.0),
            snapshot(operator("a", 1, 100.0), interval_s=math.nan),
            snapshot(operator("a", 1, 1e300), interval_s=1e300),
            snapshot(operator("a", 1, 1.0, busy_s=1e308, served=1), starting_s=1e300),
            snapshot(operator("a", 1, 1.0, busy_s=5e-324, served=10**18)),
        ):
            state, requests = policy.decide(policy.initial(), odd, RNG)
            json.dumps(state, allow_nan=False)
            assert policy.decide(state, odd, RNG) is not None
            assert all(request.degree >= 1 for request in requests)


def test_the_most_that_an_operator_can_use() -> None:
    assert wanted(Autoscale(), operator("a", 2, 1_000.0, limit=3)) == {"a": 3}
    assert wanted(Autoscale(), operator("a", 2, 1_000.0), slots=4) == {"a": 4}


# Reconfigurations


def test_no_second_action_on_an_operator_within_a_window() -> None:
    # 1 replica, 1,000/s of 5 ms: 5 at once. The load doubles in the next interval, which is not measured; the operator waits
    # for 6 intervals. Then the line through 1,000 and five times 2,000 has the slope 1,000 · 2.5 / 17.5 = 142.9 and the mean
    # 1,833.3; in the middle of the next window it is 1,833.3 + 6 · 142.9 = 2,690.5/s: 13.5, so 14. Six more and it is flat: 10.
    degrees = followed(Autoscale(window=6), [1_000.0] + [2_000.0] * 13, 1)
    assert degrees == [1, 5, 5, 5, 5, 5, 5, 14, 14, 14, 14, 14, 14, 10]


def test_nothing_is_measured_while_a_change_settles() -> None:
    # the interval after the change measures 9,000/s, by the tuples that waited: it is not part of the series
    policy = Autoscale(settling=1)
    state, (request,) = policy.decide(policy.initial(), snapshot(operator("a", 1, 1_000.0)), RNG)
    state, requests = policy.decide(state, snapshot(operator("a", request.degree, 9_000.0)), RNG)
    assert not requests
    assert state["series"]["a"]["window"] == [1_000.0]
    state, _ = policy.decide(state, snapshot(operator("a", 5, 1_100.0)), RNG)
    assert state["series"]["a"]["window"] == [1_000.0, 1_100.0]


def test_a_change_settles_as_long_as_a_replica_takes_to_come() -> None:
    policy = Autoscale(settling=1)
    state = policy.initial()
    for degree in (1, 5, 5, 5, 5):  # 25 s are three intervals of 10 s
        state, _ = policy.decide(state, snapshot(operator("a", degree, 1_000.0), starting_s=25.0), RNG)
    assert len(state["series"]["a"]["window"]) == 2


def test_a_change_of_one_operator_leaves_others_free_to_act() -> None:
    policy = Autoscale()
    state, (request,) = policy.decide(policy.initial(), snapshot(operator("a", 1, 1_000.0), operator("b", 1, 100.0)), RNG)
    assert request.operator == "a"
    state, requests = policy.decide(state, snapshot(operator("a", 5, 1_000.0), operator("b", 1, 900.0)), RNG)
    assert not requests  # it settles, for all
    _, (request,) = policy.decide(state, snapshot(operator("a", 5, 1_000.0), operator("b", 1, 900.0)), RNG)
    assert request.operator == "b"


def test_a_request_that_was_refused_is_no_change() -> None:
    loaded = snapshot(operator("a", 1, 1_000.0))
    assert decisions(Autoscale(), [loaded] * 3) == [{"a": 5}] * 3


# AUTOSCALE+: equations 7 to 9 and 13


def test_sizing_by_what_is_reserved() -> None:
    # 5.5 replicas with a core each (as above); nodes are unknown, so all of a core is usable: 6 are enough, 5 are not.
    # Sized by 1 · (1 − 0.3): 5.5 / 0.7 = 7.86, so 8; by λ = 0.3 as printed: 18.3, so 19; by half a core: 15.7, so 16.
    busy = operator("a", 5, 1_000.0, backlog=6_000)
    assert wanted(AutoscalePlus(), busy) == {"a": 8}
    assert wanted(AutoscalePlus(literal_margin=True), busy) == {"a": 19}
    assert wanted(AutoscalePlus(reserved=0.5), busy) == {"a": 16}
    assert wanted(AutoscalePlus(), operator("a", 6, 1_000.0, backlog=6_000)) == {}


def test_ten_replicas_are_not_eleven() -> None:
    # 100/s · 70 ms / 0.7 = 10, in floats 10.000000000000002
    assert wanted(AutoscalePlus(), operator("a", 2, 100.0, 0.07)) == {"a": 10}


def test_a_scale_in_never_adds_replicas() -> None:
    # 7.5 of 10 replicas: below 0.8 · 10, but 7.5 / 0.7 = 10.7 would be 11
    assert wanted(AutoscalePlus(), operator("a", 10, 1_500.0)) == {}
    assert wanted(AutoscalePlus(), operator("a", 12, 1_500.0)) == {"a": 11}


def on_nodes(degree: int, rate: float, node: str, utilisation: float | None) -> OperatorSnapshot:
    return operator("a", degree, rate, replicas=(ReplicaSnapshot(node, utilisation),) * degree)


def test_usable_cpu() -> None:
    # the example of the docstring: one core, A uses 0.5 and B 0.1, 0.3 are reserved for each
    a = operator("A", 1, 1.0, replicas=(ReplicaSnapshot("n", 0.5),))
    b = operator("B", 1, 1.0, replicas=(ReplicaSnapshot("n", 0.1),))
    found = usable(snapshot(a, b, nodes=(NodeSnapshot("n", 1, 0.6),)), 0.3)
    assert found == {"A": pytest.approx(0.6), "B": pytest.approx(0.5)}
    # 0.2 more used by others: A 0.5 + (1 − 0.8 − 0.2) / 2 = 0.5, B 0.3 + (1 − 0.8) / 2 = 0.4
    found = usable(snapshot(a, b, nodes=(NodeSnapshot("n", 1, 0.8),)), 0.3)
    assert found == {"A": pytest.approx(0.5), "B": pytest.approx(0.4)}


def test_usable_cpu_is_the_least_of_an_operators_replicas() -> None:
    # n: 4 cores, 1 used: a whole core. m: one core, two replicas of a, each 0.5 used, 0.5 reserved: 0.5 + 0 / 2.
    replicas = (ReplicaSnapshot("m", 0.5), ReplicaSnapshot("m", 0.5), ReplicaSnapshot("n", 1.0))
    nodes = (NodeSnapshot("n", 4, 1.0), NodeSnapshot("m", 1, 1.0))
    assert usable(snapshot(operator("a", 3, 1.0, replicas=replicas), nodes=nodes), 0.5) == {"a": pytest.approx(0.5)}


def test_more_reserved_than_there_is() -> None:
    # 2 cores, 3 replicas that reserved 1 and use 2/3: 1 + (2 − 2 − 2 · 1/3) / 3 = 7/9
    assert usable(snapshot(on_nodes(3, 1.0, "n", 2 / 3), nodes=(NodeSnapshot("n", 2, 2.0),)), 1.0) == {
        "a": pytest.approx(7 / 9)
    }
    # strangers use far more than there is: what the replica uses it can use
    crowded = usable(snapshot(on_nodes(1, 1.0, "n", 0.2), nodes=(NodeSnapshot("n", 1, 9.0),)), 1.0)
    assert crowded == {"a": pytest.approx(0.2)}


@pytest.mark.parametrize(
    ("nodes", "utilisation"),
    [
        ((), 0.9),
        ((NodeSnapshot("n", 1, None),), 0.9),
        ((NodeSnapshot("n", 1, 1.0),), None),
        ((NodeSnapshot("m", 1, 1.0),), 0.9),
    ],
)
def test_unknown_nodes_leave_a_whole_core(nodes: tuple[NodeSnapshot, ...], utilisation: float | None) -> None:
    assert usable(snapshot(on_nodes(2, 1.0, "n", utilisation), nodes=nodes), 1.0) == {}


def test_a_node_with_a_replica_of_unknown_use_tells_nothing() -> None:
    replicas = (ReplicaSnapshot("n", 0.5), ReplicaSnapshot("n", None))
    assert usable(snapshot(operator("a", 2, 1.0, replicas=replicas), nodes=(NodeSnapshot("n", 1, 1.0),)), 0.5) == {}


def test_cpu_decides_whether_to_act() -> None:
    # 950/s · 5 ms = 4.75 replicas of a core. Five on 3 cores, which they use up with 0.6 each: 1 + (3 − 3 − 4 · 0.4) / 5 = 0.68
    # is usable, 4.75 / 0.68 = 6.99 > 5: ⌈4.75 / 0.7⌉ = 7. With a node of 8 cores 4.75 < 5 is within [4, 5].
    assert wanted(AutoscalePlus(), on_nodes(5, 950.0, "n", 0.6), nodes=(NodeSnapshot("n", 3, 3.0),)) == {"a": 7}
    assert wanted(AutoscalePlus(), on_nodes(5, 950.0, "n", 0.6), nodes=(NodeSnapshot("n", 8, 3.0),)) == {}
    assert wanted(Autoscale(), on_nodes(5, 950.0, "n", 0.6), nodes=(NodeSnapshot("n", 3, 3.0),)) == {}


def test_a_scale_out_never_takes_replicas_away() -> None:
    # 600/s · 5 ms = 3.0 of a core. On one full core each of 5 uses 0.2: 1 + (1 − 1 − 4 · 0.8) / 5 = 0.36, 3 / 0.36 = 8.3 > 5,
    # but ⌈3 / 0.7⌉ = 5: the node is too small, not the degree.
    full = (NodeSnapshot("n", 1, 1.0),)
    assert wanted(AutoscalePlus(), on_nodes(5, 600.0, "n", 0.2), nodes=full) == {}
    assert wanted(AutoscalePlus(), on_nodes(6, 600.0, "n", 0.15), nodes=full) == {}  # ⌈3 / 0.7⌉ = 5 < 6


def test_the_reason_tells_of_cpu() -> None:
    policy = AutoscalePlus()
    measured = snapshot(on_nodes(5, 950.0, "n", 0.6), nodes=(NodeSnapshot("n", 3, 3.0),))
    _, (request,) = policy.decide(policy.initial(), measured, RNG)
    assert request.reason == (
        "in 60 s 57,000 will come, waiting 0, 12,000 × 0.68 of a core per replica: 6.99, outside 4.00 to 5,"
        " sized by 0.70 of a core"
    )


def test_the_forecast_that_fits_best() -> None:
    # 1, 2, 4, …, 32/s is e^(t·ln 2): 64, then capped at 3 · 32 = 96/s: (64 + 5 · 96) · 10 s = 5,440 records; at 50 ms a replica
    # does 1,200: 4.53 > 1, ⌈4.53 / 0.7⌉ = 7. The line of AUTOSCALE through them (5.8·t − 9.8) sums to 282.6: 2,826, 2.36, so 3.
    rates = [2.0**n for n in range(6)]
    measured = [snapshot(operator("a", 1, rate, 0.05)) for rate in rates]
    assert decisions(AutoscalePlus(), measured)[-1] == {"a": 7}
    assert decisions(Autoscale(), measured)[-1] == {"a": 3}
    assert decisions(AutoscalePlus(linear_log=True, weight=0.0), measured)[-1] == {"a": 3}


# Both


@pytest.mark.parametrize("cls", [Autoscale, AutoscalePlus])
def test_parameters_are_checked(cls: type[Autoscale]) -> None:
    validate(cls())
    with pytest.raises(OptionError, match="combine='mean' is not allowed"):
        cls(combine="mean")
    with pytest.raises(OptionError, match=r"beta=1\.5"):
        cls(beta=1.5)


def test_a_weight_of_nothing_leaves_nothing() -> None:
    with pytest.raises(OptionError, match="give a weight above 0"):
        AutoscalePlus(weight=0.0, literal_margin=True)


def test_they_are_made_from_text() -> None:
    made = create("scale", "springtide.policy.scale.autoscale_plus:AutoscalePlus", {"beta": "0.1", "literal_margin": "yes"})
    assert made == AutoscalePlus(beta=0.1, literal_margin=True)


rates = st.lists(st.one_of(st.none(), st.floats(0, 1e5)), min_size=1, max_size=20)


@settings(max_examples=60)
@given(
    rates=rates, degree=st.integers(1, 40), beta=st.floats(0, 1), plus=st.booleans(), combine=st.sampled_from(["max", "min"]),
    backlog=st.one_of(st.none(), st.integers(0, 10**6)),
)  # fmt: skip
def test_outside_the_working_interval_only_and_in_the_right_direction(
    rates: list[float | None], degree: int, beta: float, plus: bool, combine: str, backlog: int | None
) -> None:
    policy = (AutoscalePlus if plus else Autoscale)(beta=beta, combine=combine)
    state, since = policy.initial(), policy.window
    for rate in rates:
        measured = snapshot(operator("a", degree, rate, backlog=backlog))
        before = json.dumps(state)
        decided = policy.decide(state, measured, RNG)
        assert json.dumps(state) == before
        assert decided == policy.decide(json.loads(before), measured, RNG)
        state, requests = decided
        since += 1
        for request in requests:
            assert rate is not None
            assert request.degree != degree
            assert since >= policy.window, "no second action within a window"
            # what the state foresees, by the numbers of the paper, for one operator without producers
            ahead = [policy._forecaster.ahead(state["series"]["a"], step) or 0.0 for step in range(1, 7)]
            ideal = (sum(ahead) * INTERVAL_S + (backlog or 0)) * 0.005 / 60
            assert ideal > degree or (ideal < beta * degree and backlog is not None)
            assert (request.degree > degree) == (ideal > degree)
            assert request.degree * policy._share_for_sizing >= ideal - 1e-6 or request.degree < degree
            degree, since = request.degree, 0


@settings(max_examples=60)
@given(rate=st.floats(1, 1e5), cost_s=st.floats(1e-4, 0.1), degree=st.integers(1, 100))
def test_a_constant_load_needs_one_change_at_most(rate: float, cost_s: float, degree: int) -> None:
    for policy in (Autoscale(), AutoscalePlus(), AutoscalePlus(beta=0.1)):
        degrees = followed(policy, [rate] * 20, degree, cost_s)
        assert len(set(degrees[1:])) == 1
        assert degrees[-1] >= rate * cost_s - 1e-6
