"""EDF's local policies: the threshold, Q-learning and model-based learning, worked out by hand beside the paper's equations."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import OperatorSnapshot, ReplicaSnapshot, Snapshot
from springtide.policy.scale import ScalePolicy, check
from springtide.policy.scale.learning import EdfLearner, Seen
from springtide.policy.scale.model_based import ModelBased, monotone, transitions
from springtide.policy.scale.q_learning import QLearning
from springtide.policy.scale.threshold import Threshold

GREEDY = QLearning(target_ms=10.0, epsilon=0.0, most=3)


def operator(name: str = "rank", degree: int = 1, **measured: Any) -> OperatorSnapshot:
    usual: dict[str, Any] = {
        "rows_in": None, "rows_out": None, "failures": None, "busy_s": None, "rate": None, "utilisation": None,
        "backlog": None, "latency_ms": None,
    }  # fmt: skip
    return OperatorSnapshot(name=name, degree=degree, width=degree, **{**usual, **measured})


def snapshot(*operators: OperatorSnapshot, **measured: Any) -> Snapshot:
    degrees = {one.name: one.degree for one in operators}
    usual: dict[str, Any] = {"at": 30.0, "interval_s": 30.0, "batches": (), "rate": None, "backlog": None, "latency": None}
    return Snapshot(plan=Plan(degrees, 8, degrees), operators=operators, **{**usual, **measured})


def requests(policy: ScalePolicy, *operators: OperatorSnapshot, **measured: Any) -> tuple[Request, ...]:
    return policy.decide(policy.initial(), snapshot(*operators, **measured), np.random.default_rng(0))[1]


def lived(policy: ScalePolicy, *intervals: OperatorSnapshot, seed: int = 0) -> tuple[Any, list[tuple[Request, ...]]]:
    """The state after intervals of one operator, and what was asked for in each; the degrees are as they are given."""
    state, asked, rng = policy.initial(), [], np.random.default_rng(seed)
    for number, one in enumerate(intervals):
        state, found = policy.decide(state, snapshot(one, at=30.0 * number), rng)
        asked.append(found)
    return state, asked


# The threshold


def test_above_the_threshold_a_replica_is_added() -> None:
    (request,) = requests(Threshold(), operator(degree=2, utilisation=0.85))
    assert request.degree == 3
    assert request.score == pytest.approx(0.5)  # (0.85 − 0.7) / (1 − 0.7)
    assert request.reason == "85% busy, above 70%: 3"


def test_a_replica_goes_when_the_others_can_carry_its_work() -> None:
    (request,) = requests(Threshold(), operator(degree=3, utilisation=0.2))
    assert request.degree == 2
    assert request.score == pytest.approx(3 / 7)  # 0.2·3/2 = 0.3 < 0.75·0.7 = 0.525; (0.525 − 0.3) / 0.525
    assert request.reason == "20% busy, 30% with one less, below 52.5%: 2"
    assert requests(Threshold(), operator(degree=3, utilisation=0.35)) == ()  # 0.35·3/2 = 0.525, which is not below it


def test_the_threshold_itself_and_a_single_replica_stay() -> None:
    assert requests(Threshold(), operator(degree=2, utilisation=0.7)) == ()
    assert requests(Threshold(), operator(degree=1, utilisation=0.0)) == ()
    assert requests(Threshold(), operator(degree=2)) == ()


def test_more_than_all_of_a_replica_is_all_of_it() -> None:
    (request,) = requests(Threshold(), operator(utilisation=1.4))
    assert request.score == 1.0
    assert requests(Threshold(utilisation=1.0), operator(utilisation=1.4)) == ()


def test_a_threshold_of_nothing_never_removes() -> None:
    assert requests(Threshold(utilisation=0.0), operator(degree=4, utilisation=0.0)) == ()
    assert requests(Threshold(fraction=0.0), operator(degree=4, utilisation=0.0)) == ()


def test_no_more_than_an_operator_or_the_run_can_use() -> None:
    assert requests(Threshold(), operator(degree=3, utilisation=0.9, limit=3)) == ()
    assert requests(Threshold(), operator(degree=3, utilisation=0.9), slots=3) == ()


def test_the_highest_utilisation_counts_by_option() -> None:
    hot = (ReplicaSnapshot("n1", 0.9), ReplicaSnapshot("n2", 0.1))
    one = operator(degree=2, utilisation=0.5, replicas=hot)
    assert requests(Threshold(), one) == ()
    (request,) = requests(Threshold(which="max"), one)
    assert request.degree == 3
    assert request.score == pytest.approx(2 / 3)  # (0.9 − 0.7) / 0.3
    # 0.1·2/1 = 0.2 < 0.525 by the mean; by the highest 0.3·2/1 = 0.6 is not
    cool = operator(degree=2, utilisation=0.1, replicas=(ReplicaSnapshot("n1", 0.3), ReplicaSnapshot("n2", 0.0)))
    assert [one.degree for one in requests(Threshold(), cool)] == [1]
    assert requests(Threshold(which="max"), cool) == ()


def test_without_all_replicas_the_mean_counts() -> None:
    one = operator(degree=2, utilisation=0.5, replicas=(ReplicaSnapshot("n1", 0.9), ReplicaSnapshot("n2", None)))
    assert requests(Threshold(which="max"), one) == ()
    assert requests(Threshold(which="max"), operator(degree=2, utilisation=0.5)) == ()


def test_the_threshold_refuses_another_word() -> None:
    with pytest.raises(OptionError, match="did you mean 'max'"):
        Threshold(which="maxi")


@given(
    used=st.floats(0, 2), degree=st.integers(1, 50), threshold=st.floats(0, 1), fraction=st.floats(0, 0.99),
)  # fmt: skip
def test_a_threshold_never_takes_back_what_it_just_did(used: float, degree: int, threshold: float, fraction: float) -> None:
    policy = Threshold(threshold, fraction)
    for request in requests(policy, operator(degree=degree, utilisation=used)):
        assert 0 <= request.score <= 1
        assert abs(request.degree - degree) == 1
        same_work = operator(degree=request.degree, utilisation=min(1.0, used) * degree / request.degree)
        for again in requests(policy, same_work):
            assert again.degree != degree


# What the learners share


def test_weights_have_to_sum_to_one() -> None:
    with pytest.raises(OptionError, match=r"'q-learning': w_perf=0.9, w_res=0.4, w_rcf=0.2 sum to 1.5"):
        QLearning(w_perf=0.9)
    assert QLearning(w_perf=0.4, w_res=0.2, w_rcf=0.4).w_rcf == 0.4


@pytest.mark.parametrize("text", ["parser", "parser=", "parser=0", "parser=-1", "parser=soon", "parser=inf", "=5", "a=nan"])
def test_targets_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="is not operator=milliseconds, with more than 0 of them"):
        ModelBased(targets=text)


def test_targets_name_operators() -> None:
    with pytest.raises(OptionError, match="names 'a' twice"):
        ModelBased(targets="a=1,a=2")
    check(ModelBased(targets="parser=5, partialRank=210"), ["parser", "partialRank"])
    with pytest.raises(OptionError, match=r"'model-based': targets names 'pasrer'.*did you mean 'parser'"):
        check(ModelBased(targets="pasrer=5"), ["parser", "partialRank"])


def test_bounds_are_set_or_shared_out_by_cost() -> None:
    three = snapshot(operator("parser"), operator("rank"), operator("sink"), target_s=0.25)
    assert ModelBased(targets="parser=5,rank=210").bounds(snapshot(operator("parser"), operator("sink")), {}) == {
        "parser": 5.0,
        "rank": 210.0,
        "sink": 500.0,  # no target is known, so it has half of a second
    }
    assert ModelBased(targets="rank=210", target_ms=7.0).bounds(three, {}) == {"parser": 7.0, "rank": 210.0, "sink": 7.0}
    # 250 ms over costs of 1, 3 and, unknown, their mean of 2 ms: shares of 1/6, 3/6, 2/6
    shared = ModelBased().bounds(three, {"parser": 0.001, "rank": 0.003})
    assert shared == pytest.approx({"parser": 250 / 6, "rank": 125.0, "sink": 250 / 3})
    assert ModelBased().bounds(three, {}) == pytest.approx(dict.fromkeys(("parser", "rank", "sink"), 250 / 3))


def test_the_cost_is_equation_1() -> None:
    policy = QLearning()
    assert policy.cost(1, Seen(2, 0, True, 4)) == pytest.approx(0.2 + 0.4 + 0.4 * 2 / 4)
    assert policy.cost(0, Seen(1, 0, False, 4)) == pytest.approx(0.4 * 1 / 4)


def test_actions_stay_between_one_and_the_most() -> None:
    assert Seen(1, 0, False, 3).actions == (0, 1)
    assert Seen(2, 0, False, 3).actions == (-1, 0, 1)
    assert Seen(3, 0, False, 3).actions == (-1, 0)


@pytest.mark.parametrize("policy", [QLearning(), ModelBased()], ids=lambda policy: policy.name)
def test_without_a_target_a_learner_goes_by_a_second(policy: EdfLearner) -> None:
    """As tide does. That it is far below shows in the cost of replicas that are too many."""
    intervals = [operator(degree=4, rate=100.0, latency_ms=5.0)] * 50
    state, asked = lived(policy, *intervals)
    assert state["tables"].keys() == {"rank"}
    reasons = [request.reason for requests in asked for request in requests]
    assert reasons and all("5.0 ms of 1,000.0 ms" in reason for reason in reasons)


@pytest.mark.parametrize("policy", [QLearning(target_ms=9), ModelBased(target_ms=9)], ids=lambda policy: policy.name)
def test_an_operator_that_cannot_be_replicated_is_left_alone(policy: EdfLearner) -> None:
    state, asked = lived(policy, *[operator(degree=1, rate=100.0, latency_ms=50.0, limit=1)] * 50)
    assert not any(asked)
    assert state["tables"] == {}


def test_the_most_is_the_limit_or_the_parameter_and_never_more_than_the_slots() -> None:
    def columns(limit: int | None, slots: int | None) -> int:
        policy = ModelBased(target_ms=10.0, most=5)
        measured = snapshot(operator(rate=1.0, latency_ms=1.0, limit=limit), slots=slots)
        state, _ = policy.decide({}, measured, np.random.default_rng(0))
        return len(state["tables"]["rank"]["late"])

    assert [columns(None, None), columns(3, None), columns(9, None), columns(9, 4), columns(10**9, None)] == [5, 3, 9, 4, 512]


# Q-learning


def test_q_learning_follows_equation_2() -> None:
    # Intervals at K_max = 3 with bins of 50/s: (1, bin 2), late; (2, bin 2); (2, bin 3).
    first = operator(degree=1, rate=120.0, latency_ms=40.0)
    second = operator(degree=2, rate=149.0, latency_ms=8.0)
    third = operator(degree=2, rate=150.0, latency_ms=11.0)
    state, asked = lived(GREEDY, first, second, third)
    # Q(s1, +1) = 0.9·0 + 0.1·(0.2 + 0 + 0.4·2/3 + 0.99·0) = 0.1·0.466667
    # Q(s2, 0) = 0.1·(0 + 0.4 + 0.4·2/3 + 0.99·0) = 0.1·0.666667: it was late after that
    learnt = state["tables"]["rank"]
    assert learnt["q"] == {"1,2": pytest.approx([0, 0, 0.0466667]), "2,2": pytest.approx([0, 0.0666667, 0])}
    assert learnt["last"] == [2, 3]
    assert asked == [(), (), ()]  # among equals nothing is changed


def test_what_follows_counts_with_gamma() -> None:
    # From (1, bin 0) to itself with Q(s, 0) = 1 and Q(s, +1) = 2: 0.9·1 + 0.1·(0.4·1/3 + 0.99·1)
    table = GREEDY.learn({"q": {"1,0": [0.0, 1.0, 2.0]}}, (1, 0), Seen(1, 0, False, 3))
    assert table["q"]["1,0"] == pytest.approx([0.0, 0.9 + 0.1 * (0.4 / 3 + 0.99), 2.0])


def test_an_action_that_is_not_possible_is_not_the_best() -> None:
    # Q(s', −1) = 0 does not count at one replica: the least is 5.
    table = GREEDY.learn({"q": {"1,1": [0.0, 5.0, 6.0]}}, (1, 0), Seen(1, 1, False, 3))
    assert table["q"]["1,0"][1] == pytest.approx(0.1 * (0.4 / 3 + 0.99 * 5))


def test_q_learning_tries_what_it_has_not_tried_and_scores_the_gain() -> None:
    late = operator(degree=1, rate=10.0, latency_ms=40.0)
    _, asked = lived(GREEDY, late, late)
    # Q(s, 0) = 0.1·(0.4 + 0.4/3) = 0.0533333 > Q(s, +1) = 0; the score is the gain over max(1, gains).
    (request,) = asked[1]
    assert request.degree == 2
    assert request.score == pytest.approx(0.0533333)
    assert request.reason == "input 10/s, 40.0 ms of 10.0 ms, expected cost 0.053 with 1, 0.000 with 2, the least: 2"


def test_among_equals_more_replicas_are_rather_tried_than_fewer() -> None:
    still = operator(degree=2, rate=10.0, latency_ms=1.0)
    _, asked = lived(GREEDY, still, still)  # Q(s, 0) has grown, the others are 0
    assert [one.degree for one in asked[1]] == [3]


def test_scores_are_shares_of_the_largest_gain_so_far() -> None:
    tables = {"rank": {"q": {"2,0": [9.0, 6.0, 2.0], "2,1": [5.0, 7.0, 8.0]}, "last": None}}
    state: Any = {"bin": 50.0, "tables": tables}
    rng = np.random.default_rng(0)
    state, (out,) = GREEDY.decide(state, snapshot(operator(degree=2, rate=0.0, latency_ms=1.0)), rng)
    assert (out.degree, out.score) == (3, 1.0)  # 6 − 2 = 4, the largest so far
    state["tables"]["rank"]["last"] = None  # so that Q stays as it is
    state, (back,) = GREEDY.decide(state, snapshot(operator(degree=2, rate=50.0, latency_ms=1.0)), rng)
    assert back.degree == 1
    assert back.score == pytest.approx(0.5)  # (7 − 5) / 4


def test_a_refused_request_is_learnt_as_no_change() -> None:
    late = operator(degree=1, rate=10.0, latency_ms=40.0)
    state, asked = lived(GREEDY, late, late, late)
    assert [one.degree for one in asked[1]] == [2]
    # it is asked for, and not granted: the third interval is again at 1, and Q(s, 0) is what grows, Q(s, +1) stays 0.
    # 0.9·0.0533333 + 0.1·(0.4 + 0.4/3 + 0.99·0) = 0.101333
    assert state["tables"]["rank"]["q"] == {"1,0": pytest.approx([0.0, 0.101333, 0.0], rel=1e-4)}


def test_a_jump_of_more_than_one_replica_teaches_nothing() -> None:
    state, _ = lived(GREEDY, operator(degree=1, rate=1.0, latency_ms=1.0), operator(degree=3, rate=1.0, latency_ms=1.0))
    assert "q" not in state["tables"]["rank"]


@pytest.mark.parametrize("missing", ["rate", "latency_ms"])
def test_what_is_missing_teaches_nothing_and_breaks_the_chain(missing: str) -> None:
    known = operator(degree=1, rate=10.0, latency_ms=40.0)
    measured: dict[str, Any] = {"rate": 10.0, "latency_ms": 40.0, missing: None}
    unknown = operator(degree=2, **measured)
    state, asked = lived(GREEDY, known, unknown, operator(degree=1, rate=10.0, latency_ms=40.0))
    assert "q" not in state["tables"]["rank"]
    assert not any(asked)


def test_an_idle_operator_was_not_late() -> None:
    idle = operator(degree=2, rate=0.0, backlog=0)
    state, _ = lived(GREEDY, idle, idle)
    assert state["tables"]["rank"]["q"]["2,0"] == pytest.approx([0.0, 0.1 * 0.4 * 2 / 3, 0.0])
    state, _ = lived(GREEDY, *[operator(degree=2, rate=0.0, backlog=3)] * 2)
    assert state["tables"] == {}


def test_exploration_takes_any_action_that_is_possible() -> None:
    policy = QLearning(target_ms=10.0, epsilon=1.0, most=3)
    asked = [
        lived(policy, operator(degree=degree, rate=1.0, latency_ms=1.0), seed=seed)[1][0]
        for degree in (1, 2, 3)
        for seed in range(40)
    ]
    wanted = [{one.degree for found in asked[40 * n : 40 * n + 40] for one in found} for n in range(3)]
    assert wanted == [{2}, {1, 3}, {2}]
    assert all("tried" in one.reason for found in asked for one in found)


def test_rates_beyond_the_bins_are_in_the_last() -> None:
    policy = QLearning(target_ms=10.0, bins=4)
    for rate, expected in [(0.0, 0), (49.9, 0), (50.0, 1), (199.0, 3), (1e300, 3)]:
        state, _ = lived(policy, operator(rate=rate, latency_ms=1.0))
        assert state["tables"]["rank"]["last"] == [1, expected]


def test_tables_of_other_bins_are_not_used() -> None:
    state, _ = lived(GREEDY, *[operator(rate=10.0, latency_ms=40.0)] * 5)
    other = QLearning(target_ms=10.0, epsilon=0.0, bin=5.0)
    state, _ = other.decide(state, snapshot(operator(rate=10.0, latency_ms=40.0)), np.random.default_rng(0))
    assert state["tables"]["rank"] == {"last": [1, 2], "gain": 1.0}


# Model-based


def test_the_first_sweeps_by_hand() -> None:
    # K_max 2, one bin, so that P = 1; weights 0.4, 0.4, 0.2; a first interval with one replica, late.
    policy = ModelBased(target_ms=10.0, most=2, bins=1)
    state, asked = lived(policy, operator(degree=1, rate=1.0, latency_ms=99.0))
    learnt = state["tables"]["rank"]
    # ĉ_u(1) = 0.9·0 + 0.1·1 = 0.1; monotone: ĉ_u(2) stays 0.
    assert learnt["late"] == [[pytest.approx(0.1)], [0.0]]
    # Q(1, 0) = 0.4·1/2 + 0.4·0.1 = 0.24       Q(1, +1) = 0.2 + 0.4·2/2 + 0 = 0.6
    # Q(2, −1) = 0.2 + 0.4·1/2 + 0.04 = 0.44   Q(2, 0) = 0.4
    assert learnt["q"][0][0][1:] == pytest.approx([0.24, 0.6])
    assert learnt["q"][1][0][:2] == pytest.approx([0.44, 0.4])
    assert asked == [()]
    state, _ = lived(policy, *[operator(degree=1, rate=1.0, latency_ms=99.0)] * 2)
    # ĉ_u(1) = 0.9·0.1 + 0.1 = 0.19; V = (0.24, 0.4); Q(1, 0) = 0.2 + 0.4·0.19 + 0.99·0.24 = 0.5136
    # Q(1, +1) = 0.6 + 0.99·0.4 = 0.996; Q(2, −1) = 0.2 + 0.5136 = 0.7136; Q(2, 0) = 0.4 + 0.99·0.4 = 0.796
    learnt = state["tables"]["rank"]
    assert learnt["q"][0][0][1:] == pytest.approx([0.5136, 0.996])
    assert learnt["q"][1][0][:2] == pytest.approx([0.7136, 0.796])
    assert learnt["moves"] == {"0": {"0": 1}}


def test_model_based_learns_to_add_a_replica_and_then_rests() -> None:
    # One replica is always late and two never: staying late costs 0.4 + 0.2/3 an interval, two cost 0.4/3.
    policy = ModelBased(target_ms=10.0, most=3, w_perf=0.6, w_res=0.2, w_rcf=0.2)
    state, rng, degree, degrees = policy.initial(), np.random.default_rng(0), 1, []
    for _ in range(200):
        one = operator(degree=degree, rate=75.0, latency_ms=50.0 if degree < 2 else 5.0)
        state, found = policy.decide(state, snapshot(one), rng)
        degree = found[0].degree if found else degree
        degrees.append(degree)
    assert set(degrees[-100:]) == {2}


def test_a_learner_keeps_two_operators_apart() -> None:
    policy = ModelBased(target_ms=10.0, bins=3)
    both = snapshot(operator("a", rate=1.0, latency_ms=99.0), operator("b", rate=1.0, latency_ms=1.0))
    state, _ = policy.decide({}, both, np.random.default_rng(0))
    assert state["tables"]["a"]["late"][0][0] == pytest.approx(0.1)
    assert state["tables"]["b"]["late"][0][0] == 0.0


def test_transitions_of_rows_never_left_are_identity() -> None:
    found = transitions({"0": {"0": 1, "1": 3}, "2": {"1": 2}}, 4)
    assert found.tolist() == [[0.25, 0.75, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert transitions({"0": {"3": 1}}, 2).tolist() == [[0, 1], [0, 1]]  # fewer bins than before: the last has the rest


def swept_by_loops(policy: ModelBased, q: Any, late: Any, moves: Any) -> dict[tuple[int, int, int], float]:
    """Line 4 of algorithm 2, as it is printed."""
    most, bins, found = len(q), len(moves), {}
    for k in range(1, most + 1):
        for j in range(bins):
            for a in Seen(k, j, False, most).actions:
                total = 0.0
                for end in range(bins):
                    then = Seen(k + a, end, False, most)
                    least = min(q[k + a - 1][end][b + 1] for b in then.actions)
                    cost = policy.cost(a, then) + policy.w_perf * late[k + a - 1][end]
                    total += moves[j][end] * (cost + policy.gamma * least)
                found[k, j, a] = total
    return found


@settings(max_examples=40)
@given(most=st.integers(2, 5), bins=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_a_sweep_is_the_bellman_equation_and_brings_tables_closer(most: int, bins: int, seed: int) -> None:
    policy, rng = ModelBased(), np.random.default_rng(seed)
    q, other = rng.uniform(0, 10, (2, most, bins, 3))
    late, moves = rng.uniform(0, 1, (most, bins)), rng.dirichlet(np.ones(bins), bins)
    first, second = policy.backup(q, late, moves), policy.backup(other, late, moves)
    expected = swept_by_loops(policy, q, late, moves)
    for (k, j, a), value in expected.items():
        assert first[k - 1, j, a + 1] == pytest.approx(value)
    apart = max(abs(first[k - 1, j, a + 1] - second[k - 1, j, a + 1]) for k, j, a in expected)
    assert apart <= policy.gamma * np.abs(q - other).max() + 1e-9


@settings(max_examples=60)
@given(
    observed=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=60),
    alpha=st.floats(0, 1),
)  # fmt: skip
def test_lateness_never_falls_with_fewer_replicas_or_more_input(observed: list[tuple[int, int, bool]], alpha: float) -> None:
    late = np.zeros((4, 5))
    for k, j, above in observed:
        value = (1 - alpha) * late[k, j] + alpha * above
        late = monotone(late, k, j, value)
        assert late[k, j] == value
        assert (np.diff(late, axis=0) <= 0).all()
        assert (np.diff(late, axis=1) >= 0).all()
        assert 0 <= late.min() <= late.max() <= 1


def test_a_table_grows_and_shrinks_with_the_limit() -> None:
    policy = ModelBased(target_ms=10.0, bins=2)
    state: Any = policy.initial()
    for limit, degree in [(3, 3), (5, 4), (2, 2)]:
        one = operator(degree=degree, rate=60.0, latency_ms=99.0, limit=limit)
        state, _ = policy.decide(state, snapshot(one), np.random.default_rng(0))
        late = np.array(state["tables"]["rank"]["late"])
        assert late.shape == (limit, 2)
        assert np.array(state["tables"]["rank"]["q"]).shape == (limit, 2, 3)
        assert (np.diff(late, axis=0) <= 0).all()
    # (3, bin 1) was 0.1 and is continued to 4, where it gets 0.9·0.1 + 0.1 = 0.19; from there to 2, then 0.9·0.19 + 0.1.
    assert late[1, 1] == pytest.approx(0.271)


# All three


def noisy(seed: int, intervals: int) -> list[OperatorSnapshot]:
    rng, degree, found = np.random.default_rng(seed), 1, []
    for _ in range(intervals):
        degree = int(np.clip(degree + rng.integers(-1, 2), 1, 4))
        rate, latency = float(rng.uniform(0, 400)), float(rng.uniform(0, 20))
        found.append(operator(degree=degree, rate=rate, latency_ms=latency, utilisation=float(rng.uniform(0, 1))))
    return found


EVERY = [Threshold(), QLearning(target_ms=10.0, most=4, epsilon=0.3), ModelBased(target_ms=10.0, most=4, bins=8)]


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_a_restored_state_goes_on_as_if_nothing_had_been(policy: ScalePolicy) -> None:
    straight, restored = policy.initial(), policy.initial()
    one, two = np.random.default_rng(5), np.random.default_rng(5)
    for measured in map(snapshot, noisy(1, 80)):
        before = json.dumps(restored)
        straight, asked = policy.decide(straight, measured, one)
        stored_state, again = policy.decide(restored, measured, two)
        assert json.dumps(restored) == before, "a policy must not change the state that it was handed"
        restored = json.loads(json.dumps(stored_state, allow_nan=False))
        assert restored == stored_state == straight
        assert again == asked


@pytest.mark.parametrize("policy", EVERY[1:], ids=lambda policy: policy.name)
def test_what_was_learnt_is_not_lost_in_an_interval_without_operators(policy: ScalePolicy) -> None:
    state, _ = lived(policy, *noisy(2, 20))
    after, _ = policy.decide(state, snapshot(), np.random.default_rng(0))
    assert after["tables"] == state["tables"]


MAYBE = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 0.5, 1.0]))
COUNT = st.one_of(st.none(), st.integers(-5, 10**12))
OPERATORS = st.builds(
    OperatorSnapshot, name=st.sampled_from("abc"), degree=st.integers(0, 10**6), width=st.integers(0, 9), rows_in=COUNT,
    rows_out=COUNT, failures=COUNT, busy_s=MAYBE, rate=MAYBE, utilisation=MAYBE, backlog=COUNT, latency_ms=MAYBE, served=COUNT,
    limit=st.one_of(st.none(), st.integers(-1, 20)),
    replicas=st.lists(st.builds(ReplicaSnapshot, node=st.just("n"), utilisation=MAYBE), max_size=3).map(tuple),
)  # fmt: skip


@settings(max_examples=60)
@given(
    measured=st.lists(st.lists(OPERATORS, max_size=3, unique_by=lambda one: one.name), min_size=1, max_size=4), target_s=MAYBE,
    slots=st.one_of(st.none(), st.integers(0, 9)), interval_s=st.sampled_from([0.0, 30.0]),
    which=st.sampled_from(["mean", "max"]),
)  # fmt: skip
def test_no_odd_snapshot_is_too_odd(
    measured: list[list[OperatorSnapshot]], target_s: float | None, slots: int | None, interval_s: float, which: str
) -> None:
    for policy in (Threshold(which=which), QLearning(epsilon=0.5), ModelBased(bins=3), ModelBased(target_ms=1.0, bins=3)):
        state, rng = policy.initial(), np.random.default_rng(0)
        for number, operators in enumerate(measured):
            given_now = snapshot(*operators, at=float(number), interval_s=interval_s, target_s=target_s, slots=slots)
            state, found = policy.decide(state, given_now, rng)
            state = json.loads(json.dumps(state, allow_nan=False))
            for request in found:
                assert request.degree >= 1
                assert request.degree != given_now[request.operator].degree
                assert math.isfinite(request.score)
                assert any(letter.isdigit() for letter in request.reason)
