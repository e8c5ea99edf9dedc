"""The policies without a model: the same degrees all the time, and degrees by time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.scale import ScalePolicy, check
from springtide.policy.scale.scripted import Scripted
from springtide.policy.scale.static import Static

RNG = np.random.default_rng(0)


def snapshot(at: float, **degrees: int) -> Snapshot:
    operators = tuple(
        OperatorSnapshot(name, degree, degree, 0, 0, 0, 0.0, None, None, None, None) for name, degree in degrees.items()
    )
    plan = Plan(degrees, sum(degrees.values()), degrees)
    return Snapshot(at, 1.0, plan, operators, (), None, None, None)


def wanted(policy: ScalePolicy, measured: Snapshot) -> dict[str, int]:
    _, requests = policy.decide(policy.initial(), measured, RNG)
    return {request.operator: request.degree for request in requests}


def test_static_asks_for_the_difference_only() -> None:
    policy = Static(degree=2, degrees="enrich=4, classify=1")
    assert wanted(policy, snapshot(0, enrich=1, classify=1, store=1)) == {"enrich": 4, "store": 2}
    assert wanted(policy, snapshot(9, enrich=4, classify=1, store=2)) == {}


def test_static_gives_the_numbers() -> None:
    _, (request,) = Static(degree=3).decide({}, snapshot(0, enrich=1), RNG)
    assert request == Request("enrich", 3, "the degree is set to 3, it has 1")


@pytest.mark.parametrize("text", ["enrich", "enrich=", "enrich=0", "enrich=-1", "enrich=two", "=3", "a=1,b=1.5"])
def test_static_refuses_what_is_no_degree(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not operator=degree with a degree of 1 or more"):
        Static(degrees=text)


def test_static_refuses_a_name_twice_and_a_degree_below_one() -> None:
    with pytest.raises(OptionError, match="names 'a' twice"):
        Static(degrees="a=1,a=2")
    with pytest.raises(OptionError, match=r"degree=0 is not allowed; .* at least 1"):
        Static(degree=0)


def test_operators_are_checked_beforehand() -> None:
    check(Static(degrees="enrich=2"), ["enrich", "classify"])
    with pytest.raises(OptionError, match="did you mean 'enrich'"):
        check(Static(degrees="enrihc=2"), ["enrich", "classify"])
    check(Scripted("enrich 0:1; * 0:2"), ["enrich", "classify"])
    with pytest.raises(OptionError, match="did you mean 'classify'"):
        check(Scripted("clasify 0:1"), ["enrich", "classify"])


def test_a_policy_without_a_check_needs_none() -> None:
    class Plain:
        name = "plain"

    check(Plain(), ["enrich"])  # type: ignore[arg-type]


def test_scripted_plays_its_steps() -> None:
    policy = Scripted("enrich 0:1 10:3 20:6 40:2; classify 0:1 20:2")
    degrees = [policy.wanted("enrich", at) for at in (0, 9.99, 10, 19, 20, 39.9, 40, 1e9)]
    assert degrees == [1, 1, 3, 3, 6, 6, 2, 2]
    assert policy.wanted("store", 50) is None
    assert wanted(policy, snapshot(25, enrich=3, classify=2, store=5)) == {"enrich": 6}


def test_scripted_gives_the_numbers() -> None:
    _, (request,) = Scripted("enrich 0:1 10:3").decide({}, snapshot(12.5, enrich=1), RNG)
    assert request.reason == "at 12.5 s the script says 3 since 10 s, it has 1"


def test_a_star_names_the_operators_without_a_line() -> None:
    policy = Scripted("* 0:2 5:4; enrich 0:1")
    assert wanted(policy, snapshot(6, enrich=3, classify=1, store=4)) == {"enrich": 1, "classify": 4}


def test_scripted_repeats() -> None:
    policy = Scripted("a 2:5 8:1", repeat=10)
    assert [policy.wanted("a", at) for at in (1, 2, 9, 11, 12, 19)] == [None, 5, 1, None, 5, 1]


def test_a_step_may_be_a_duration() -> None:
    assert Scripted("a 0:1 1m:2").wanted("a", 60) == 2


@pytest.mark.parametrize(
    ("script", "repeat", "said"),
    [
        ("", 0, "is empty"),
        (" ; ", 0, "is empty"),
        ("enrich", 0, "'enrich' has no steps"),
        ("enrich 0:1 ten:3", 0, "'enrich', step 2: 'ten:3' is not second:degree"),
        ("enrich 0:1 10", 0, "step 2: '10' is not second:degree"),
        (
            "enrich 0:0",
            0,
            "step 1: '0:0' is not second:degree, with a second of 0 or more and a degree of 1 or more",
        ),
        ("enrich -1:2", 0, "step 1: '-1:2'"),
        ("enrich 0:1.5", 0, "step 1: '0:1.5'"),
        ("enrich nan:1", 0, "step 1: 'nan:1'"),
        ("enrich 0:1 20:2 10:3", 0, "step 3: '10:3' is not later than 20 s"),
        ("enrich 0:1 20:2", 20, "step 2: '20:2' is never reached: the script starts again after 20 s"),
        ("enrich 0:1; enrich 5:1", 0, "names 'enrich' twice"),
    ],
)
def test_scripted_says_what_is_wrong_and_where(script: str, repeat: float, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        Scripted(script, repeat)
    assert said in str(raised.value)


def test_scripted_refuses_a_negative_repetition() -> None:
    with pytest.raises(OptionError, match="float in s, at least 0"):
        Scripted(repeat=-1)


@given(
    steps=st.dictionaries(st.integers(0, 1_000), st.integers(1, 50), min_size=1, max_size=8),
    at=st.floats(0, 2_000),
)
def test_scripted_has_the_degree_of_the_latest_step(steps: dict[int, int], at: float) -> None:
    policy = Scripted("op " + " ".join(f"{second}:{steps[second]}" for second in sorted(steps)))
    past = [second for second in steps if second <= at]
    assert policy.wanted("op", at) == (steps[max(past)] if past else None)
