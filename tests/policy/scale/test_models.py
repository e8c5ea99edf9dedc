"""PSPS and Elasticutor's queueing model, on worked examples."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.model.plan import Plan, Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.scale.ds2 import Ds2
from springtide.policy.scale.erlang import erlang_b, least_stable, queue_length
from springtide.policy.scale.flink import Flink
from springtide.policy.scale.measured import arrival_rates, carried, shares
from springtide.policy.scale.psps import Psps
from springtide.policy.scale.queueing import Queueing, allocate, shared_out
from springtide.policy.scale.spark_ratio import SparkRatio
from springtide.policy.scale.tide import Tide
from springtide.policy.trial import fault_of

RNG = np.random.default_rng(0)
POLICIES: Sequence[ScalePolicy] = (
    Psps(), Psps(forecast=True, upstream_queues=True), Queueing(), Queueing(target=0.05), Ds2(warm_up=0), Ds2(),
    Flink(), Flink(metrics_window=1, stabilization_interval=0, scale_down_interval=0), SparkRatio(), SparkRatio(0.0),
)  # fmt: skip


def station(
    name: str, inputs: Mapping[str, int], cost_s: float | None = 0.010, degree: int = 1, served: int | None = -1, **more: Any
) -> OperatorSnapshot:
    """An operator over one second; it served what came, if nothing else is said, and nothing waits."""
    came = sum(inputs.values())
    done = came if served == -1 else served
    busy = None if cost_s is None or done is None else done * cost_s
    measured: dict[str, Any] = {
        "name": name, "degree": degree, "width": degree, "rows_in": came, "rows_out": done, "failures": 0, "busy_s": busy,
        "rate": float(came), "utilisation": None if busy is None else busy / degree, "backlog": 0, "latency_ms": None,
        "served": done, "inputs": tuple(inputs.items()),
    }  # fmt: skip
    return OperatorSnapshot(**{**measured, **more})


def seen(*operators: OperatorSnapshot, rows: Mapping[str, int | None] | None = None, **more: Any) -> Snapshot:
    """One second; the source ``in`` sent what came from it, and all that waits is at the operators, if nothing else is said."""
    degrees = {operator.name: operator.degree for operator in operators}
    sent = {"in": sum(came for o in operators for producer, came in o.inputs if producer == "in")} if rows is None else rows
    measured: dict[str, Any] = {
        "at": 60.0, "interval_s": 1.0, "batches": (), "rate": None, "backlog": sum(o.backlog or 0 for o in operators),
        "latency": None,
        "sources": tuple(SourceSnapshot(name, count, backlog=None if count is None else 0) for name, count in sent.items()),
    }  # fmt: skip
    return Snapshot(plan=Plan(degrees, sum(degrees.values()), degrees), operators=operators, **{**measured, **more})


def run(policy: ScalePolicy, *snapshots: Snapshot) -> list[dict[str, int]]:
    """What is asked for after each snapshot; the state goes through JSON as in a restart."""
    state, asked = policy.initial(), []
    for snapshot in snapshots:
        after, requests = policy.decide(json.loads(json.dumps(state, allow_nan=False)), snapshot, RNG)
        state = after
        asked.append({request.operator: request.degree for request in requests})
    return asked


def reason(policy: ScalePolicy, *snapshots: Snapshot) -> str:
    """Of the first request after the last snapshot."""
    state = policy.initial()
    requests: tuple[Request, ...] = ()
    for snapshot in snapshots:
        state, requests = policy.decide(state, snapshot, RNG)
    return requests[0].reason


# PSPS


TABLE_II = seen(
    station("O1", {"in": 100}, 0.0166, served=140),
    station("O2", {"O1": 117}, 0.025, served=120, backlog=7),
    station("O3", {"O2": 90}, 0.100, served=90, backlog=20),
)


def test_psps_table_ii() -> None:
    # O1: 100·1 + 0 = 100 records of 16.6 ms in 1 s: 1.66 → 2
    # O2: θ = 117/140 = 0.836 (printed 0.833), 83.6 + 7 = 90.6 of 25 ms: 2.26 → 3
    # O3: θ = 90/120·0.836 = 0.627 (printed 0.625), 62.7 + 20 = 82.7 of 100 ms: 8.27 → 9
    assert run(Psps(), TABLE_II) == [{"O1": 2, "O2": 3, "O3": 9}]
    assert reason(Psps(), TABLE_II) == "100 to come and 0 waiting, 16.6 ms each in 1 s: 1.66"


def test_psps_figure_5() -> None:
    # O1 splits 70/30; O2 sends 40 % to O4, O3 all: θ_4 = 0.4·0.7 + 1·0.3 = 0.58
    graph = seen(
        station("O1", {"in": 1_000}), station("O2", {"O1": 700}), station("O3", {"O1": 300}),
        station("O4", {"O2": 280, "O3": 300}),
    )  # fmt: skip
    found = carried(graph, shares({}, graph), {"in": 1.0})
    assert found == pytest.approx({"O1": 1.0, "O2": 0.7, "O3": 0.3, "O4": 0.58})


def test_psps_widens_a_whole_line_at_once() -> None:
    # 400/s of 10 ms, one replica each: the first serves 100, so the others see 100 and fewer. All need 4 for what comes;
    # the first also for the 300 that wait: 700·0.01 = 7.
    line = seen(
        station("a", {"in": 400}, served=100, backlog=300), station("b", {"a": 100}), station("c", {"b": 100}),
    )  # fmt: skip
    assert run(Psps(), line) == [{"a": 7, "b": 4, "c": 4}]


def test_psps_keeps_within_the_pool_and_at_least_one() -> None:
    quiet = seen(station("a", {"in": 10}, degree=3))
    assert run(Psps(), quiet) == [{"a": 1}]
    assert run(Psps(pool=2), seen(station("a", {"in": 900}))) == [{"a": 2}]
    assert run(Psps(), seen(station("a", {"in": 900}, limit=5))) == [{"a": 5}]
    assert run(Psps(), seen(station("a", {"in": 300}))) == [{"a": 3}]  # 300·0.01 is 3, not 3.0000000000000004 → 4


def test_psps_takes_the_larger_of_benchmark_and_measurement() -> None:
    first, faster = seen(station("a", {"in": 300}, 0.010)), seen(station("a", {"in": 300}, 0.002))
    slower = seen(station("a", {"in": 300}, 0.020))
    assert run(Psps(), first, faster, slower) == [{"a": 3}, {"a": 3}, {"a": 6}]


def test_psps_keeps_the_last_share_and_cost_when_nothing_was_processed() -> None:
    busy = seen(station("a", {"in": 100}), station("b", {"a": 200}))
    idle = seen(station("a", {"in": 300}, served=0, busy_s=0.0, backlog=100), station("b", {"a": 0}))
    # a: (300 + 100)·0.01 = 4; b: θ stays 2, 300·2·0.01 = 6
    assert run(Psps(), busy, idle)[1] == {"a": 4, "b": 6}


def test_psps_forecast_goes_on_along_a_line() -> None:
    at = [seen(station("a", {"in": rows})) for rows in (300, 450, 200, 0)]
    # 300; 450 + 150 = 600; 200 - 250 < 0; 0
    assert run(Psps(forecast=True), *at) == [{"a": 3}, {"a": 6}, {}, {}]
    assert run(Psps(), *at) == [{"a": 3}, {"a": 5}, {"a": 2}, {}]


def test_psps_forecasts_rates_where_intervals_differ() -> None:
    one, two = seen(station("a", {"in": 300})), seen(station("a", {"in": 800}), interval_s=2.0)
    # 300/s, 400/s: then 500/s, which is 1,000 in 2 s, 10 s of work in 2 s
    assert run(Psps(forecast=True), one, two)[1] == {"a": 5}


def test_psps_upstream_queues_count_times_their_share() -> None:
    # b gets 2 for each that a serves: 200 to come; a's queue of 150 brings 300 more: 2 → 5
    graph = seen(station("a", {"in": 100}, backlog=150), station("b", {"a": 200}))
    assert run(Psps(), graph) == [{"a": 3, "b": 2}]
    assert run(Psps(upstream_queues=True), graph) == [{"a": 3, "b": 5}]


def test_psps_in_batches_every_backlog_is_a_share_of_the_sources() -> None:
    graph = seen(
        station("a", {"in": 100}, backlog=150), station("b", {"a": 200}, backlog=300), batches=((100, 0.5),), backlog=150
    )  # fmt: skip
    assert run(Psps(), graph) == [{"a": 3, "b": 5}]
    assert run(Psps(upstream_queues=True), graph) == [{"a": 3, "b": 5}]


def test_psps_counts_what_a_source_holds_back() -> None:
    # 250 wait in all, 50 of them at a: the source holds 200. It sent 100 of the 300 that it got; a's share of it is still 1.
    source = SourceSnapshot("in", 100, arrival_rate=300.0, backlog=200)
    graph = seen(station("a", {"in": 100}, backlog=50), sources=(source,), backlog=250)
    assert run(Psps(), graph) == [{"a": 6}]  # 300 + 50 + 200 = 550 of 10 ms


def test_psps_leaves_alone_what_it_does_not_know() -> None:
    assert run(Psps(), seen(station("a", {"in": 900}, backlog=None))) == [{}]
    assert run(Psps(), seen(station("a", {"in": 900}, cost_s=None))) == [{}]
    assert run(Psps(), seen(station("a", {"in": 900}), rows={"in": None})) == [{}]
    assert run(Psps(), seen(station("a", {"in": 900}, served=None), station("b", {"a": 900}))) == [{}]
    assert run(Psps(), seen(station("a", {}, degree=3))) == [{}]
    assert run(Psps(), seen(station("a", {"in": 900}), sources=(SourceSnapshot("in", 900, arrival_rate=900.0),))) == [{}]
    # b's producer is not known, a's is
    assert run(Psps(), seen(station("a", {"in": 900}), station("b", {"a": 900, "x": 5}, degree=9))) == [{"a": 9}]


def test_arrivals_are_those_of_the_snapshot_and_where_unknown_what_was_read() -> None:
    sources = SourceSnapshot("in", 75, arrival_rate=150.0), SourceSnapshot("none", 25, arrival_rate=0.0)
    unknown = SourceSnapshot("other", 25), SourceSnapshot("silent", None)
    graph = seen(station("a", {"in": 75}), sources=(*sources, *unknown), interval_s=0.5)
    assert arrival_rates(graph) == {"in": 150.0, "none": 0.0, "other": 50.0}


@pytest.mark.parametrize("policy", [Psps(), Queueing(), Ds2(warm_up=0), Tide()], ids=repr)
def test_what_earlier_versions_learned_is_taken_up_and_their_backlog_ignored(policy: ScalePolicy) -> None:
    """Their states had the backlog of the interval before, from which they worked out what arrived."""
    busy = seen(station("a", {"in": 300}), batches=((300, 1.0),), backlog=100)
    state, _ = policy.decide(policy.initial(), busy, RNG)
    idle = seen(station("a", {"in": 600}, served=0), batches=((600, 1.0),), backlog=900)
    old = {**state, "backlog": 100}
    assert fault_of(policy, old, ["a"]) is None
    assert policy.decide(old, idle, RNG)[1] == policy.decide(state, idle, RNG)[1] != ()


# Elasticutor's queueing model


def inside(loads: Sequence[float], degrees: Sequence[int]) -> float:
    return sum(a + queue_length(a, k, erlang_b(a, k)) for a, k in zip(loads, degrees, strict=True))


def test_queueing_by_hand() -> None:
    # 150/s and 50/s of 10 ms are loads of 1.5 and 0.5. λ₀ = 150, T_max = 16.7 ms: λ₀·T_max = 2.5 records may be inside.
    # (2, 1): M/M/2 holds 1.5/(1 - 0.75²) = 3.43, M/M/1 holds 1: 4.43. (3, 1): 1.74 + 1. (3, 2): 1.74 + 0.53 = 2.27, enough.
    graph = seen(station("a", {"in": 150}), station("b", {"a": 50}), target_s=1 / 60)
    assert run(Queueing(), graph) == [{"a": 3, "b": 2}]
    assert reason(Queueing(), graph) == "150/s of 10 ms are a load of 1.5, E[T] 15.13 ms of 16.67: 3"


def test_queueing_begins_with_what_keeps_up() -> None:
    graph = seen(station("a", {"in": 200}, degree=9), station("b", {"a": 199}, degree=9))
    assert run(Queueing(), graph) == [{"a": 3, "b": 2}]  # ⌊2⌋ + 1, ⌊1.99⌋ + 1; without a target that is enough
    assert run(Queueing(target=10.0), graph) == [{"a": 3, "b": 2}]
    assert run(Queueing(target=0.025), graph)[0]["a"] > 3


def test_queueing_own_target_before_the_runs() -> None:
    graph = seen(station("a", {"in": 150}), target_s=9.0)
    assert run(Queueing(), graph) == [{"a": 2}]
    assert run(Queueing(target=0.0102), graph)[0]["a"] > 3


def test_queueing_uses_up_the_slots_and_no_more() -> None:
    graph = seen(station("a", {"in": 150}), station("b", {"a": 150}), slots=9, target_s=0.001)  # the work alone takes 20 ms
    assert sum(run(Queueing(), graph)[0].values()) == 9
    unbounded = seen(station("a", {"in": 150}), station("b", {"a": 150}), target_s=0.001)
    # Out of reach, so within 1 % of the work: a load of 1.5 has 0.237, 0.045, 0.009 waiting with 3, 4, 5 replicas, and
    # 3.00 + 2·0.009 is the first below 3.03.
    assert run(Queueing(), unbounded) == [{"a": 5, "b": 5}]


def test_queueing_shares_too_few_slots_by_load() -> None:
    # loads 6, 3, 0.5 want 7 + 4 + 1 = 12. One each; then by load per replica: 6, 3, 3 | 2, 1.5, 1.5: 5, 3, 1.
    graph = seen(station("a", {"in": 600}), station("b", {"a": 300}), station("c", {"b": 50}), slots=9)
    assert run(Queueing(), graph) == [{"a": 5, "b": 3}]
    assert run(Queueing(), seen(*graph.operators, slots=2)) == [{}]  # fewer slots than operators: one each


def test_queueing_is_not_misled_by_a_bottleneck() -> None:
    # a serves 100 of 400, so b sees 100; but its share is 1, so it is sized for 400 as well.
    graph = seen(station("a", {"in": 400}, served=100, backlog=300), station("b", {"a": 100}))
    assert run(Queueing(), graph) == [{"a": 5, "b": 5}]


def test_queueing_leaves_out_what_a_limit_keeps_from_keeping_up() -> None:
    graph = seen(station("a", {"in": 400}, limit=2), station("b", {"a": 150}), target_s=0.05, slots=100)
    # b alone: 1.5 + 1.93 records of λ₀·T_max = 20
    assert run(Queueing(), graph) == [{"a": 2, "b": 2}]


def test_queueing_counts_the_slots_of_those_it_does_not_know() -> None:
    graph = seen(station("a", {"in": 600}), station("x", {"in": 5}, cost_s=None, degree=3), slots=8, rows={"in": 600})
    assert run(Queueing(), graph) == [{"a": 5}]


def test_queueing_without_input() -> None:
    busy, idle = seen(station("a", {"in": 500})), seen(station("a", {"in": 0}, degree=6), target_s=0.01, slots=10)
    assert run(Queueing(), busy, idle) == [{"a": 6}, {"a": 1}]


@settings(max_examples=60)
@given(
    loads=st.lists(st.floats(0.05, 3.2), min_size=1, max_size=3),
    slots=st.integers(3, 13),
    room=st.floats(1.01, 4),
)
def test_no_smaller_allocation_keeps_the_target(loads: list[float], slots: int, room: float) -> None:
    allowed = room * sum(loads)
    degrees, records_inside = allocate(loads, [99] * len(loads), slots, allowed)
    assert sum(degrees) <= max(slots, len(loads))
    if math.isinf(records_inside):
        assert sum(map(least_stable, loads)) > slots
        return
    assert records_inside == pytest.approx(inside(loads, degrees), rel=1e-6)
    assert records_inside <= allowed or sum(degrees) == slots
    for other in itertools.product(range(1, slots + 1), repeat=len(loads)):
        if sum(other) < sum(degrees):
            assert inside(loads, other) > allowed * (1 - 1e-9)
        elif sum(other) == sum(degrees):
            assert inside(loads, other) >= records_inside * (1 - 1e-9)


@given(loads=st.lists(st.floats(0.1, 50), min_size=1, max_size=4), more=st.integers(0, 6))
def test_slots_are_shared_so_that_the_busiest_replica_has_the_least(loads: list[float], more: int) -> None:
    found = shared_out(loads, [1] * len(loads), [99] * len(loads), more)
    assert sum(found) == len(loads) + more
    highest = max(a / k for a, k in zip(loads, found, strict=True))
    for other in itertools.product(range(1, more + 2), repeat=len(loads)):
        if sum(other) == sum(found):
            assert highest <= max(a / k for a, k in zip(loads, other, strict=True)) * (1 + 1e-12)


def test_slots_are_not_shared_beyond_the_limits() -> None:
    assert shared_out([9.0, 1.0], [1, 1], [3, 2], 10) == [3, 2]
    assert shared_out([], [], [], 5) == []


# What holds for all of them, those of the peers included.


NOTHING: dict[str, Any] = dict.fromkeys(
    ("rows_in", "rows_out", "failures", "busy_s", "rate", "utilisation", "backlog", "served")
)
HUGE: dict[str, Any] = {"rows_in": 10**18, "served": 10**18, "busy_s": 1e300, "degree": 10**6, "backlog": 10**18, "width": 0}
ODD = {
    "empty": seen(),
    "no interval": seen(station("a", {"in": 900}), interval_s=0.0),
    "backwards": seen(station("a", {"in": 900}), interval_s=-1.0, at=math.nan),
    "no time": seen(station("a", {"in": 900}), interval_s=math.nan),
    "nothing known": seen(station("a", {"in": 0}, degree=5, **NOTHING), rows={"in": None}, backlog=None),
    "no sources": seen(station("a", {"in": 900}), rows={}),
    "huge": seen(
        station("a", {"in": 10**18}, **HUGE), slots=4, target_s=1e-9, batches=((-1, math.nan), (5, 1e300)), trigger_s=1e-9
    ),
    "no slots": seen(station("a", {"in": 900}), station("b", {"a": 900}), slots=1, target_s=0.0),
}


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("name", ODD)
def test_no_policy_fails_on_odd_snapshots(policy: ScalePolicy, name: str) -> None:
    run(policy, ODD[name], ODD[name], TABLE_II, ODD[name], TABLE_II)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_no_policy_acts_on_what_is_missing(policy: ScalePolicy) -> None:
    assert not any(run(policy, *[ODD["nothing known"]] * 200))


MEASURED = st.builds(
    lambda came, served, cost, degree, backlog: station(
        "a", {"in": came}, cost, degree=degree, served=min(came, served), backlog=backlog
    ),
    st.integers(0, 10**5), st.integers(0, 10**5), st.floats(1e-5, 0.1), st.integers(1, 64), st.integers(0, 10**5),
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=25)
@given(first=MEASURED, second=MEASURED, slots=st.integers(1, 100) | st.none(), batched=st.booleans())
def test_every_policy_is_pure_and_asks_for_what_may_be(
    policy: ScalePolicy, first: OperatorSnapshot, second: OperatorSnapshot, slots: int | None, batched: bool
) -> None:
    batches = ((10, 0.5),) if batched else ()
    state: State = policy.initial()
    for operator in (first, first, second):
        snapshot = seen(operator, slots=slots, target_s=0.5, batches=batches, trigger_s=0.4)
        frozen = json.dumps(state, allow_nan=False)
        after, requests = policy.decide(state, snapshot, np.random.default_rng(1))
        assert json.dumps(state) == frozen
        assert (after, requests) == policy.decide(json.loads(frozen), snapshot, np.random.default_rng(2))
        assert json.loads(json.dumps(after, allow_nan=False)) == after
        for request in requests:
            assert isinstance(request, Request)
            assert 1 <= request.degree <= (slots or 10**9)
            assert request.degree != operator.degree
            assert any(letter.isdigit() for letter in request.reason)
        state = after
