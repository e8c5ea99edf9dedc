"""Guards: what each promises, kept whatever a policy asks for."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.chosen import named
from springtide.policy.guard import Guard
from springtide.policy.guard.bounds import Bounds
from springtide.policy.guard.cooldown import Cooldown
from springtide.policy.guard.effectiveness import Effectiveness
from springtide.policy.guard.excluded import Excluded
from springtide.policy.guard.guarded import Guarded
from springtide.policy.guard.hysteresis import Hysteresis
from springtide.policy.guard.max_step import MaxStep
from springtide.policy.guard.quota import Quota
from springtide.policy.guard.stabilisation import Stabilisation
from springtide.policy.registry import create, describe, validate
from springtide.policy.scale import State, check
from springtide.policy.scale.static import Static

RNG = np.random.default_rng(0)
ALL: tuple[Guard, ...] = (
    Bounds(), Cooldown(), Effectiveness(), Excluded(), Hysteresis(), MaxStep(), Quota(most=20), Stabilisation(),
)  # fmt: skip


def by_name(guard: Guard) -> str:
    return guard.name


def operator(name: str, degree: int, **measured: Any) -> OperatorSnapshot:
    usual: dict[str, Any] = {
        "width": degree, "rows_in": 100, "rows_out": 100, "failures": 0, "busy_s": 1.0, "rate": 10.0, "utilisation": 0.5,
        "backlog": 0, "latency_ms": 5.0, "served": 100,
    }  # fmt: skip
    return OperatorSnapshot(name, degree, **{**usual, **measured})


def snapshot(*operators: OperatorSnapshot, at: float = 0.0, interval_s: float = 10.0, **measured: Any) -> Snapshot:
    degrees = {o.name: o.degree for o in operators}
    plan = Plan(degrees, max(1, sum(degrees.values())), degrees)
    return Snapshot(at, interval_s, plan, operators, (), None, None, None, **measured)


def has(**degrees: int) -> Snapshot:
    return snapshot(*(operator(name, degree) for name, degree in degrees.items()))


def ask(operator: str, degree: int, score: float = 0.0) -> Request:
    return Request(operator, degree, f"wants {degree}", score)


def reviewed(guard: Guard, measured: Snapshot, *requests: Request) -> dict[str, int]:
    _, passed = guard.review(guard.initial(), measured, requests)
    return {request.operator: request.degree for request in passed}


def played(guard: Guard, wanted: Sequence[int | None], degree: int = 1, interval_s: float = 10.0) -> list[int]:
    """The degree after each review of one operator, of which so much is wanted; every request that passes is granted."""
    state, degrees = guard.initial(), []
    for n, want in enumerate(wanted):
        asked = () if want is None or want == degree else (ask("a", want),)
        measured = snapshot(operator("a", degree), at=n * interval_s, interval_s=interval_s)
        state, passed = guard.review(json.loads(json.dumps(state, allow_nan=False)), measured, asked)
        degree = passed[0].degree if passed else degree
        degrees.append(degree)
    return degrees


# Each by hand


def test_bounds() -> None:
    guard = Bounds(least=2, most=6, by_name="b=1-3")
    assert reviewed(guard, has(a=4, b=2), ask("a", 9), ask("b", 1)) == {"a": 6, "b": 1}
    assert reviewed(guard, has(a=4, b=2), ask("a", 1), ask("b", 9)) == {"a": 2, "b": 3}
    assert reviewed(guard, has(a=6), ask("a", 9)) == {}
    assert reviewed(guard, has(a=4, b=2)) == {}


def test_bounds_bring_back_what_is_outside() -> None:
    guard = Bounds(least=2, most=6)
    assert reviewed(guard, has(a=1, b=9, c=3)) == {"a": 2, "b": 6}
    _, (request,) = guard.review({}, has(a=1), ())
    assert request.reason == "it has 1; it gets 2, not 1: its bounds are 2 to 6"


def test_bounds_ask_for_no_more_than_an_operator_can_use() -> None:
    assert reviewed(Bounds(least=4), snapshot(operator("a", 2, limit=2))) == {}
    assert reviewed(Bounds(least=4), snapshot(operator("a", 1, limit=2))) == {"a": 2}


@pytest.mark.parametrize("text", ["a", "a=2", "a=0-3", "a=3-2", "=1-2", "a=1-2-3", "a=x-2"])
def test_bounds_refuse_what_is_no_bound(text: str) -> None:
    with pytest.raises(OptionError, match="is not operator=least-most"):
        Bounds(by_name=text)


def test_bounds_refuse_a_contradiction() -> None:
    with pytest.raises(OptionError, match="names 'a' twice"):
        Bounds(by_name="a=1-2,a=1-3")
    with pytest.raises(OptionError, match="least=3 is above most=2"):
        Bounds(least=3, most=2)


def test_a_changed_request_says_what_was_wanted_and_why_not() -> None:
    _, (request,) = Bounds(most=6).review({}, has(a=4), (Request("a", 9, "input 900/s, 100/s per replica: 9", 0.7),))
    assert request == Request("a", 6, "input 900/s, 100/s per replica: 9; it gets 6, not 9: its bounds are 1 to 6", 0.7)


def test_cooldown() -> None:
    # every 10 s; the first change is at 0 s, so the next scale-out is at 30 s, and then no scale-in before 90 s
    guard = Cooldown(before_out=30, before_in=60)
    assert played(guard, [2, 3, 3, 3, 1, 1, 1, 1, 1, 1], 1) == [2, 2, 2, 3, 3, 3, 3, 3, 3, 1]


def test_a_request_that_was_refused_starts_no_rest() -> None:
    guard = Cooldown(before_out=30)
    state, passed = guard.review(guard.initial(), has(a=1), (ask("a", 2),))
    assert passed
    state, passed = guard.review(state, has(a=1), (ask("a", 2),))
    assert passed


def test_intervals_that_floats_cannot_add_up_still_make_a_minute() -> None:
    degrees = played(Cooldown(before_out=60), [2] + [3] * 700, 1, interval_s=0.1)
    assert degrees.index(3) == 600


def test_a_rest_outlives_a_restart_and_no_longer() -> None:
    # `at` begins again at 0 with a new run; the guard's own clock goes on
    guard = Cooldown(before_out=30)
    state, _ = guard.review(guard.initial(), snapshot(operator("a", 1), at=5_000), ())
    state, _ = guard.review(state, snapshot(operator("a", 2), at=5_010), (ask("a", 3),))
    state, passed = guard.review(state, snapshot(operator("a", 2), at=0), (ask("a", 3),))
    assert not passed
    _, passed = guard.review(state, snapshot(operator("a", 2), at=10), (ask("a", 3),))
    assert passed


def test_stabilisation() -> None:
    # 8 is right until 30 s, then less is wanted. At 90 s the 8 of 30 s still counts; at 100 s the largest is the 5 of 50 s, at
    # 120 s the 4 of 60 s.
    wanted = [None, None, None, None, 3, 5, 4, 4, 4, 4, 4, 4, 4]
    assert played(Stabilisation(window=60), wanted, 8) == [8] * 10 + [5, 5, 4]


def test_stabilisation_lets_scale_outs_pass_and_counts_them() -> None:
    assert played(Stabilisation(window=20), [9, 2, 2, 2, 2], 3) == [9, 9, 9, 2, 2]


def test_a_restart_is_no_reason_to_scale_in() -> None:
    assert played(Stabilisation(window=20), [2, 2, 2, 2], 5) == [5, 5, 5, 2]
    assert played(Stabilisation(window=0), [2, 2, 1], 5) == [5, 2, 1]


def test_hysteresis() -> None:
    guard = Hysteresis(share=0.1)
    for degree, wanted, passes in ((10, 11, 1), (10, 9, 1), (20, 21, 0), (20, 19, 0), (20, 22, 1), (20, 18, 1), (1, 2, 1)):
        assert reviewed(guard, has(a=degree), ask("a", wanted)) == ({"a": wanted} if passes else {})


def test_max_step() -> None:
    guard = MaxStep(replicas_out=2, share_out=0.5, replicas_in=1, share_in=0.25)
    assert [guard.reach(degree) for degree in (1, 2, 4, 10)] == [(1, 3), (1, 4), (3, 6), (8, 15)]
    assert reviewed(guard, has(a=4, b=10, c=4), ask("a", 40), ask("b", 1), ask("c", 5)) == {"a": 6, "b": 8, "c": 5}
    _, (request,) = guard.review({}, has(a=4), (ask("a", 40),))
    assert request.reason == "wants 40; it gets 6, not 40: at once 4 become 3 to 6"


def test_quota() -> None:
    both = has(a=4, b=4)
    assert reviewed(Quota(most=10), both, ask("a", 8, 0.2), ask("b", 8, 0.9)) == {"b": 6}
    assert reviewed(Quota(most=13), both, ask("a", 8, 0.2), ask("b", 8, 0.9)) == {"a": 5, "b": 8}
    assert reviewed(Quota(most=10), both, ask("a", 8), ask("b", 8)) == {"a": 6}  # equal scores: the first asked
    assert reviewed(Quota(most=8), both, ask("b", 6, 0.9), ask("a", 2, 0.1)) == {"a": 2, "b": 6}  # scale-ins make room
    assert reviewed(Quota(most=8), both, ask("b", 6, 0.9)) == {}


def test_a_quota_is_at_most_the_slots_of_the_run() -> None:
    two = (operator("a", 2), operator("b", 2))
    assert reviewed(Quota(), snapshot(*two, slots=6), ask("a", 9)) == {"a": 4}
    assert reviewed(Quota(most=5), snapshot(*two, slots=6), ask("a", 9)) == {"a": 3}
    assert reviewed(Quota(most=9), snapshot(*two, slots=6), ask("a", 9)) == {"a": 4}
    assert reviewed(Quota(), snapshot(*two), ask("a", 9)) == {"a": 9}


def test_a_quota_that_is_exceeded_already_brings_the_largest_down() -> None:
    # 16 of 11: cut at 4 they are 4 + 2 + 4 = 10, and one is left for the first that lost
    assert reviewed(Quota(most=11), has(a=9, b=2, c=5)) == {"a": 5, "c": 4}
    assert reviewed(Quota(most=2), has(a=3, b=1, c=1)) == {"a": 1}  # one each, even if that is more
    _, (request, *_) = Quota(most=11).review({}, has(a=9, b=2, c=5), ())
    assert request.reason == "it has 9; it gets 5, not 9: all operators together have at most 11"


def busy(degree: int, per_s: float | None, backlog: int | None, **more: Any) -> Snapshot:
    return snapshot(operator("a", degree, served=None if per_s is None else round(per_s * 10), backlog=backlog), **more)


def trial(guard: Effectiveness, *intervals: Snapshot) -> list[bool]:
    """Whether one more replica is allowed after each interval."""
    state, found = guard.initial(), []
    for measured in intervals:
        state = json.loads(json.dumps(state, allow_nan=False))
        state, passed = guard.review(state, measured, (ask("a", measured["a"].degree + 1),))
        found.append(bool(passed))
    return found


def test_effectiveness() -> None:
    guard = Effectiveness(threshold=0.1, pause=20)
    # from 2 to 4 at 100/s: 100/s more are expected, so 1,000 have to wait at the end of 10 s, and 10/s more are enough
    before = busy(2, 100, 5_000)
    assert trial(guard, before, busy(4, 105, 3_000)) == [True, False]
    assert trial(guard, before, busy(4, 110, 3_000)) == [True, True]
    assert trial(guard, before, busy(4, 105, 999)) == [True, True]  # nothing was there to serve
    assert trial(guard, before, busy(4, 90, 1_000)) == [True, False]
    assert trial(guard, before, *[busy(4, 105, 3_000)] * 3) == [True, False, False, True]  # held back for 20 s


def test_a_scale_out_is_judged_when_its_replicas_are_there() -> None:
    before, after = busy(2, 100, 5_000), busy(4, 100, 5_000)
    assert trial(Effectiveness(settle=20), before, after, after, after) == [True, True, True, False]
    later = busy(4, 100, 5_000, starting_s=15.0)
    assert trial(Effectiveness(), before, later, later, later) == [True, True, True, False]  # the first to begin after 15 s


def test_a_missing_measurement_judges_nothing() -> None:
    before, after = busy(2, 100, 5_000), busy(4, 100, 5_000)
    assert trial(Effectiveness(), before, busy(4, None, 5_000), busy(4, 100, None), after) == [True, True, True, False]
    assert trial(Effectiveness(), busy(2, None, 5_000), after, after) == [True, True, True]


def test_a_scale_in_ends_a_trial_and_is_never_held_back() -> None:
    guard = Effectiveness(settle=10)
    before, after = busy(2, 100, 5_000), busy(4, 100, 5_000)
    assert trial(guard, before, after, busy(3, 100, 5_000), busy(3, 100, 5_000)) == [True] * 4
    state, _ = Effectiveness().review(Effectiveness().initial(), before, ())
    state, passed = Effectiveness().review(state, after, (ask("a", 3),))
    assert [request.degree for request in passed] == [3]


def test_excluded_since_the_start() -> None:
    guard = Excluded(periods="0-60; 10m-15m")
    assert [guard.excludes(at) for at in (0, 59.9, 60, 599, 600, 899, 900)] == [True, True, False, False, True, True, False]
    assert reviewed(guard, snapshot(operator("a", 1), at=30), ask("a", 2)) == {}
    assert reviewed(guard, snapshot(operator("a", 1), at=90), ask("a", 2)) == {"a": 2}
    assert not Excluded().excludes(0)


def test_excluded_by_day() -> None:
    hour, day = 3600, 86_400
    guard = Excluded(daily="08:00-09:30 Mo-Fr; 23:00-01:00 Su", started="2026-03-02T07:00:00+01:00")  # a Monday, 7:00
    assert guard.excludes(hour)  # Monday, 8:00
    assert not guard.excludes(2.5 * hour)  # 9:30
    assert guard.excludes(4 * day + hour)  # Friday
    assert not guard.excludes(5 * day + hour)  # Saturday
    assert not guard.excludes(6 * day + 15.9 * hour)  # Sunday, 22:54
    assert guard.excludes(6 * day + 16 * hour)  # Sunday, 23:00
    assert guard.excludes(6 * day + 17.9 * hour)  # Monday, 0:54, in the next week
    assert not guard.excludes(6 * day + 18 * hour)  # Monday, 1:00
    assert not guard.excludes(17 * hour)  # Tuesday, 0:00
    late = Excluded(daily="23:00-01:00 Su", started="2026-03-02T00:30:00")  # Monday, 0:30: it began before the run
    assert late.excludes(0) and not late.excludes(hour)


def test_excluded_days() -> None:
    assert Excluded(daily="00:00-24:00", started="2026-03-02").excludes(12_345)
    weekend = Excluded(daily="00:00-24:00 Sa-Mo", started="2026-03-02")
    assert [weekend.excludes(day * 86_400 + 1) for day in range(7)] == [True, False, False, False, False, True, True]
    some = Excluded(daily="00:00-24:00 Tu, Th", started="2026-03-02")
    assert [some.excludes(day * 86_400 + 1) for day in range(7)] == [False, True, False, True, False, False, False]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"periods": "60"}, "is not begin-end"),
        ({"periods": "60-30"}, "is not begin-end"),
        ({"periods": "a-b"}, "is not begin-end"),
        ({"daily": "08:00-09:00"}, "needs started"),
        ({"daily": "8-9 Mo", "started": "2026-03-02"}, "is not HH:MM-HH:MM"),
        ({"daily": "08:00 Mo", "started": "2026-03-02"}, "is not HH:MM-HH:MM"),
        ({"daily": "08:00-08:00 Mo", "started": "2026-03-02"}, "is not HH:MM-HH:MM"),
        ({"daily": "08:00-25:00 Mo", "started": "2026-03-02"}, "is not HH:MM-HH:MM"),
        ({"daily": "08:60-09:00 Mo", "started": "2026-03-02"}, "is not HH:MM-HH:MM"),
        ({"daily": "08:00-09:00 Mon", "started": "2026-03-02"}, "the days are Mo, Tu, We, Th, Fr, Sa, Su"),
        ({"started": "today"}, "started='today' is no time"),
    ],
)
def test_excluded_refuses_what_is_no_period(parameters: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        Excluded(**parameters)
    assert said in str(raised.value)


def test_what_is_a_whole_number_but_for_rounding_counts_as_one() -> None:
    """0.14 · 50 is 7.000000000000001, and 0.29 · 100 is 28.999999999999996."""
    assert Hysteresis(share=0.14).review({}, has(a=50), (ask("a", 57),))[1] == (ask("a", 57),)
    assert MaxStep(share_in=0.29).reach(100)[0] == 71
    assert MaxStep(share_out=0.29).reach(100)[1] == 129


# What holds for every guard


def test_every_guard_is_a_plugin() -> None:
    for guard in ALL:
        cls = type(guard)
        made: Any = create("guard", f"{cls.__module__}:{cls.__name__}")
        validate(made)
        assert made == cls()
        assert pickle.loads(pickle.dumps(made)) == made
        shown = describe(cls)
        assert shown["kind"] == "guard" and shown["summary"] and shown["source"]
        assert all(given["help"] for given in shown["parameters"])
    assert len({guard.name for guard in ALL}) == len(ALL)


@pytest.mark.parametrize("guard", ALL, ids=by_name)
def test_requests_for_what_was_not_measured_pass(guard: Guard) -> None:
    stranger = ask("stranger", 3)
    assert guard.review(guard.initial(), has(a=1), (stranger,))[1] == (stranger,)


ODD = [
    snapshot(),
    snapshot(operator("a", 1), at=math.nan, interval_s=0.0),
    snapshot(operator("a", 10**6, served=None, backlog=None), interval_s=math.nan),
    snapshot(operator("a", 0), interval_s=math.inf, at=math.inf),
    snapshot(operator("a", 2, served=10**18), interval_s=1e-300, at=-1.0),
]


@pytest.mark.parametrize("guard", ALL, ids=by_name)
def test_odd_snapshots(guard: Guard) -> None:
    state = guard.initial()
    for n, odd in enumerate(ODD * 2):
        before = json.dumps(state, allow_nan=False)
        state, passed = guard.review(state, odd, (ask("a", 1 + n),) if odd.operators else ())
        assert json.loads(json.dumps(state, allow_nan=False)) == state
        assert guard.review(json.loads(before), odd, (ask("a", 1 + n),) if odd.operators else ()) == (state, passed)


# What each promises, around a policy that wants anything


@dataclass(frozen=True)
class Anything:
    """Wants any degree for any operator, or nothing."""

    name: ClassVar[str] = "anything"

    most: int = 30

    def initial(self) -> State:
        return {"asked": 0}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        degrees = rng.integers(1, self.most + 1, len(snapshot.operators))
        asked = rng.random(len(snapshot.operators)) < 0.7
        requests = tuple(
            Request(o.name, int(degree), f"wants {degree}", float(rng.random()))
            for o, degree, one in zip(snapshot.operators, degrees, asked, strict=True)
            if one and degree != o.degree
        )
        return {"asked": state["asked"] + len(requests)}, requests


@dataclass(frozen=True)
class Step:
    """One interval: when it ended, what was there, what the policy wanted, and what there is afterwards."""

    at: float
    before: Mapping[str, int]
    wanted: Mapping[str, int]
    after: Mapping[str, int]


INTERVAL_S = 10.0


def story(guards: Sequence[Guard], seed: int, start: Mapping[str, int], served: float = 10.0, steps: int = 40) -> list[Step]:
    """Guards around a policy that wants anything; all that passes is granted. Whatever the degree, ``served`` is per second."""
    policy, rng, seen = Guarded(Anything(), tuple(guards)), np.random.default_rng(seed), []
    state, degrees = policy.initial(), dict(start)
    for n in range(1, steps + 1):
        at = n * INTERVAL_S
        operators = (operator(name, d, served=round(10 * served), backlog=10**9) for name, d in degrees.items())
        measured = snapshot(*operators, at=at, interval_s=INTERVAL_S)
        before = json.dumps(state, allow_nan=False)
        twin = np.random.default_rng()
        twin.bit_generator.state = rng.bit_generator.state
        _, asked = Anything().decide({"asked": 0}, measured, twin)
        state, requests = policy.decide(state, measured, rng)
        assert json.loads(json.dumps(state, allow_nan=False)) == state
        assert json.dumps(json.loads(before)) == before
        assert len({request.operator for request in requests}) == len(requests)
        wanted = {**degrees, **{request.operator: request.degree for request in asked}}
        for request in requests:
            assert request.degree >= 1
            assert request.degree != degrees[request.operator], "a request changes something"
            if request.degree != wanted[request.operator]:
                assert f"it gets {request.degree}, not " in request.reason
        after = {**degrees, **{request.operator: request.degree for request in requests}}
        seen.append(Step(at, dict(degrees), wanted, dict(after)))
        degrees = after
    return seen


seeds = st.integers(0, 2**32)
starts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1)
few = settings(max_examples=30)


@few
@given(seed=seeds, start=starts, least=st.integers(1, 10), more=st.integers(0, 20))
def test_bounds_are_never_left(seed: int, start: dict[str, int], least: int, more: int) -> None:
    for step in story([Bounds(least, least + more, by_name="a=3-5")], seed, start):
        for name, degree in step.after.items():
            low, high = (3, 5) if name == "a" else (least, least + more)
            assert low <= degree <= high
            if low <= step.wanted[name] <= high:
                assert degree == step.wanted[name]


@few
@given(seed=seeds, start=starts, before_out=st.integers(0, 8), before_in=st.integers(0, 8))
def test_a_rest_is_kept(seed: int, start: dict[str, int], before_out: int, before_in: int) -> None:
    guard = Cooldown(before_out * INTERVAL_S, before_in * INTERVAL_S)
    last: dict[str, float] = {}
    for step in story([guard], seed, start):
        for name, degree in step.after.items():
            rest = guard.before_out if step.wanted[name] > step.before[name] else guard.before_in
            rested = step.at - last.get(name, -math.inf) >= rest
            assert degree == (step.wanted[name] if rested else step.before[name])
            if degree != step.before[name]:
                last[name] = step.at


@few
@given(seed=seeds, start=starts, window=st.integers(0, 8))
def test_scale_ins_go_to_the_largest_wanted_in_the_window(seed: int, start: dict[str, int], window: int) -> None:
    seen = story([Stabilisation(window * INTERVAL_S)], seed, start)
    for n, step in enumerate(seen):
        for name, degree in step.after.items():
            recent = [past.wanted[name] for past in seen[max(0, n - window) : n + 1]]
            recent += [start[name]] if n <= window else []  # what was there at first counts as wanted then
            assert degree == max(step.wanted[name], min(step.before[name], max(recent)))


@few
@given(seed=seeds, start=starts, share=st.floats(0, 1))
def test_no_change_is_small(seed: int, start: dict[str, int], share: float) -> None:
    for step in story([Hysteresis(share)], seed, start):
        for name, degree in step.after.items():
            worth = abs(step.wanted[name] - step.before[name]) >= share * step.before[name] - 1e-9
            assert degree == (step.wanted[name] if worth else step.before[name])


@few
@given(
    seed=seeds, start=starts, out=st.integers(1, 5), share_out=st.floats(0, 2), into=st.integers(1, 5), share_in=st.floats(0, 1)
)
def test_no_step_is_too_large(
    seed: int, start: dict[str, int], out: int, share_out: float, into: int, share_in: float
) -> None:  # fmt: skip
    for step in story([MaxStep(out, share_out, into, share_in)], seed, start):
        for name, degree in step.after.items():
            before, wanted = step.before[name], step.wanted[name]
            assert degree - before <= max(out, share_out * before + 1e-9)
            assert before - degree <= max(into, share_in * before + 1e-9)
            assert min(before, wanted) <= degree <= max(before, wanted)
            assert degree != before or wanted == before, "there is always some progress"


@few
@given(seed=seeds, start=starts, most=st.integers(1, 60))
def test_a_quota_is_never_exceeded(seed: int, start: dict[str, int], most: int) -> None:
    for step in story([Quota(most)], seed, start):
        total = sum(step.after.values())
        assert total <= max(most, len(start))
        for name, degree in step.after.items():
            assert degree <= max(step.before[name], step.wanted[name])
            assert degree >= 1
        if total < most:  # nobody is refused while there is room
            assert all(degree >= min(step.wanted[name], step.before[name]) for name, degree in step.after.items())
            if sum(step.before.values()) <= most:
                assert step.after == step.wanted


@few
@given(seed=seeds, start=starts, pause=st.integers(1, 10))
def test_what_changes_nothing_is_not_repeated(seed: int, start: dict[str, int], pause: int) -> None:
    # 10/s are served whatever the degree, and plenty wait. A scale-out is found to have changed nothing one interval later.
    found: dict[str, float] = {}
    for step in story([Effectiveness(pause=pause * INTERVAL_S)], seed, start):
        for name, degree in step.after.items():
            if degree > step.before[name]:
                assert step.at >= found.get(name, -math.inf) + pause * INTERVAL_S
                found[name] = step.at + INTERVAL_S
            elif step.wanted[name] < step.before[name]:
                assert degree == step.wanted[name]
            elif step.wanted[name] > step.before[name]:
                assert found[name] <= step.at < found[name] + pause * INTERVAL_S


@few
@given(seed=seeds, start=starts, begin=st.integers(0, 30), length=st.integers(1, 10))
def test_nothing_changes_in_an_excluded_period(seed: int, start: dict[str, int], begin: int, length: int) -> None:
    first, end = begin * INTERVAL_S, (begin + length) * INTERVAL_S
    for step in story([Excluded(periods=f"{first:g}-{end:g}")], seed, start):
        assert step.after == (step.before if first <= step.at < end else step.wanted)


@few
@given(seed=seeds, start=starts, order=st.permutations(ALL))
def test_any_guards_stand_in_any_order(seed: int, start: dict[str, int], order: list[Guard]) -> None:
    last: Guard = Bounds(2, 9)
    for step in story([*order, last], seed, start):
        assert all(2 <= degree <= 9 for degree in step.after.values())


# A policy behind guards


def test_a_guarded_policy_is_a_policy() -> None:
    policy = Guarded(Static(degree=9), (MaxStep(replicas_out=3, share_out=0), Bounds(most=5)))
    assert policy.name == "static"
    state, degree, degrees = policy.initial(), 1, []
    for _ in range(3):
        state, requests = policy.decide(state, has(a=degree), RNG)
        degree = requests[0].degree if requests else degree
        degrees.append(degree)
    assert degrees == [4, 5, 5]
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_the_reason_tells_the_whole_way() -> None:
    policy = Guarded(Static(degree=9), (MaxStep(replicas_out=5, share_out=0), Bounds(most=4)))
    _, (request,) = policy.decide(policy.initial(), has(a=1), RNG)
    assert request.reason == (
        "the degree is set to 9, it has 1; it gets 6, not 9: at once 1 become 1 to 6; it gets 4, not 6: its bounds are 1 to 4"
    )


def test_operators_are_checked_in_policy_and_guards() -> None:
    policy = Guarded(Static(degrees="enrich=2"), (Cooldown(), Bounds(by_name="classify=1-2")))
    check(policy, ["enrich", "classify"])
    with pytest.raises(OptionError, match="'static': degrees names 'enrich'"):
        check(policy, ["classify"])
    with pytest.raises(OptionError, match="'bounds': by_name names 'classify'"):
        check(policy, ["enrich"])


def test_a_guard_may_stand_twice_and_join_later() -> None:
    twice = Guarded(Anything(), (Cooldown(10, 10), Bounds(), Cooldown(20, 20)))
    assert list(twice.initial()["guards"]) == ["0 cooldown", "1 bounds", "2 cooldown"]
    state, _ = Guarded(Anything(), (Cooldown(10, 10),)).decide({"policy": {"asked": 0}, "guards": {}}, has(a=1), RNG)
    state, _ = twice.decide(state, has(a=2), RNG)
    assert list(state["guards"]) == ["0 cooldown", "1 bounds", "2 cooldown"]


def test_guards_are_asked_when_the_policy_is_silent() -> None:
    policy = Guarded(Static(degree=1), (Bounds(least=3),))
    _, (request,) = policy.decide(policy.initial(), has(a=1), RNG)
    assert request.degree == 3


# What is held back is told


def held_back(guard: Guard, *shown: Snapshot, wants: int) -> list[list[str]]:
    """Of each interval what was newly told, in words."""
    policy, found = Guarded(Static(degree=wants), (guard,)), []
    state = policy.initial()
    for one in shown:
        state, _ = policy.decide(json.loads(json.dumps(state)), one, RNG)
        found.append([f"{entry['refused']['guard']}: {entry['reason']}" for entry in state["told"]])
    return found


def test_every_guard_says_why_it_held_something_back() -> None:
    at = replace(has(a=10), at=20.0)
    assert held_back(Excluded(periods="10-30s"), at, wants=3) == [
        ["excluded: 20 s after the start is in a period in which nothing changes: 10-30s"]
    ]
    assert held_back(Hysteresis(0.3), has(a=10), wants=11) == [["hysteresis: a change by 1 is less than 0.3 of 10"]]
    assert held_back(Stabilisation(60), has(a=10), wants=3) == [["stabilisation: 10 were wanted in the last 60 s, it has 10"]]
    assert held_back(Bounds(most=10), has(a=10), wants=12) == [["bounds: its bounds are 1 to 10"]]
    assert held_back(Quota(most=10), has(a=10), wants=12) == [
        ["quota: all operators together have at most 10, and none is left"]
    ]
    assert held_back(Never(), has(a=10), wants=12) == [["never: it refuses the request"]]
    assert held_back(MaxStep(), has(a=10), wants=99) == [[]]  # it lets some of it pass


def test_effectiveness_says_for_how_long() -> None:
    """From 2 to 4 replicas nothing more is served, though plenty wait."""
    shown = [
        snapshot(operator("a", n, served=1_000, backlog=10**6), at=10.0 * i, interval_s=10.0) for i, n in enumerate((2, 4, 4))
    ]
    found = held_back(Effectiveness(pause=100), *shown, wants=8)
    assert found == [[], ["effectiveness: its last scale-out changed nothing; none for another 100 s"], []]


def test_a_veto_is_told_once_while_it_goes_on() -> None:
    """Another number is the same wish; silence of up to a minute does not end it; another direction is another one."""
    guard, found, state = Never(), [], None
    for wants in (5, 6, 2, 2, 5, *[3] * 5, 5, *[3] * 6, 5):
        policy = Guarded(Static(degree=wants), (guard,))
        state, _ = policy.decide(state or policy.initial(), snapshot(operator("a", 3), interval_s=10.0), RNG)
        found.append([entry["refused"]["after"] for entry in state["told"]])
    assert found == [[5], [], [2], [], [], *[[]] * 5, [], *[[]] * 6, [5]]


def test_what_passed_and_is_held_back_again_is_told_again() -> None:
    found, state = [], None
    for but in ("", "a", ""):
        policy = Guarded(Static(degree=5), (Never(but),))
        state, _ = policy.decide(state or policy.initial(), has(a=3), RNG)
        found.append(len(state["told"]))
    assert found == [1, 0, 1]


# Of one's own


@dataclass(frozen=True)
class Never:
    """Lets nothing pass."""

    kind: ClassVar[str] = "guard"
    name: ClassVar[str] = "never"
    source: ClassVar[str] = "tests"
    summary: ClassVar[str] = "lets nothing pass"

    but: str = ""

    def initial(self) -> State:
        return {}

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        return state, tuple(request for request in requests if request.operator == self.but)


def test_a_guard_of_ones_own_is_named_by_module_and_class() -> None:
    found = [named("guard", text) for text in ("policy.guard.test_guards:Never", "policy.guard.test_guards:Never:but=a")]
    assert [type(one).__name__ for one in found] == ["Never", "Never"] and [one.but for one in found] == ["", "a"]
    with pytest.raises(OptionError, match="'30s' is not parameter=value"):
        named("guard", "cooldown:30s")
    with pytest.raises(OptionError, match="no guard policy is named 'colldown'"):
        named("guard", "colldown:before_out=30s")
