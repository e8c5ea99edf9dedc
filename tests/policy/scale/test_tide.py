"""Tide, from what it promises: enough for what may come, no more than it is worth, and nothing without a measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from springtide.apps.lines import line
from springtide.control import planner
from springtide.control.planner import SlotLimit
from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.rate import Rate
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale.tide import policy, replay
from springtide.policy.scale.tide.policy import (
    BLOCKS,
    INITIAL_WEIGHT,
    RETAINED_INTERVALS,
    USUAL_INTERVALS,
    Tide,
    _regret,
    _scenarios,
    _usual,
)
from springtide.sim import simulate

COST = 0.01
"""A replica does 100 records/s."""


def seen(
    arrivals: Sequence[float], degrees: Sequence[int], backlog: int = 0, at: float = 0.0, interval_s: float = 10.0,
    batches: tuple[tuple[int, float], ...] = (), limit: int | None = None, **options: Any,
) -> Snapshot:  # fmt: skip
    """Operators in a line, each of which was done with all that came; the first has the backlog."""
    rows = round(sum(arrivals) * interval_s / max(1, len(arrivals)))
    operators, reads = [], "source"
    for number, degree in enumerate(degrees):
        name = f"o{number}"
        operators.append(
            OperatorSnapshot(
                name,
                degree,
                1,
                rows,
                rows,
                0,
                rows * COST,
                rows / interval_s,
                min(1.0, rows * COST / degree / interval_s),
                backlog if number == 0 else 0,
                15.0,
                rows,
                ((reads, rows),),
                limit,
            )
        )
        reads = name
    return Snapshot(
        at, interval_s, Plan({o.name: o.degree for o in operators}, sum(degrees), {}), tuple(operators), batches,
        rows / interval_s, backlog, None, (SourceSnapshot("source", rows, tuple(arrivals)),),
        **{"target_s": 0.25, "slots": 200, **options},
    )  # fmt: skip


def run(policy: Tide, intervals: Sequence[Sequence[float]], count: int = 1, **options: Any) -> list[list[int]]:
    """The degrees after each interval, when every wish comes true at once."""
    state, degrees, found = policy.initial(), [1] * count, []
    for number, arrivals in enumerate(intervals):
        snapshot = seen(arrivals, degrees, at=10.0 * (number + 1), **options)
        state, requests = policy.decide(state, snapshot, np.random.default_rng(0))
        state = json.loads(json.dumps(state, allow_nan=False))
        wanted = {request.operator: request.degree for request in requests}
        degrees = [wanted.get(f"o{i}", degree) for i, degree in enumerate(degrees)]
        found.append(degrees)
    return found


def noisy(rate: float, intervals: int, spread: float = 0.02, seconds: int = 10, seed: int = 0) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [(rate * np.exp(random.normal(0, spread, seconds))).tolist() for _ in range(intervals)]


@pytest.mark.parametrize("rate", [50.0, 350.0, 1_250.0, 9_000.0])
def test_a_steady_rate_gets_what_it_needs_and_little_more(rate: float) -> None:
    """Once it has seen some of it always enough to keep up, and in the end not half as much again, but for a replica."""
    found = run(Tide(), noisy(rate, 20))
    assert all(degrees[0] >= rate * COST for degrees in found[4:])
    assert found[-1][0] <= 1.5 * rate * COST + 1
    last = [degrees[0] for degrees in found[10:]]
    assert max(last) - min(last) <= 2 + 0.25 * rate * COST  # and it is nearly at rest


@pytest.mark.parametrize("target_s", [1.0, 5.0])
def test_the_first_decision_keeps_up_with_what_came(target_s: float) -> None:
    """1,000/s in every second is work for ten, whatever the target."""
    assert run(Tide(), [[1_000.0] * 10], target_s=target_s)[0][0] >= 10


def test_a_constant_rate_is_met_exactly_where_blocks_are_equal() -> None:
    """12 s are six blocks of 2 s."""
    found = run(Tide(), [[1_000.0] * 12] * 30, target_s=1.0, interval_s=12.0)
    assert all(10 <= degrees[0] <= 12 for degrees in found[5:])
    assert found[-1][0] <= 11, "when it is sure"


def test_a_constant_rate_is_met_exactly_where_an_interval_has_no_six_equal_blocks() -> None:
    """10 s are five blocks of 2 s; were they 2, 2, 2, 2, 1 and 1 s, their demands would look like a saw-tooth."""
    found = run(Tide(), [[1_000.0] * 10] * 30, target_s=1.0)
    assert all(10 <= degrees[0] <= 12 for degrees in found[5:])
    assert found[-1][0] <= 11


def test_all_operators_of_a_line_are_sized_alike() -> None:
    for degrees in run(Tide(), noisy(400.0, 6), count=4):
        assert len(set(degrees)) == 1


def test_a_higher_price_keeps_more_in_reserve() -> None:
    """The same history; being late is worth a tenth, twenty and ten thousand seconds of replicas."""
    bursts = [arrivals if i % 4 else [3 * came for came in arrivals] for i, arrivals in enumerate(noisy(400.0, 24, 0.2))]
    spent = [sum(degrees[0] for degrees in run(Tide(late_price=price), bursts)) for price in (0.1, 20.0, 10_000.0)]
    assert spent[0] <= spent[1] <= spent[2]
    assert spent[0] < spent[2]


def test_a_longer_target_needs_no_more_replicas() -> None:
    waves = [[400 + 350 * math.sin(second + i) for second in range(10)] for i in range(12)]
    spent = [sum(degrees[0] for degrees in run(Tide(), waves, target_s=target)) for target in (0.1, 1.0, 10.0)]
    assert spent[0] >= spent[1] >= spent[2]


def decided(snapshot: Snapshot, history: int = 12, policy: Tide | None = None) -> dict[str, int]:
    """What is wanted after a steady time, in one more interval."""
    tide, state = policy or Tide(), Tide().initial()
    degrees = [operator.degree for operator in snapshot.operators]
    for arrivals in noisy(400.0, history):
        state, _ = tide.decide(state, seen(arrivals, degrees), np.random.default_rng(0))
    _, requests = tide.decide(state, snapshot, np.random.default_rng(0))
    has = {operator.name: operator.degree for operator in snapshot.operators}
    return has | {request.operator: request.degree for request in requests}


def test_a_backlog_is_worked_off_with_more() -> None:
    """400/s; with 20,000 waiting there are at least 20,000/10 s more to do, if it is to be over in the interval."""
    calm = decided(seen([400.0] * 10, [5]))["o0"]
    some_waiting = decided(seen([400.0] * 10, [5], backlog=2_000))["o0"]
    many_waiting = decided(seen([400.0] * 10, [5], backlog=20_000))["o0"]
    assert calm <= some_waiting < many_waiting


def test_replicas_that_take_time_are_asked_for_before() -> None:
    """A rise that goes on: who has to wait for a replica asks for as many as the rise will need by then, and no fewer."""
    rise = [[100.0 + 10 * (10 * i + second) for second in range(10)] for i in range(12)]
    at_once, later = (run(Tide(), rise, starting_s=starting)[-1][0] for starting in (0.0, 8.0))
    assert later >= at_once >= rise[-1][-1] * COST


@settings(max_examples=60)
@given(
    some.lists(some.one_of(some.just(0.0), some.floats(1e-3, 1e6)), min_size=1, max_size=8), some.integers(1, 4),
    some.integers(1, 12), some.integers(4, 30), some.integers(0, 10**7), some.booleans(),
)  # fmt: skip
def test_limits_hold(rates: list[float], count: int, limit: int, slots: int, backlog: int, batched: bool) -> None:
    """No operator above its limit or the slots, whatever comes and waits."""
    batches = ((100, 0.4), (100, 0.6)) if batched else ()
    state, degrees = Tide().initial(), [1] * count
    for rate in rates:
        snapshot = seen([rate] * 10, degrees, backlog=backlog, limit=limit, slots=slots, batches=batches)
        state, requests = Tide().decide(state, snapshot, np.random.default_rng(0))
        wanted = {request.operator: request.degree for request in requests}
        degrees = [wanted.get(f"o{i}", degree) for i, degree in enumerate(degrees)]
        assert all(1 <= degree <= min(limit, slots) for degree in degrees)


def overloaded() -> Snapshot:
    """20,000/s, ten slots, and a second operator of a ninth of the first one's work."""
    snapshot = seen([20_000.0] * 10, [1, 1], slots=10)
    first, second = snapshot.operators
    return replace(snapshot, operators=(first, replace(second, busy_s=(second.busy_s or 0.0) / 9)))


def wanted_of(snapshot: Snapshot) -> dict[str, int]:
    _, requests = Tide().decide(Tide().initial(), snapshot, np.random.default_rng(0))
    has = {operator.name: operator.degree for operator in snapshot.operators}
    return has | {request.operator: request.degree for request in requests}


SLOTS = (
    "_candidates begins at half of the forecast's need; when that does not fit into the slots, degrees[:1] is asked for anyway"
)


def test_all_operators_together_keep_to_the_slots() -> None:
    assert sum(wanted_of(overloaded()).values()) <= 10
    assert sum(wanted_of(seen([501.0] * 10, [1, 1, 1], limit=2, slots=4)).values()) <= 4


def test_under_overload_the_slots_go_where_the_work_is() -> None:
    """Nine of ten slots belong to the operator with nine tenths of the work. It asks for 10 and 9, and the planner, which
    lets the largest give, makes 5 and 5 of that: little more than half of what the slots could do."""
    snapshot = overloaded()
    topology = line(2).topology
    names = dict(zip(("o0", "o1"), (o.name for o in topology.scalable), strict=True))
    granted = planner.grant(topology, {names[name]: n for name, n in wanted_of(snapshot).items()}, SlotLimit(10))
    assert granted[names["o0"]] >= 8


def test_without_arrivals_nothing_is_decided_and_what_was_known_stays() -> None:
    state, _ = Tide().decide(Tide().initial(), seen([400.0] * 10, [1]), np.random.default_rng(0))
    silent = replace(seen([400.0] * 10, [1]), sources=(SourceSnapshot("source", None),))
    after, requests = Tide().decide(state, silent, np.random.default_rng(0))
    assert requests == ()
    assert {name: after[name] for name in ("series", "intervals", "forecast")} == {
        name: state[name] for name in ("series", "intervals", "forecast")
    }


def test_an_operator_of_unknown_cost_is_left_alone() -> None:
    snapshot = seen([900.0] * 10, [1, 1])
    blind = replace(snapshot.operators[1], busy_s=None, served=None)
    _, requests = Tide().decide(
        Tide().initial(), replace(snapshot, operators=(snapshot.operators[0], blind)), np.random.default_rng(0)
    )
    assert [request.operator for request in requests] == ["o0"]


def test_no_input_needs_one_replica() -> None:
    """Zero is a measurement: after a while with nothing, nothing is kept."""
    assert run(Tide(), noisy(900.0, 5) + [[0.0] * 10] * 40)[-1] == [1]


def test_a_source_that_does_not_tell_when_is_taken_as_even() -> None:
    even = seen([400.0] * 10, [1])
    untold = replace(even, sources=(SourceSnapshot("source", 4_000),))
    (first,), (second,) = (Tide().decide({}, snapshot, np.random.default_rng(0))[1] for snapshot in (even, untold))
    assert first.degree == second.degree


def test_the_reason_holds_the_numbers() -> None:
    _, (request,) = Tide().decide({}, seen([1_250.0] * 10, [1], backlog=777), np.random.default_rng(0))
    assert "777" in request.reason
    assert f"{request.degree}" in request.reason
    assert any(character.isdigit() for character in request.reason.split("forecast")[0])


def test_the_state_stays_small() -> None:
    state = Tide().initial()
    for number, arrivals in enumerate(noisy(400.0, RETAINED_INTERVALS + 20)):
        state, _ = Tide().decide(state, seen(arrivals, [5], at=10.0 * number), np.random.default_rng(0))
    assert len(state["intervals"]) == len(state["levels"]) == RETAINED_INTERVALS
    assert len(json.dumps(state)) < 50_000


def test_what_is_usual_is_a_mean_in_which_the_first_interval_counts_longest() -> None:
    """The first interval needs 1 replica, and counts 300 times; 300 that need 5 bring the mean to 3, and many more to 5."""
    state: dict[str, Any] = {}
    usual = []
    for number in range(10_000):
        state["usual"], state["counted"] = _usual(state, 1.0 if number == 0 else 5.0)
        usual.append(state["usual"])
    assert usual[0] == 1 and usual[INITIAL_WEIGHT] == pytest.approx(3) and usual[-1] == pytest.approx(5, abs=0.01)
    assert _usual(state, 5.0 + USUAL_INTERVALS)[0] == pytest.approx(6, abs=0.01), "of the last so many intervals"


def test_another_interval_than_before_begins_anew() -> None:
    """Ten parts, then three: what was kept has another length, and must not be played with it."""
    state = Tide().initial()
    for seconds in (10, 10, 3, 3, 10, 1, 60, 90):
        arrivals = [400.0] * seconds
        snapshot = seen(arrivals, [5], interval_s=float(seconds))
        state, _ = Tide().decide(state, snapshot, np.random.default_rng(0))
        assert len(state["shape"]) == state["bins"] == min(seconds, 60)
        assert {len(interval) for interval in state["intervals"]} <= {min(seconds, 60)}
    assert BLOCKS > 1


def test_another_interval_after_a_quiet_time_begins_anew_too() -> None:
    """Nothing comes for so long that nothing is forecast; what was kept before has ten parts, and the next interval three."""
    state = Tide().initial()
    for rate, seconds in [(400.0, 10)] * 3 + [(0.0, 10)] * 40 + [(400.0, 3)] * 2:
        snapshot = seen([rate] * seconds, [1], interval_s=float(seconds))
        state, requests = Tide().decide(state, snapshot, np.random.default_rng(0))
        assert {len(interval) for interval in state["intervals"]} <= {seconds}
    assert requests


def test_a_change_that_stops_the_operators_has_to_be_worth_it() -> None:
    """Of 400/s, 10 ms each, 4 replicas do just all, and some more are a little better; not for a pause of a minute."""
    free, dear = (
        Tide().decide(Tide().initial(), replace(seen([390.0] * 10, [6]), pause_s=pause_s), np.random.default_rng(0))[1]
        for pause_s in (0.0, 60.0)
    )
    assert free and not dear


def test_a_price_that_is_none_is_refused() -> None:
    for price in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(OptionError):
            Tide(late_price=price)


def test_in_the_simulator_it_keeps_the_target_for_less_than_the_peak() -> None:
    """A wave of five minutes, three times, from 400 to 3,600/s: nearly always in time, with fewer than the peak's replicas."""
    wave = Rate(
        tuple(float(t) for t in range(900)), tuple(2_000 - 1_600 * math.cos(t * 2 * math.pi / 300) for t in range(900)), 900.0
    )
    waiting_at = simulate(line(1), trace=wave, policy="tide", interval=15.0, target=0.25, warmup=30.0).summary
    assert waiting_at["violation_ratio"] < 0.05
    assert waiting_at["replicas"]["mean"] < 3_600 * 0.00125


def test_what_is_not_read_yet_has_come_too() -> None:
    """In micro-batches of 500 records/s read while the backlog grows by 500/s, 1,000/s come."""

    def waiting_at(at: float, backlog: int, arrived: float | None = None) -> Snapshot:
        operator = OperatorSnapshot(
            "a", 1, 1, 500, 500, 0, 5.0, 500.0, 1.0, backlog, 900.0, served=500, inputs=(("source", 500),), limit=40
        )
        return Snapshot(
            at, 1.0, Plan({"a": 1}, 1, {"a": 1}), (operator,), ((500, 0.9),), 500.0, backlog, None,
            sources=(SourceSnapshot("source", 500, (), arrived, backlog),), target_s=2.0, slots=40,
        )  # fmt: skip

    tide = Tide()
    state, _ = tide.decide(tide.initial(), waiting_at(1.0, 1_000), np.random.default_rng(0))
    _, (request,) = tide.decide(state, waiting_at(2.0, 1_500, 1_000.0), np.random.default_rng(0))
    assert "after 1,000, backlog 1,500" in request.reason


def past(intervals: Sequence[Sequence[float]], forecast: float, end: float, unrests: Sequence[float] = ()) -> dict[str, Any]:
    """The state after such intervals, all at the forecast's level. ``unrests``: how wrong forecasts were before; 0.1 now."""
    before = [math.log(unrest) for unrest in unrests or [0.1] * len(intervals)]
    return {
        "shape": [1.0] * 6, "intervals": intervals, "levels": [math.log(forecast)] * len(intervals), "unrests": before,
        "unrest": 0.1, "end": end,
    }  # fmt: skip


def test_an_executor_may_take_longer_than_an_interval() -> None:
    """Executors take 12 s and intervals are 5 s: what is asked for now is there for the last 5 of 17 s."""
    state = {"shape": [1.0] * 5, "intervals": [], "levels": [], "unrests": [], "unrest": 0.1, "end": 100.0}
    lines, _ = _scenarios(state, 100.0, 50.0, 5.0, 12.0)
    assert lines.shape[1] == 17
    assert lines[1].tolist() == [100.0] * 5 + [50.0] * 12


def test_what_may_come_begins_at_the_rate_of_now() -> None:
    """An interval that rose from half of its forecast is played from where the stream is: (1,000 + 10) / (500 + 10) = 1.98."""
    rose = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    *_, coming = _scenarios(past([rose], 1_000.0, 1_000.0), 1_000.0, 1_000.0, 6.0, 0.0)[0]
    assert coming == pytest.approx([1_000 * part * (1_010 / 510) ** (1 - k / 5) for k, part in enumerate(rose)])
    assert coming[0] == pytest.approx(990.2, abs=0.1) and coming[-1] == 1_000


@pytest.mark.parametrize(("end", "bend"), [(0.0, 10 / 12), (2.0, 1.0), (4.0, 14 / 12)])
def test_few_records_tell_little_of_the_rate_of_now(end: float, bend: float) -> None:
    """2/s are forecast: whether none, two or four came in the last second, it is no reason to expect none or twice as many."""
    *_, coming = _scenarios(past([[1.0] * 6], 2.0, end), 2.0, 2.0, 6.0, 0.0)[0]
    assert coming[0] == pytest.approx(2 * bend) and coming[-1] == 2


def test_an_interval_is_bent_by_four_at_most() -> None:
    """It began with nothing and came later: bent by all of 10,010 / 10 it would be of another world."""
    *_, coming = _scenarios(past([[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]], 10_000.0, 10_000.0), 10_000.0, 10_000.0, 6.0, 0.0)[0]
    assert coming == pytest.approx([0, 0, *(10_000 * 4 ** (1 - k / 5) for k in range(2, 6))])


def test_a_pause_is_worth_it_once_staying_has_cost_as_much() -> None:
    """A pause is worth 25, and an interval with what there is costs 10 too much: 10, 20, and then the price of the pause."""
    one, three = np.array([1.0]), np.array([3])
    graph = replay.Graph(["a"], one, one, three, three, one, 0.0)
    assert _regret({}, graph, 10.0, 25.0) == 10
    assert _regret({"regret": 10.0, "had": [3]}, graph, 10.0, 25.0) == 20
    assert _regret({"regret": 20.0, "had": [3]}, graph, 10.0, 25.0) == 25
    assert _regret({"regret": 20.0, "had": [2]}, graph, 10.0, 25.0) == 10, "the degrees have changed since"
    assert _regret({}, graph, math.inf, 25.0) == 25


@pytest.mark.parametrize("pause_s", [0.0, 2.0, 20.0])
def test_replicas_are_given_back_though_a_change_brings_a_pause(pause_s: float) -> None:
    """Two or three of ten are enough: seven or more for 10 s are 70 replica-seconds, and a second's pause is worth 30 · 2."""
    tide, state, rng, had = Tide(), Tide().initial(), np.random.default_rng(0), [10]
    for number in range(80):
        snapshot = replace(seen([150.0] * 10, had, at=10.0 * number), pause_s=pause_s)
        state, requests = tide.decide(state, snapshot, rng)
        had = [request.degree for request in requests] or had
        if had != [10]:
            break
    assert had[0] <= 3 and number <= 2 + 30 * 2 * pause_s / 70


def test_a_surprise_is_played_in_several_sizes() -> None:
    """Four times the forecast came once: it may be twice or eight times as well, each with a third of its weight."""
    coming, weights = _scenarios(past([[1.0] * 6, [1.0] * 5 + [4.0]], 100.0, 100.0), 100.0, 100.0, 6.0, 0.0)
    assert coming[-3:, -1] == pytest.approx([200, 400, 800]) and coming[-4, -1] == 100
    assert weights[-3:] == pytest.approx([weights[-1]] * 3) and weights.sum() == pytest.approx(1)
    assert weights[-3:].sum() == pytest.approx(weights[-4] * 2 ** (1 / 160))  # it is an interval younger


def test_no_reserve_is_kept_for_one_size_of_jumps_alone() -> None:
    """Now and then ten times as much came. Were it always ten times, five replicas would be worth it, which are late as well,
    but have less to catch up on; as it may be √10 times too, two or three are."""
    jumps = np.random.default_rng(5).random(80) < 1 / 8
    degrees = run(Tide(), [[950.0 if jump else 95.0] * 10 for jump in [*jumps, *[False] * 6]])
    assert 2 <= degrees[-1][0] <= 3


def test_intervals_after_as_much_unrest_as_now_count_more() -> None:
    """Errors come in clusters. Far off an interval counts a tenth, beside what is as now: 0.1 / 1.1."""
    _, weights = _scenarios(past([[1.0] * 6] * 2, 100.0, 100.0, [2.0e-5, 0.1]), 100.0, 100.0, 6.0, 0.0)
    assert weights[-2] / weights[-1] == pytest.approx(0.1 / 1.1 * 0.5 ** (1 / 160))


def test_a_state_from_before_there_was_unrest_is_gone_on_with() -> None:
    tide, random = Tide(), np.random.default_rng(0)
    state, _ = tide.decide(tide.initial(), seen([100.0] * 10, [1]), random)
    state, _ = tide.decide(state, seen([100.0] * 10, [1]), random)
    old = {name: value for name, value in state.items() if name not in ("unrest", "unrests")}
    after, _ = tide.decide(old, seen([100.0] * 10, [1]), random)
    assert len(after["unrests"]) == len(after["levels"]) == 2


@pytest.mark.parametrize("options", [{}, {"pause_s": 2.0}, {"limit": 7}])
def test_candidates_that_are_not_played_would_not_have_been_chosen(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = [[rate] * 10 for rate in np.exp(np.random.default_rng(1).normal(6, 1, 40)).tolist()]
    found = run(Tide(), intervals, 2, **options)
    monkeypatch.setattr(policy, "GROUP_SIZE", 10**6)
    assert found == run(Tide(), intervals, 2, **options)
