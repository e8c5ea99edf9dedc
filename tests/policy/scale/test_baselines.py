"""DABS-Storm's baselines: one step at a time, and a degree remembered for each rate."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.scale import ScalePolicy, check
from springtide.policy.scale.incremental import Incremental
from springtide.policy.scale.rlearning import RLearning

RNG = np.random.default_rng(0)


def operator(degree: int = 1, name: str = "bolt", **measured: Any) -> OperatorSnapshot:
    usual: dict[str, Any] = {
        "rows_in": None, "rows_out": None, "failures": None, "busy_s": None, "rate": None, "utilisation": None,
        "backlog": None, "latency_ms": None,
    }  # fmt: skip
    return OperatorSnapshot(name=name, degree=degree, width=degree, **{**usual, **measured})


def snapshot(*operators: OperatorSnapshot, at: float = 10.0, slots: int | None = None, interval_s: float = 10.0) -> Snapshot:
    degrees = {one.name: one.degree for one in operators}
    return Snapshot(at, interval_s, Plan(degrees, 8, degrees), operators, (), None, None, None, slots=slots)


def wanted(policy: ScalePolicy, *operators: OperatorSnapshot) -> dict[str, int]:
    _, requests = policy.decide(policy.initial(), snapshot(*operators), RNG)
    return {request.operator: request.degree for request in requests}


def lived(policy: ScalePolicy, *intervals: OperatorSnapshot, state: Any = None) -> tuple[Any, list[tuple[Request, ...]]]:
    """The state after intervals of ten seconds, and what was asked for in each; through JSON every time."""
    state, asked = policy.initial() if state is None else state, []
    for number, one in enumerate(intervals, start=1):
        state, found = policy.decide(state, snapshot(one, at=10.0 * number), RNG)
        state = json.loads(json.dumps(state, allow_nan=False))
        asked.append(found)
    return state, asked


# incremental


@pytest.mark.parametrize(
    ("used", "degree"),
    [(0.81, {"bolt": 4}), (0.8, {}), (0.5, {}), (0.2, {}), (0.19, {"bolt": 2}), (None, {}), (3.0, {"bolt": 4})],
)
def test_incremental_takes_one_step_outside_the_thresholds(used: float | None, degree: dict[str, int]) -> None:
    assert wanted(Incremental(), operator(3, utilisation=used)) == degree


def test_incremental_gives_the_numbers() -> None:
    _, (request,) = Incremental().decide({}, snapshot(operator(3, utilisation=0.934)), RNG)
    assert request == Request("bolt", 4, "utilisation 0.93, above 0.8: 4")


@pytest.mark.parametrize(
    ("rows_in", "served", "degree"),
    [
        (100, 100, {"bolt": 4}),  # it keeps up, so the ratio is 1: above 0.8
        (100, 125, {}),  # 0.8
        (100, 501, {"bolt": 2}),  # below 0.2: a queue was emptied
        (100, 500, {}),  # 0.2
        (5, 0, {"bolt": 4}),  # without end
        (0, 5, {"bolt": 2}),
        (0, 0, {}),
        (None, 5, {}),
        (5, None, {}),
    ],
)
def test_the_code_compares_input_with_what_was_executed(
    rows_in: int | None, served: int | None, degree: dict[str, int]
) -> None:
    idle = operator(3, utilisation=0.0, rows_in=rows_in, served=served)
    assert wanted(Incremental(measure="ratio"), idle) == degree


def test_incremental_stays_within_limits() -> None:
    assert wanted(Incremental(), operator(1, utilisation=0.0)) == {}
    assert wanted(Incremental(), operator(2, utilisation=1.0, limit=2)) == {}


@pytest.mark.parametrize("policy", [Incremental, RLearning])
def test_thresholds_are_in_order(policy: type[Any]) -> None:
    with pytest.raises(OptionError, match=r"low=0.8 is not below high=0.8"):
        policy(low=0.8)


def test_incremental_refuses_another_measure() -> None:
    with pytest.raises(OptionError, match="did you mean 'ratio'"):
        Incremental(measure="ratios")


# rlearning: bins of 10 records/s


def test_a_rate_that_is_not_known_takes_one_step() -> None:
    assert wanted(RLearning(), operator(2, rate=55.0, utilisation=0.9)) == {"bolt": 3}
    assert wanted(RLearning(), operator(2, rate=55.0, utilisation=0.1)) == {"bolt": 1}
    assert wanted(RLearning(), operator(2, rate=55.0, utilisation=0.5)) == {}
    assert wanted(RLearning(), operator(2, rate=55.0)) == {}
    assert wanted(RLearning(), operator(2, utilisation=0.9)) == {}


def test_a_rate_that_is_known_gets_its_degree_at_once() -> None:
    policy = RLearning(known="bolt 0:1 50:4 200:14")
    _, (request,) = policy.decide(policy.initial(), snapshot(operator(2, rate=203.0, utilisation=0.9)), RNG)
    assert request == Request("bolt", 14, "input 203.0/s, for which 14 was enough")
    # whatever waits: scaled in by the input alone, while the queue is far from empty
    assert wanted(policy, operator(14, rate=59.9, utilisation=1.0, backlog=10_000)) == {"bolt": 4}
    assert wanted(policy, operator(4, rate=60.0, utilisation=0.9)) == {"bolt": 5}  # the next bin is not known
    assert wanted(policy, operator(4, rate=5.0)) == {"bolt": 1}


def test_a_degree_is_learnt_when_it_is_neither_too_small_nor_too_large() -> None:
    # 50/s at 70 ms need 3.5 replicas' work: at 3 it is full, at 4 busy for 0.875, at 5 for 0.7.
    full, four = operator(3, rate=50.0, utilisation=1.0), operator(4, rate=50.0, utilisation=0.875)
    five = operator(5, rate=50.0, utilisation=0.7)
    state, asked = lived(RLearning(), full, four, five, five)
    assert [[one.degree for one in found] for found in asked] == [[4], [5], [], []]
    assert state["degrees"] == {"bolt": {"5": 5}}
    # the rate comes again: no steps
    _, asked = lived(RLearning(), operator(1, rate=53.0, utilisation=1.0), state=state)
    assert [one.degree for one in asked[0]] == [5]


def test_the_interval_of_a_change_teaches_nothing() -> None:
    state, _ = lived(RLearning(), operator(4, rate=50.0, utilisation=1.0), operator(5, rate=50.0, utilisation=0.7))
    assert state["degrees"] == {}


def test_the_least_degree_that_was_enough_is_kept() -> None:
    state, _ = lived(
        RLearning(), *[operator(7, rate=50.0, utilisation=0.5)] * 2, *[operator(5, rate=51.0, utilisation=0.7)] * 2
    )
    assert state["degrees"] == {"bolt": {"5": 5}}
    state, _ = lived(RLearning(), *[operator(7, rate=50.0, utilisation=0.5)] * 2, state=state)
    assert state["degrees"] == {"bolt": {"5": 5}}


def test_an_idle_operator_of_one_replica_has_enough() -> None:
    state, _ = lived(RLearning(), *[operator(1, rate=0.0, utilisation=0.0)] * 2)
    assert state["degrees"] == {"bolt": {"0": 1}}
    state, asked = lived(RLearning(), *[operator(2, rate=0.0, utilisation=0.0)] * 2)
    assert state["degrees"] == {"bolt": {}}
    assert [[one.degree for one in found] for found in asked] == [[1], [1]]


def test_a_degree_that_is_no_longer_enough_is_forgotten() -> None:
    policy = RLearning(known="bolt 50:4 60:6")
    grows = [operator(4, rate=50.0, utilisation=1.0, backlog=waiting) for waiting in (10, 90)]
    state, asked = lived(policy, *grows)
    assert state["degrees"] == {"bolt": {"6": 6}}
    assert [[one.degree for one in found] for found in asked] == [[], [5]]


def test_a_queue_that_is_emptied_is_no_reason_to_forget() -> None:
    policy = RLearning(known="bolt 50:4")
    drains = [operator(4, rate=50.0, utilisation=1.0, backlog=waiting) for waiting in (90, 10)]
    state, asked = lived(policy, *drains)
    assert state["degrees"] == {"bolt": {"5": 4}}
    assert not any(asked)


def test_a_degree_that_is_more_than_enough_is_forgotten() -> None:
    policy = RLearning(known="bolt 50:4")
    state, asked = lived(policy, *[operator(4, rate=50.0, utilisation=0.1)] * 2)
    assert state["degrees"] == {"bolt": {}}
    assert [[one.degree for one in found] for found in asked] == [[], [3]]


@pytest.mark.parametrize(("degree", "used"), [(2, 1.0), (6, 0.1)])
def test_what_another_degree_shows_may_be_no_contradiction(degree: int, used: float) -> None:
    # too small at 2, too large at 6: 4 may still be right
    state, asked = lived(RLearning(known="bolt 50:4"), *[operator(degree, rate=50.0, utilisation=used)] * 2)
    assert state["degrees"] == {"bolt": {"5": 4}}
    assert [[one.degree for one in found] for found in asked] == [[4], [4]]


def test_the_input_is_averaged_over_the_window() -> None:
    # Five intervals of 10/s and one of 70/s: 20/s on average. A short peak hardly moves it.
    policy = RLearning(known="bolt 10:1 20:2 70:7")
    quiet, peak = operator(1, rate=10.0, utilisation=0.7), operator(1, rate=70.0, utilisation=1.0)
    _, asked = lived(policy, *[quiet] * 5, peak)
    assert [[one.degree for one in found] for found in asked] == [[]] * 5 + [[2]]
    _, asked = lived(RLearning(known="bolt 10:1 20:2 70:7", window=0.0), *[quiet] * 5, peak)
    assert [one.degree for one in asked[-1]] == [7]
    # An interval leaves the window after 60 s: six intervals of 70/s, and nothing is left of the 10/s.
    _, asked = lived(policy, *[quiet] * 5, *[peak] * 6)
    assert [one.degree for one in asked[-1]] == [7]


def test_times_of_another_run_do_not_count() -> None:
    policy = RLearning(known="bolt 10:1 70:7")
    state, _ = lived(policy, *[operator(1, rate=10.0, utilisation=0.7)] * 9)
    _, asked = lived(policy, operator(1, rate=70.0, utilisation=1.0), state=state)
    assert [one.degree for one in asked[0]] == [7]


def test_a_state_of_other_bins_is_not_used() -> None:
    state, _ = lived(RLearning(), *[operator(3, rate=50.0, utilisation=0.5)] * 2)
    state, _ = lived(RLearning(bin=50.0, known="bolt 100:2"), operator(3, rate=50.0, utilisation=0.5), state=state)
    assert state["degrees"] == {"bolt": {"2": 2}}


@pytest.mark.parametrize("word", ["50", "50:0", "50:", ":3", "-1:3", "fast:3", "1.2.3:4", "50:1.5", "inf:1"])
def test_rlearning_refuses_what_is_no_rule(word: str) -> None:
    with pytest.raises(OptionError, match="is not rate:degree, with a rate of 0 or more and a degree of 1 or more"):
        RLearning(known=f"bolt {word}")


def test_rlearning_checks_its_operators() -> None:
    with pytest.raises(OptionError, match="names 'bolt' twice"):
        RLearning(known="bolt 0:1; bolt 10:2")
    with pytest.raises(OptionError, match="'bolt' has no rates"):
        RLearning(known="bolt")
    check(RLearning(known="bolt 0:1; sink 0.5:2"), ["bolt", "sink"])
    with pytest.raises(OptionError, match="did you mean 'bolt'"):
        check(RLearning(known="blot 0:1"), ["bolt"])


@settings(max_examples=30)
@given(cost_ms=st.integers(10, 100), rates=st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_training_on_plateaus_finds_degrees_that_are_enough(cost_ms: int, rates: list[int]) -> None:
    policy, degree = RLearning(window=0.0), 1
    state: Any = policy.initial()
    for rate in rates:
        for _ in range(60):  # long enough for the most steps there can be, from 1 to 38
            used = min(1.0, rate * cost_ms / 1000 / degree)
            state, found = policy.decide(state, snapshot(operator(degree, rate=float(rate), utilisation=used)), RNG)
            degree = found[0].degree if found else degree
        assert state["degrees"]["bolt"][str(rate // 10)] == degree
        assert rate * cost_ms / 1000 / degree <= 0.8
        assert degree == 1 or rate * cost_ms / 1000 / degree >= 0.2


MAYBE = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 0.5, 1.0]))
COUNT = st.one_of(st.none(), st.integers(-5, 10**12))
OPERATORS = st.builds(
    OperatorSnapshot, name=st.sampled_from("abc"), degree=st.integers(0, 10**6), width=st.integers(0, 9), rows_in=COUNT,
    rows_out=COUNT, failures=COUNT, busy_s=MAYBE, rate=MAYBE, utilisation=MAYBE, backlog=COUNT, latency_ms=MAYBE, served=COUNT,
    limit=st.one_of(st.none(), st.integers(-1, 20)),
)  # fmt: skip


@settings(max_examples=80)
@given(
    measured=st.lists(st.lists(OPERATORS, max_size=3, unique_by=lambda one: one.name), min_size=1, max_size=5),
    slots=st.one_of(st.none(), st.integers(0, 9)), at=st.floats(allow_nan=True, allow_infinity=True),
)  # fmt: skip
def test_no_odd_snapshot_is_too_odd(measured: list[list[OperatorSnapshot]], slots: int | None, at: float) -> None:
    for policy in (Incremental(), Incremental(measure="ratio"), RLearning(), RLearning(known="a 0:3", window=0.0)):
        state = json.loads(json.dumps(policy.initial()))
        for operators in measured:
            now = snapshot(*operators, at=at, slots=slots, interval_s=0.0)
            before = json.dumps(state)
            after, found = policy.decide(state, now, RNG)
            assert json.dumps(state) == before, "a policy must not change the state that it was handed"
            state = json.loads(json.dumps(after, allow_nan=False))
            assert state == after
            for request in found:
                assert request.degree >= 1
                assert request.degree != now[request.operator].degree
                assert any(letter.isdigit() for letter in request.reason)
