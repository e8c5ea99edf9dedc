"""What holds for every scaling policy, forecaster and guard, whoever wrote it: all of the registry, asked the same."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from springtide.apps.lines import line
from springtide.model.plan import Plan, Request
from springtide.model.rate import Rate
from springtide.model.report import Latency
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy import registry
from springtide.sim import simulate

BY_THE_CLOCK = ("static", "scripted")
"""They look at no measurement, so a missing one does not keep them from asking."""

POLICIES = [cls for cls in registry.available("scale") if not getattr(cls, "simulator_only", False)]
FORECASTERS, GUARDS = registry.available("forecast"), registry.available("guard")
MODES = ("continuous", "micro-batch")

policies = pytest.mark.parametrize("policy", [cls() for cls in POLICIES], ids=lambda one: one.name)
forecasters = pytest.mark.parametrize("forecaster", [cls() for cls in FORECASTERS], ids=lambda one: one.name)
guards = pytest.mark.parametrize("guard", [cls() for cls in GUARDS], ids=lambda one: one.name)
modes = pytest.mark.parametrize("mode", MODES)

Decided = tuple[Any, list[tuple[Request, ...]]]


@cache
def recorded(mode: str) -> tuple[Snapshot, ...]:
    """Two minutes of two operators under a wave, in intervals of 5 s, as the loop hands them to a policy."""
    wave = Rate(tuple(5.0 * i for i in range(24)), tuple(800 + 700 * math.sin(i / 3) for i in range(24)), 120.0)
    slots = 30 if mode == "continuous" else 12
    outcome = simulate(
        line(2, cost_s=0.004), trace=wave, policy="threshold", interval=5.0, target=0.25, max_slots=slots, mode=mode
    )
    return tuple(replace(snapshot, target_s=0.25, slots=slots, trigger_s=0.0, starting_s=0.0) for snapshot in outcome.snapshots)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def played(policy: Any, snapshots: Sequence[Snapshot], seed: int = 0, state: Any = None) -> Decided:
    state, rng, found = policy.initial() if state is None else state, np.random.default_rng(seed), []
    for snapshot in snapshots:
        state, requests = policy.decide(state, snapshot, rng)
        found.append(requests)
    return state, found


def check_bounds(snapshot: Snapshot, requests: Sequence[Request]) -> None:
    """One request an operator at most, for one that exists, a whole degree that it and the run can have, and a reason."""
    assert len({request.operator for request in requests}) == len(requests)
    for request in requests:
        has = snapshot[request.operator]
        most = min(limit for limit in (has.limit, snapshot.slots, 10**9) if limit is not None)
        assert isinstance(request.degree, int)
        assert 1 <= request.degree <= max(1, most)
        assert request.degree != has.degree
        assert request.reason
        assert math.isfinite(request.score)


def with_operators(snapshot: Snapshot, **values: Any) -> Snapshot:
    return replace(snapshot, operators=tuple(replace(operator, **values) for operator in snapshot.operators))


def with_inputs(snapshot: Snapshot, count: Any) -> Snapshot:
    made = (replace(o, inputs=tuple((name, count) for name, _ in o.inputs)) for o in snapshot.operators)
    return replace(snapshot, operators=tuple(made))


def blind(snapshot: Snapshot, value: Any) -> Snapshot:
    """Nothing sound was measured: all of it is ``value``, which is none."""
    names = ("rows_in", "rows_out", "failures", "busy_s", "rate", "utilisation", "backlog", "latency_ms", "served")
    seen = with_operators(snapshot, **dict.fromkeys(names, value))
    sources = tuple(replace(source, rows=value, arrivals=(), arrival_rate=value, backlog=value) for source in snapshot.sources)
    return replace(seen, rate=value, backlog=value, latency=None, sources=sources, batches=())


NO_VALUES: Mapping[str, Any] = {"none": None, "nan": math.nan, "infinite": math.inf, "negative": -1.0}


def odd(snapshot: Snapshot) -> dict[str, Snapshot]:
    """Snapshots that a run should not bring, but might."""
    huge = {"served": 10**18, "busy_s": 1e18, "rate": 1e18, "backlog": 10**18, "utilisation": 1e9}
    return {
        "no operators": replace(snapshot, operators=(), sources=()),
        "no sources": replace(snapshot, sources=()),
        "no interval": replace(snapshot, interval_s=0.0),
        "no time": replace(snapshot, interval_s=math.nan),
        "a negative interval": replace(snapshot, interval_s=-5.0),
        "the shortest interval": replace(snapshot, interval_s=1e-300),
        "late": replace(snapshot, at=-100.0),
        "at no time": replace(snapshot, at=math.nan),
        "nobody is read": with_operators(snapshot, inputs=()),
        "a stranger is read": with_operators(snapshot, inputs=(("nobody", 5),)),
        "in the wrong order": replace(snapshot, operators=snapshot.operators[::-1]),
        "huge": replace(with_operators(snapshot, **huge), backlog=10**18),
        "no target": replace(snapshot, target_s=None),
        "a target of nothing": replace(snapshot, target_s=0.0),
        "no latency": replace(snapshot, latency=Latency(math.nan, math.nan, math.nan, math.nan)),
        "one slot": replace(snapshot, slots=1),
        "no bound of slots": with_operators(replace(snapshot, slots=None), limit=None),
        "a limit of one": with_operators(snapshot, limit=1),
        "a limit of nothing": with_operators(snapshot, limit=0),
        "no replicas": with_operators(snapshot, degree=0),
        "replicas that take for ever": replace(snapshot, starting_s=1e4),
        "batches of no length": replace(snapshot, batches=((0, 0.0),)),
        "batches that are none": replace(snapshot, batches=((5, math.nan), (5, math.inf), (-5, -1.0))),
    }


ODD = tuple(odd(Snapshot(0.0, 1.0, Plan({}, 1, {}), (), (), None, None, None)))


# Scaling policies


@modes
@policies
def test_a_decision_depends_on_its_arguments_only_and_changes_none(policy: Any, mode: str) -> None:
    state, rng = policy.initial(), np.random.default_rng(3)
    for snapshot in recorded(mode):
        kept_state, kept_rng, kept_snapshot = copy.deepcopy(state), copy.deepcopy(rng), copy.deepcopy(snapshot)
        after, requests = policy.decide(state, snapshot, rng)
        assert state == kept_state
        assert snapshot == kept_snapshot
        assert policy.decide(kept_state, snapshot, kept_rng) == (after, requests)
        assert rng.bit_generator.state == kept_rng.bit_generator.state
        check_bounds(snapshot, requests)
        state = after


@modes
@policies
def test_the_same_seed_gives_the_same_run(policy: Any, mode: str) -> None:
    assert played(policy, recorded(mode), seed=7) == played(type(policy)(), recorded(mode), seed=7)


@modes
@policies
def test_the_state_survives_a_restart_after_any_interval(policy: Any, mode: str) -> None:
    """At every step the state is what JSON can carry, and what comes back from it decides alike from then on."""
    straight, interrupted = policy.initial(), policy.initial()
    random, again = np.random.default_rng(1), np.random.default_rng(1)
    for snapshot in recorded(mode):
        straight, requests = policy.decide(straight, snapshot, random)
        interrupted, others = policy.decide(through_json(interrupted), snapshot, again)
        assert others == requests
        assert through_json(interrupted) == through_json(straight)


@modes
@policies
@pytest.mark.parametrize("before", [0, 1, 12, 22])
@pytest.mark.parametrize("value", NO_VALUES)
def test_nothing_is_decided_on_nothing(policy: Any, mode: str, before: int, value: str) -> None:
    """Not measured, not a number, infinite, negative: what is known from before holds, and no degree changes."""
    state, _ = played(policy, recorded(mode)[:before])
    snapshot = blind(recorded(mode)[min(before, 21)], NO_VALUES[value])
    for at in (snapshot.at, snapshot.at + 5.0, snapshot.at - 60.0):  # again, and from the past
        state, requests = policy.decide(state, replace(snapshot, at=at), np.random.default_rng(0))
        state = through_json(state)
        if policy.name not in BY_THE_CLOCK:
            assert requests == ()
    _, requests = policy.decide(state, recorded(mode)[22], np.random.default_rng(0))  # and it can go on
    check_bounds(recorded(mode)[22], requests)


@modes
@policies
@pytest.mark.parametrize("kind", ODD)
def test_odd_snapshots_are_survived(policy: Any, mode: str, kind: str) -> None:
    for before in (0, 12, 20):
        state, _ = played(policy, recorded(mode)[:before])
        snapshot = odd(recorded(mode)[before])[kind]
        state, requests = policy.decide(state, snapshot, np.random.default_rng(0))
        if policy.name not in BY_THE_CLOCK or kind not in ("no replicas", "a limit of one", "a limit of nothing", "one slot"):
            check_bounds(snapshot, requests)
        _, requests = policy.decide(through_json(state), recorded(mode)[before + 1], np.random.default_rng(0))
        check_bounds(recorded(mode)[before + 1], requests)


@pytest.mark.parametrize("policy", [cls() for cls in POLICIES if cls.name not in BY_THE_CLOCK], ids=lambda one: one.name)
def test_without_a_target_more_replicas_are_asked_for_when_the_load_rises(policy: Any) -> None:
    """Two operators with one replica each get more and more: nobody who looks at the load is silent for want of a target."""
    rate = Rate((0.0, 50.0, 100.0, 200.0), (100.0, 200.0, 400.0, 600.0), 300.0)
    seen = simulate(line(2, cost_s=0.004), trace=rate, policy=policy, interval=5.0, max_slots=30).snapshots
    assert all(snapshot.target_s is None for snapshot in seen)
    assert max(sum(snapshot.plan.degrees.values()) for snapshot in seen) > 2


@policies
@pytest.mark.parametrize("value", ["nan", "infinite", "negative"])
def test_what_came_along_an_edge_may_be_absurd(policy: Any, value: str) -> None:
    for mode in MODES:
        snapshot = with_inputs(recorded(mode)[5], NO_VALUES[value])
        for before in (0, 12, 20):
            state, _ = played(policy, recorded(mode)[:before])
            untold = policy.decide(state, with_operators(snapshot, inputs=()), np.random.default_rng(0))
            state, requests = policy.decide(state, snapshot, np.random.default_rng(0))
            assert (state, requests) == untold, "it is as if nothing was told of the edges"
            check_bounds(snapshot, requests)
            through_json(state)


@policies
@pytest.mark.parametrize("value", ["nan", "infinite", "negative"])
def test_arrivals_by_the_second_may_be_absurd(policy: Any, value: str) -> None:
    for mode in MODES:
        base = recorded(mode)[6]
        wrong = tuple(replace(source, arrivals=(NO_VALUES[value],) * 5) for source in base.sources)
        before, _ = played(policy, recorded(mode)[:6])
        silent = replace(base, sources=tuple(replace(source, arrivals=()) for source in base.sources))
        untold = policy.decide(before, silent, np.random.default_rng(0))
        state, requests = policy.decide(before, replace(base, sources=wrong), np.random.default_rng(0))
        assert (state, requests) == untold, "it is as if no arrivals were told"
        check_bounds(base, requests)
        through_json(state)


@policies
def test_an_endless_interval_is_survived(policy: Any) -> None:
    for before in (0, 12):
        snapshot = replace(recorded("continuous")[before], interval_s=math.inf)
        state, requests = policy.decide(played(policy, recorded("continuous")[:before])[0], snapshot, np.random.default_rng(0))
        check_bounds(snapshot, requests)
        through_json(state)


@pytest.mark.parametrize("policy", [
    registry.create("scale", "static", {"degree": 9}), registry.create("scale", "scripted", {"script": "* 0:9"}),
], ids=["static", "scripted"])  # fmt: skip
def test_what_cannot_be_had_is_not_asked_for(policy: Any) -> None:
    snapshot = with_operators(recorded("continuous")[3], limit=3, degree=3)
    assert played(policy, [snapshot])[1] == [()]  # all that it can have is there


counts = some.one_of(some.none(), some.integers(0, 10**7))
measures = some.one_of(some.none(), some.just(math.nan), some.floats(-1.0, 1e6))


@some.composite
def snapshots(draw: some.DrawFn) -> Snapshot:
    """Any two operators in a line, with any of their measurements missing, absurd, or at odds with one another."""
    made, reads = [], "source"
    for name in ("a", "b"):
        made.append(OperatorSnapshot(
            name, draw(some.integers(1, 9)), 1, draw(counts), draw(counts), 0, draw(measures), draw(measures),
            draw(some.one_of(some.none(), some.floats(0, 2))), draw(counts), draw(measures), draw(counts),
            ((reads, draw(some.integers(0, 10**6))),), draw(some.one_of(some.none(), some.integers(1, 9))),
        ))  # fmt: skip
        reads = name
    arrivals = tuple(draw(some.lists(some.floats(0, 1e5), max_size=7)))
    batches = tuple(draw(some.lists(some.tuples(some.integers(0, 10**5), some.floats(0.0, 30.0)), max_size=3)))
    return Snapshot(
        draw(some.floats(-1e3, 1e6)), draw(some.sampled_from([0.0, 0.1, 1.0, 5.0, 60.0])), Plan({"a": 1, "b": 1}, 2, {}),
        tuple(made), batches, draw(measures), draw(counts), None,
        (SourceSnapshot("source", draw(counts), arrivals, draw(measures), draw(counts)),),
        target_s=draw(some.sampled_from([None, 0.05, 0.25, 10.0])), slots=draw(some.one_of(some.none(), some.integers(2, 40))),
        trigger_s=draw(some.sampled_from([None, 0.0, 1.0])), starting_s=draw(some.sampled_from([None, 0.0, 3.0, 200.0])),
    )  # fmt: skip


@policies
@settings(max_examples=40)
@given(some.lists(snapshots(), min_size=1, max_size=6))
def test_any_history_leads_to_sound_requests(policy: Any, history: list[Snapshot]) -> None:
    state, rng = policy.initial(), np.random.default_rng(0)
    for snapshot in history:
        state, requests = policy.decide(through_json(state), snapshot, rng)
        if policy.name not in BY_THE_CLOCK:
            check_bounds(snapshot, requests)


@pytest.mark.parametrize("tiny", [5e-324, 2.2250738585072014e-308, 1e-100, 1e-9, 1e-7])
@policies
def test_next_to_nothing_and_then_something_is_no_overflow(policy: Any, tiny: float) -> None:
    """Sub-normal rates came from the property above on one machine, and from no other: here they are always."""
    plan = Plan({"a": 1}, 2, {})
    state, rng = policy.initial(), np.random.default_rng(0)
    for arrival in (tiny, tiny, 4.0, 4.0):
        operator = OperatorSnapshot("a", 1, 1, 1, 1, 0, 0.001, 0.001, 0.1, 0, 0.0, 0, (("source", 1),), 9)
        snapshot = Snapshot(
            1.0, 1.0, plan, (operator,), (), None, None, None, (SourceSnapshot("source", 1, (arrival,)),),
            target_s=1.0, slots=9,
        )  # fmt: skip
        state, requests = policy.decide(through_json(state), snapshot, rng)
        if policy.name not in BY_THE_CLOCK:
            check_bounds(snapshot, requests)


# Forecasters


values = some.lists(some.one_of(some.floats(0, 1e9), some.sampled_from([0.0, 1e-12, 1e15])), max_size=40)


@forecasters
@settings(max_examples=30)
@given(series=values)
def test_a_forecast_is_a_number_and_the_state_is_json(forecaster: Any, series: list[float]) -> None:
    state = forecaster.initial()
    assert forecaster.ahead(state, 1) is None
    for value in series:
        before = copy.deepcopy(state)
        after = forecaster.update(state, value)
        assert state == before
        assert through_json(forecaster.update(through_json(state), value)) == through_json(after)
        for steps in (1, 2, 30):
            ahead = forecaster.ahead(after, steps)
            assert ahead is not None
            assert 0 <= ahead < math.inf
            assert forecaster.ahead(through_json(after), steps) == ahead
        state = after


@forecasters
def test_a_constant_goes_on(forecaster: Any) -> None:
    state = forecaster.initial()
    for _ in range(40):
        state = forecaster.update(state, 500.0)
    assert forecaster.ahead(state, 1) == pytest.approx(500.0, rel=0.02)


# Guards


WISHES = (("a", 9), ("b", 1), ("a", 3), ("b", 9), ("a", 1), ("b", 5))


def wishes(snapshot: Snapshot, number: int) -> tuple[Request, ...]:
    """What a restless policy asks for in an interval; in every third nothing."""
    wanted = dict([WISHES[number % 6], WISHES[(number + 1) % 6]]) if number % 3 else {}
    return tuple(Request(name, n, "restless", score=n / 10) for name, n in wanted.items() if n != snapshot[name].degree)


@modes
@guards
def test_a_review_depends_on_its_arguments_only_and_survives_a_restart(guard: Any, mode: str) -> None:
    state = guard.initial()
    for number, snapshot in enumerate(recorded(mode)):
        asked = wishes(snapshot, number)
        untouched = copy.deepcopy((state, snapshot, asked))
        after, passed = guard.review(state, snapshot, asked)
        assert (state, snapshot, asked) == untouched
        assert guard.review(state, snapshot, asked) == (after, passed)
        again, others = guard.review(through_json(state), snapshot, asked)
        assert others == passed
        assert through_json(again) == through_json(after)
        check_bounds(snapshot, passed)
        state = after


@modes
@guards
@pytest.mark.parametrize("kind", ["blind", *ODD])
def test_guards_survive_odd_snapshots(guard: Any, mode: str, kind: str) -> None:
    state = guard.initial()
    for number, snapshot in enumerate(recorded(mode)[:9]):
        state, _ = guard.review(state, snapshot, wishes(snapshot, number))
    base = recorded(mode)[9]
    shown = blind(base, math.nan) if kind == "blind" else odd(base)[kind]
    asked = wishes(base, 2)
    state, passed = guard.review(state, shown, asked)
    assert all(request.degree >= 1 and request.reason for request in passed)
    guard.review(through_json(state), recorded(mode)[10], ())


@guards
def test_silence_stays_silence(guard: Any) -> None:
    """A guard that has nothing to hold back asks for nothing itself, as long as degrees are within what the run allows."""
    state = guard.initial()
    for snapshot in recorded("continuous"):
        state, passed = guard.review(state, blind(snapshot, None), ())
        assert passed == ()


@guards
def test_a_request_for_a_stranger_is_not_the_guards_business(guard: Any) -> None:
    """An operator that the snapshot does not have: the loop refuses it in words, the guard must not fail on it."""
    asked = (Request("nobody", 4, "who is it?"),)
    _, passed = guard.review(guard.initial(), recorded("continuous")[3], asked)
    assert passed == asked
