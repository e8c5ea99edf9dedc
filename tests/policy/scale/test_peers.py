"""The rules of the peers, DS2, Flink's autoscaler and Spark Streaming, on worked examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.scale.test_models import RNG, reason, run, seen, station
from springtide.errors import OptionError
from springtide.model.snapshot import OperatorSnapshot, ReplicaSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale.ds2 import Ds2
from springtide.policy.scale.flink import Flink, aligned, busy_of
from springtide.policy.scale.spark_ratio import SparkRatio

# DS2


def test_ds2_sizes_a_whole_graph_in_one_decision() -> None:
    # a: 1,000/s, true rate 400/s (2.5 ms): 2.5 → 3. It serves 400 and sends 800 on, so b gets 2,000/s at 1,000/s: 2.
    # b serves 500 of the 800 and sends 50 on, one in ten: c gets 200/s at 100/s: 2.
    graph = seen(
        station("a", {"in": 1_000}, 0.0025, served=400, backlog=600),
        station("b", {"a": 800}, 0.001, served=500, backlog=300),
        station("c", {"b": 50}, 0.010),
    )
    assert run(Ds2(warm_up=0), graph) == [{"a": 3, "b": 2, "c": 2}]
    assert reason(Ds2(warm_up=0), graph) == "input 1,000/s, 400/s per replica: 3"


def test_ds2_margin() -> None:
    graph = seen(station("a", {"in": 1_000}, 0.002))
    assert run(Ds2(warm_up=0), graph) == [{"a": 2}]
    assert run(Ds2(warm_up=0, margin=0.2), graph) == [{"a": 3}]  # 2·1.2 = 2.4
    assert reason(Ds2(warm_up=0, margin=0.2), graph) == "input 1,000/s and 20% more, 500/s per replica: 3"


def test_ds2_waits_for_equal_decisions() -> None:
    three, four = seen(station("a", {"in": 300})), seen(station("a", {"in": 400}))
    assert run(Ds2(warm_up=0, activation=3), three, three, four, four, three, three, three) == [*[{}] * 6, {"a": 3}]


def test_ds2_ignores_the_first_intervals_after_every_change() -> None:
    cold, warm = seen(station("a", {"in": 300}, 0.050)), seen(station("a", {"in": 300}))
    grown = seen(station("a", {"in": 300}, 0.050, degree=3))
    assert run(Ds2(warm_up=2), cold, cold, warm, grown, grown, grown) == [{}, {}, {"a": 3}, {}, {}, {"a": 15}]


def test_ds2_decisions_before_a_change_do_not_count_after_it() -> None:
    one, two = seen(station("a", {"in": 300})), seen(station("a", {"in": 300}, degree=2))
    assert run(Ds2(warm_up=1, activation=2), one, one, two, two, two) == [{}, {}, {}, {}, {"a": 3}]


def test_ds2_in_batches_takes_what_was_created() -> None:
    before = seen(station("a", {"in": 200}), batches=((200, 1.0),), backlog=100)
    after = seen(station("a", {"in": 200}), batches=((200, 1.0),), sources=(SourceSnapshot("in", 200, (), 450.0, 350),))
    assert run(Ds2(warm_up=0), before, after) == [{"a": 2}, {"a": 5}]  # 200 read and 250 more waiting: 450 of 10 ms


def test_ds2_uses_what_it_knew_of_an_idle_operator() -> None:
    busy, idle = seen(station("a", {"in": 300})), seen(station("a", {"in": 600}, served=0))
    assert run(Ds2(warm_up=0), busy, idle) == [{"a": 3}, {"a": 6}]


@given(st.integers(1, 10**5), st.floats(1e-4, 0.1), st.floats(0, 2))
def test_ds2_is_enough_and_one_less_is_not(rows: int, cost_s: float, margin: float) -> None:
    asked = run(Ds2(warm_up=0, margin=margin), seen(station("a", {"in": rows}, cost_s)))[0].get("a", 1)
    need = rows * cost_s * (1 + margin)
    assert asked >= need * (1 - 1e-6) - 1e-6
    assert asked == 1 or asked - 1 < need * (1 + 1e-6)


# Flink


def quick(**more: Any) -> Flink:
    """Decides at every interval but the first; lag and restart do not count, if nothing else is said."""
    usual: dict[str, Any] = {
        "metrics_window": 1, "stabilization_interval": 0, "scale_down_interval": 0, "catch_up_duration": 0, "restart_time": 0,
        "observed_true_processing_rate_min_observations": 99,
    }  # fmt: skip
    return Flink(**{**usual, **more})


def at(rate: int, busy: float, lag: int = 0, degree: int = 1, name: str = "a", **more: Any) -> OperatorSnapshot:
    """An operator that reads the source."""
    return station(name, {"in": rate}, degree=degree, backlog=lag, utilisation=busy, **more)


def test_flink_oracle() -> None:
    # 500/s, busy 0.85, lag 2,000, catch-up 2 s, restart 1 s, target 0.8:
    # CAP = 2000/2 + 500·1/2 + 500/0.8 = 1000 + 250 + 625 = 1875; TPR = 500/0.85 = 588; 1875/588 = 3.19 → 4
    policy = quick(utilization_target=0.8, target_utilization_boundary=0.2, catch_up_duration=2, restart_time=1)
    oracle = seen(at(500, 0.85, 2_000))
    assert run(policy, oracle, oracle) == [{}, {"a": 4}]
    said = "capacity 1,875/s for an input of 500/s and a lag of 2,000, 1 can do 588.2/s: 4"
    assert reason(policy, oracle, oracle) == said


def test_flink_times_are_counted_in_intervals() -> None:
    policy = quick(utilization_target=0.8, catch_up_duration=2, restart_time=1)
    slow = seen(at(5_000, 0.85, 20_000), interval_s=10.0)  # the oracle, ten times slower
    assert run(policy, slow, slow) == [{}, {"a": 4}]


def test_flink_lag_that_grows_is_input() -> None:
    # 500 served, 300 more waiting: input 800/s; 800/0.7 = 1143 of TPR 500: 2.29 → 3
    assert run(quick(), seen(at(500, 1.0, 100)), seen(at(500, 1.0, 400))) == [{}, {"a": 3}]
    # lag that shrinks: 500 served, 400 of them older: input 100/s; 143/500 = 0.286, capped at 1 - 0.6: 0.4·5 = 2
    assert run(quick(), seen(at(500, 1.0, 600, degree=5)), seen(at(500, 1.0, 200, degree=5))) == [{}, {"a": 2}]


def test_flink_leaves_alone_what_is_within_the_bounds() -> None:
    # 2 replicas, busy 0.9: TPR 1111 ≥ CAP(1.0) = 1000 and ≤ CAP(0.4) = 2500. It would want ⌈1429/1111·2⌉ = 3.
    within = seen(at(1_000, 0.9, degree=2))
    assert run(quick(), within, within) == [{}, {}]
    # busy 0.39: TPR 2564 > 2500: 1429/2564·2 = 1.1 → 2, which it has; with 4 it wants ⌈2.23⌉ = 3
    low = seen(at(1_000, 0.39, degree=4))
    assert run(quick(), low, low) == [{}, {"a": 3}]
    low = seen(at(1_000, 0.41, degree=4))
    assert run(quick(), low, low) == [{}, {}]


def test_flink_makes_all_changes_when_one_is_due() -> None:
    # a: busy 1.02 is out of bounds; b alone, with 0.9, is not, but goes along: 1429/1111·1 → 2
    graph = seen(at(1_000, 1.02), station("b", {"a": 1_000}, utilisation=0.9))
    assert run(quick(), graph, graph) == [{}, {"a": 2, "b": 2}]


def test_flink_carries_input_and_lag_through_the_graph() -> None:
    # a serves 500 of 800 and sends two for each: b gets 1,600/s, and of a's lag of 3,000 twice as much.
    # b: (6000)/30 + 1600/0.7 = 200 + 2286 = 2486 of TPR 1000/0.5 = 2000: 1.24 → 2; a: 100 + 1143 of 500: 2.49 → 3
    first = seen(at(800, 1.0, 2_700, served=500), station("b", {"a": 1_000}, utilisation=0.5))
    second = seen(at(800, 1.0, 3_000, served=500), station("b", {"a": 1_000}, utilisation=0.5))
    assert run(quick(catch_up_duration=30), first, second) == [{}, {"a": 3, "b": 2}]


def test_flink_counts_what_waits_anywhere_but_once() -> None:
    policy = quick(catch_up_duration=10, backlog_processing_lag_threshold=99)
    # continuous: 6,000 wait at b itself: 600 + 1000/0.7 = 2029 of TPR 1250: 1.6 → 2; a has none: 1429 of 2500: 1
    inner = seen(at(1_000, 0.4), station("b", {"a": 1_000}, utilisation=0.8, backlog=6_000))
    assert run(policy, inner, inner) == [{}, {"b": 2}]
    # batches: the 6,000 of b are the source's 6,000, which a has too: 2029 of 1250 again, not 600 more
    batched = seen(
        at(1_000, 0.4, 6_000),
        station("b", {"a": 1_000}, utilisation=0.8, backlog=6_000),
        batches=((1_000, 0.9),),
        backlog=6_000,
    )
    assert "lag of 6,000, 1 can do 1,250" in reason(policy, batched, batched)


def test_flink_in_a_backlog_only_what_is_too_small_grows() -> None:
    # lag 6 intervals of input. Busy 0.3 is below 0.4, but the lower bound is 0 now: it stays.
    idle = seen(at(1_000, 0.3, 6_000, degree=3))
    assert run(quick(), idle, idle) == [{}, {}]
    assert run(quick(backlog_processing_lag_threshold=7), idle, idle) == [{}, {"a": 2}]
    # busy 1.1, bound 1: CAP(1) = 1000 > TPR 909
    full = seen(at(1_000, 1.1, 6_000, degree=3))
    assert run(quick(), full, full) == [{}, {"a": 5}]  # 1429/909·3 = 4.7


def test_flink_with_much_lag_the_rate_is_the_true_rate() -> None:
    # busy 0.5, yet 5,000 wait and 100 more each second: it cannot do more than the 1,000 it does. The input is 1,100:
    # 1571/1000·2 = 3.1 → 4. By busy time it could do 2,000, and 2 would be enough.
    def lags(*waiting: int) -> list[Snapshot]:
        return [seen(at(1_000, 0.5, lag, degree=2)) for lag in waiting]

    policy = quick(observed_true_processing_rate_min_observations=2, metrics_window=2, backlog_processing_lag_threshold=99)
    assert run(policy, *lags(5_000, 5_100, 5_200)) == [{}, {}, {"a": 4}]
    assert run(quick(metrics_window=2, backlog_processing_lag_threshold=99), *lags(5_000, 5_100, 5_200)) == [{}, {}, {}]
    assert run(policy, *lags(299, 399, 499)) == [{}, {}, {}]  # less than half an interval of input


def test_flink_a_batch_that_waits_for_its_turn_is_no_lag() -> None:
    def lags(*waiting: int) -> list[Snapshot]:
        return [seen(at(1_000, 0.5, lag, degree=2), batches=((1_000, 0.5),)) for lag in waiting]

    policy = quick(observed_true_processing_rate_min_observations=1)
    assert run(policy, *lags(1_000, 1_100)) == [{}, {}]
    assert run(policy, *lags(1_400, 1_500)) == [{}, {"a": 4}]


def test_flink_lag_counts_for_the_true_rate_only_where_it_differs() -> None:
    policy = quick(observed_true_processing_rate_min_observations=1, backlog_processing_lag_threshold=99)
    near = seen(at(1_000, 0.9, 5_000, degree=2))  # 1,111 is within 15 % of 1,000, and within the bounds
    assert run(policy, near, near) == [{}, {}]


def test_flink_waits_for_stability_and_for_a_full_window() -> None:
    policy = quick(stabilization_interval=2, metrics_window=3)
    hot = seen(at(1_000, 1.1))
    grown = seen(at(1_000, 2.0, degree=2))
    assert run(policy, *[hot] * 5) == [{}, {}, {}, {}, {"a": 2}]
    assert run(policy, *[hot] * 4, *[grown] * 5) == [*[{}] * 8, {"a": 6}]


def test_flink_takes_means_over_the_window() -> None:
    # rates 500 and 1500, busy 0.5 and 1.5: TPR 1000/1.0; input 1,000: 1.43 → 2, at the bound of 1.0, so not due
    policy = quick(metrics_window=2)
    calm, rush = seen(at(500, 0.5)), seen(at(1_500, 1.5))
    assert run(policy, calm, calm, rush) == [{}, {}, {}]
    assert run(policy, calm, calm, rush, rush) == [{}, {}, {}, {"a": 3}]  # 1500/1.5 = 1000, 2143 of it


def test_flink_a_scale_down_waits_and_takes_the_largest_wish() -> None:
    def loads(*busy: float) -> list[Snapshot]:
        return [seen(at(1_000, share, degree=10)) for share in busy]

    # wishes ⌈busy/0.7·10⌉: 0.2 → 4 by the largest step, 0.3 → 5, 0.25 → 4
    policy = quick(scale_down_interval=3)
    assert run(policy, *loads(0.2, 0.2, 0.3, 0.2, 0.2)) == [{}, {}, {}, {}, {"a": 5}]
    # 0.75 wants more, which clears it
    assert run(policy, *loads(0.2, 0.2, 0.3, 0.75, 0.2, 0.2, 0.2, 0.2)) == [*[{}] * 7, {"a": 4}]


def test_flink_a_wish_that_is_too_old_does_not_count() -> None:
    # 0.45 wants 7 but is within the bounds: the largest wish of the last 2 intervals, so nothing is done while it counts.
    policy = quick(scale_down_interval=2)
    loads = [seen(at(1_000, busy, degree=10)) for busy in (0.2, 0.45, 0.2, 0.2, 0.2)]
    assert run(policy, *loads) == [{}, {}, {}, {}, {"a": 4}]


def test_flink_limits_of_a_step_and_of_an_operator() -> None:
    idle, hot = seen(at(1_000, 0.01, degree=10)), seen(at(1_000, 4.0, degree=10))
    assert run(quick(), idle, idle)[1] == {"a": 4}
    assert run(quick(scale_down_max_factor=0.2), idle, idle)[1] == {"a": 8}
    assert run(quick(), hot, hot)[1] == {"a": 58}  # 4/0.7·10 = 57.1
    assert run(quick(scale_up_max_factor=1.0), hot, hot)[1] == {"a": 20}
    assert run(quick(vertex_max_parallelism=33), hot, hot)[1] == {"a": 33}
    assert run(quick(vertex_max_parallelism=7), hot, hot)[1] == {}  # a limit by itself forces no change
    assert run(quick(vertex_min_parallelism=6), idle, idle)[1] == {"a": 6}
    assert run(quick(), seen(*hot.operators, slots=40), seen(*hot.operators, slots=40))[1] == {"a": 40}


def test_flink_aligns_to_shards_and_to_nothing_else() -> None:
    hot = seen(at(1_000, 1.9, degree=2, shards=24))  # 1.9/0.7·2 = 5.4 → 6, which divides 24
    assert run(quick(), hot, hot)[1] == {"a": 6}
    hot = seen(at(1_000, 2.3, degree=2, shards=24))  # 6.6 → 7: 24/7 = 3 each; 8 divides
    assert run(quick(), hot, hot)[1] == {"a": 8}
    hot = seen(at(1_000, 2.3, degree=2, limit=24))  # a limit is no number of parts
    assert run(quick(), hot, hot)[1] == {"a": 7}
    hot = seen(at(1_000, 2.3, degree=2, limit=10, shards=24))  # of a limit of 10, 10 would be the first better
    assert run(quick(), hot, hot)[1] == {"a": 8}
    hot = seen(at(1_000, 2.3, degree=2, limit=5))
    assert run(quick(), hot, hot)[1] == {"a": 5}
    # from 11 of 12 down to 7: the first that is better is 12, but down is not up: 7
    idle = seen(at(1_000, 0.4, degree=11, shards=12))
    assert run(quick(target_utilization_boundary=0.2), idle, idle)[1] == {"a": 7}


def test_flink_aligned_goes_to_the_first_better() -> None:
    assert [aligned(degree, 24, 24) for degree in (1, 5, 6, 7, 9, 12, 13, 24)] == [1, 6, 6, 8, 12, 12, 24, 24]
    assert aligned(5, 128, 128) == 6  # 128/5 = 25 each, 128/6 = 21
    assert aligned(13, 24, 20) == 13
    assert aligned(30, 24, 40) == 30


@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 300))
def test_flink_aligned_never_goes_down_or_beyond(degree: int, parts: int, most: int) -> None:
    found = aligned(degree, parts, most)
    assert degree <= found <= max(degree, min(parts, most))
    assert found == degree or parts % found == 0 or parts // found < parts // degree


def test_flink_reports_a_scale_up_that_gained_nothing() -> None:
    # From 1 to 3 on a promise of 1000 → 2143; then 3 do 1,050 = 4 % of the aim.
    hot, still = seen(at(1_500, 1.5)), seen(at(1_575, 1.5, degree=3))
    assert run(quick(), hot, hot, still) == [{}, {"a": 3}, {"a": 7}]
    assert reason(quick(), hot, hot, still).endswith("; the last scale-up gained 4% of its aim")
    blocking = quick(scaling_effectiveness_detection_enabled=True)
    assert run(blocking, hot, hot, still, still) == [{}, {"a": 3}, {}, {}]
    helped = seen(at(3_000, 1.5, degree=3))  # 3 do 2,000: 87 %
    assert run(blocking, hot, hot, helped) == [{}, {"a": 3}, {"a": 7}]
    other = seen(at(1_575, 1.5, degree=2))  # not what was asked for, so nothing is known of it
    assert run(blocking, hot, hot, other) == [{}, {"a": 3}, {"a": 5}]


def test_flink_a_missing_metric_is_never_zero() -> None:
    good = seen(at(1_000, 0.5, degree=3))
    for missing in ("utilisation", "served", "backlog"):
        measured: dict[str, Any] = {"utilisation": 0.1, "backlog": 0, missing: None}
        gone = seen(station("a", {"in": 1_000}, degree=3, **measured), backlog=None)
        assert run(quick(), gone, gone, gone) == [{}, {}, {}]
        assert run(quick(metrics_window=2), good, good, gone) == [{}, {}, {}]
    # the input of b depends on a, of which nothing is known
    graph = seen(at(1_000, 0.5, degree=3, served=None), station("b", {"a": 1_000}, degree=3, utilisation=0.05))
    assert run(quick(), graph, graph) == [{}, {}]


def test_flink_scales_down_when_truly_nothing_comes() -> None:
    idle = seen(at(0, 0.0, degree=10), station("b", {"a": 0}, degree=10, utilisation=0.0))
    assert run(quick(), idle, idle) == [{}, {"a": 4, "b": 4}]


def test_flink_looks_at_the_busiest_replica() -> None:
    def replicas(*busy: float | None) -> OperatorSnapshot:
        return at(1_000, 0.5, degree=2, replicas=tuple(ReplicaSnapshot("n", share) for share in busy))

    assert busy_of(replicas(0.2, 0.8)) == 0.8
    assert busy_of(replicas(0.2, None)) == 0.5
    assert busy_of(replicas()) == 0.5
    skewed = seen(replicas(0.0, 1.1))
    assert run(quick(), skewed, skewed) == [{}, {"a": 4}]  # 1429/909·2 = 3.1


def test_flink_an_operator_that_reads_a_source_and_an_operator() -> None:
    # b reads 1,000/s of a, which falls behind by 1,000/s, and 500/s of its own source: 2,000 + 500 = 2,500/s.
    graph = [
        seen(at(2_000, 1.0, lag, served=1_000), station("b", {"a": 1_000, "other": 500}, utilisation=1.0),
             rows={"in": 2_000, "other": 500})
        for lag in (0, 1_000)
    ]  # fmt: skip
    assert run(quick(), *graph) == [{}, {"a": 3, "b": 3}]  # 2857/1000; 3571/1500 = 2.4


# Spark Streaming


def batched(*seconds: float, **more: Any) -> Snapshot:
    a, b = station("a", {"in": 100}, degree=2, utilisation=0.5), station("b", {"a": 100}, degree=2, utilisation=0.9)
    return seen(a, b, batches=tuple((100, took) for took in seconds), **{"trigger_s": 1.0, **more})


@pytest.mark.parametrize(
    ("took", "asked"),
    [
        (0.9, {"b": 3}),  # one more, to the busier
        (1.4, {"b": 3}),
        (1.5, {"b": 4}),  # round(1.5) = 2: b has 1.8 of load on 2, then on 3, 0.6 each, which is more than a's 0.5
        (2.5, {"a": 3, "b": 4}),  # round(2.5) = 3 as in Java: b, b, then a, 0.5 against b's 0.45
        (0.89, {}),
        (0.31, {}),
        (0.3, {"a": 1}),  # one less, where the load is: a's other would have 1.0, b's 1.8
        (0.0, {"a": 1}),
    ],
)
def test_spark_ratio_of_batch_time_to_trigger(took: float, asked: dict[str, int]) -> None:
    assert run(SparkRatio(scaling_interval=1), batched(took)) == [asked]


def test_spark_ratio_decides_once_a_minute_on_the_mean() -> None:
    policy = SparkRatio()
    minute = [batched(0.5, 1.5, interval_s=20.0), batched(interval_s=20.0), batched(1.0, interval_s=20.0)]
    assert run(policy, *minute) == [{}, {}, {"b": 3}]  # (0.5 + 1.5 + 1.0)/3; in the middle no batch ended
    assert reason(policy, *minute) == "ratio 1 over 60 s, from 0.9 on: 1 more; utilisation 0.9"
    assert run(policy, *minute, *minute)[3:] == [{}, {}, {"b": 3}]


def test_spark_ratio_without_batches_is_the_highest_utilisation() -> None:
    assert run(SparkRatio(scaling_interval=1), batched(trigger_s=0.0)) == [{"b": 3}]  # 0.9
    idle = seen(station("a", {"in": 1}, degree=3, utilisation=0.1), station("b", {"a": 1}, degree=3, utilisation=0.3))
    assert run(SparkRatio(scaling_interval=1), idle) == [{"a": 2}]
    some = seen(station("a", {"in": 1}, degree=3, utilisation=0.1), station("b", {"a": 1}, degree=3, utilisation=None))
    assert run(SparkRatio(scaling_interval=1), some) == [{}]  # the other may be full


def test_spark_ratio_stays_within_slots_limits_and_one() -> None:
    assert run(SparkRatio(scaling_interval=1), batched(5.0, slots=6)) == [{"b": 4}]
    assert run(SparkRatio(scaling_interval=1), batched(5.0, slots=4)) == [{}]
    last = seen(station("a", {"in": 1}, utilisation=0.1))
    assert run(SparkRatio(scaling_interval=1), last) == [{}]
    full = seen(station("a", {"in": 1}, utilisation=1.0, limit=1), station("b", {"a": 1}, utilisation=0.2))
    assert run(SparkRatio(scaling_interval=1), full) == [{"b": 2}]


def test_spark_ratio_refuses_ratios_in_the_wrong_order() -> None:
    with pytest.raises(OptionError, match=r"scaling_down_ratio=0\.9 is not below scaling_up_ratio=0\.9"):
        SparkRatio(scaling_down_ratio=0.9)


def test_a_policy_may_be_asked_before_the_start() -> None:
    first = seen(station("a", {"in": 0}), interval_s=0.0)
    for policy in (Ds2(), Flink(), SparkRatio()):
        assert policy.decide(policy.initial(), first, RNG) == (policy.initial(), ())
