"""What holds in every simulation: Lindley's recursion, order, conservation of records, and that steps change nothing."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from springtide.policy.group import Online, kernel
from springtide.sim import (
    BackPressure,
    ByItem,
    Edge,
    Exponential,
    Given,
    Model,
    Operator,
    Outcome,
    Reconfiguration,
    Source,
    Zipf,
    simulate,
)  # fmt: skip

pytestmark = pytest.mark.long

Floats = npt.NDArray[np.float64]

quarters = st.integers(0, 8).map(lambda n: n / 4)  # exact in binary, so that times may be equal, and results have to be
loads = st.lists(st.tuples(quarters, quarters), min_size=1, max_size=60)
crowded = st.lists(st.tuples(st.integers(0, 2).map(lambda n: n / 4), quarters), min_size=20, max_size=60)
few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Fates(NamedTuple):
    """What should become of records: when they start and leave, and which are dropped or removed."""

    start: Floats
    depart: Floats
    lost: npt.NDArray[np.bool_]
    late: npt.NDArray[np.bool_]


def expected(
    times: Floats, costs: Floats, targets: list[int], timeout: float = math.inf, limit: float = math.inf,
    stop: float = math.inf, pause: float = 0.0, drops: bool = False,
) -> Fates:  # fmt: skip
    """Record by record, in plain Python: no start in (stop, stop + pause); with ``drops`` what waits at ``stop`` is lost.

    Where more than ``limit`` wait, the oldest of them is shed. The one that is served does not wait.
    """
    shed: set[int] = set()
    for i in range(len(times) if limit < math.inf else 0):
        depart = served(times[:i], costs[:i], targets[:i], shed, timeout).depart
        there = [j for j in range(i) if targets[j] == targets[i] and j not in shed and depart[j] > times[i]]
        if len(there) > limit:
            shed.add((there[1:] or [i])[0])
    return served(times, costs, targets, shed, timeout, stop, pause, drops)


def served(
    times: Floats, costs: Floats, targets: list[int], shed: set[int], timeout: float = math.inf, stop: float = math.inf,
    pause: float = 0.0, drops: bool = False,
) -> Fates:  # fmt: skip
    """What becomes of records when these were shed."""
    count = len(times)
    start, depart = np.full(count, np.nan), np.full(count, np.nan)
    lost, late = np.array([i in shed for i in range(count)], dtype=bool), np.zeros(count, dtype=bool)
    for i, (at, cost, target) in enumerate(zip(times, costs, targets, strict=True)):
        own = [j for j in range(i) if targets[j] == target and not lost[j]]
        if lost[i]:
            continue
        start[i] = max([at, *(depart[j] for j in own if not late[j])])
        if start[i] > stop:
            lost[i] = drops and at <= stop
            start[i] = max(start[i], stop + pause)
        late[i] = not lost[i] and start[i] - at > timeout
        depart[i] = start[i] if late[i] else start[i] + cost
    return Fates(start, depart, lost, late)


def run(
    load: list[tuple[float, float]], replicas: int = 1, operator: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None, **options: Any,
) -> tuple[Floats, Floats, Outcome]:  # fmt: skip
    """Simulate one operator on records with these gaps and costs: times, costs and outcome."""
    gaps, costs = np.array(load).T
    times = np.cumsum(gaps)
    source = Source("source", times=times, items=Given(np.arange(len(times))))
    server = Operator("server", ("source",), ByItem(costs), replicas=replicas, **(operator or {}))
    chosen = {"grouping": "round-robin", "records": len(times), "by_record": True, **options}
    return times, costs, simulate(Model("test", (source,), (server,), **(model or {})), **chosen)


def in_turn(count: int, replicas: int) -> list[int]:
    return [i % replicas for i in range(count)]


@given(loads, st.integers(1, 4))
@few
def test_lindleys_recursion_holds_at_each_replica(load: list[tuple[float, float]], replicas: int) -> None:
    times, costs, outcome = run(load, replicas)
    found = expected(times, costs, in_turn(len(times), replicas))
    np.testing.assert_array_equal(outcome.latencies_s, found.depart - times)
    assert outcome.summary["operators"][0]["busy_s"] == pytest.approx(costs.sum())


@given(loads, st.integers(1, 4))
@few
def test_every_queue_keeps_its_order(load: list[tuple[float, float]], replicas: int) -> None:
    times, _, outcome = run(load, replicas)
    assert outcome.latencies_s is not None
    departures = times + outcome.latencies_s
    for replica in range(replicas):
        assert (np.diff(departures[replica::replicas]) >= 0).all()


def test_a_full_queue_sheds_its_oldest() -> None:
    """One is served from 0 to 10 s, two may wait. The third that waits takes the place of the first, and so on: of those at 1
    to 5 s the last two are served, at 10 and 20 s."""
    load = [(0.0, 10.0), *[(1.0, 10.0)] * 5]
    _, _, outcome = run(load, operator={"queue_limit": 2})
    assert outcome.latencies_s is not None
    assert outcome.latencies_s.tolist() == pytest.approx([10.0, *[math.nan] * 3, 20.0 - 4.0, 30.0 - 5.0], nan_ok=True)
    assert outcome.summary["rows_lost"] == 3


def test_what_a_source_holds_back_beyond_its_limit_is_shed_the_oldest_first() -> None:
    """A replica is busy for 50 s with the first two records. Of the others, one each second, the source holds back ten. At 25 s
    the second one starts, and the source lets one more go: the oldest that it has then, which is of 16 s."""
    times = np.arange(40.0)
    source = Source("source", times=times, items=Given(np.arange(40)), queue_limit=10)
    costs = np.array([25.0, 25.0, *[0.125] * 38])
    model = Model(
        "held", (source,), (Operator("server", ("source",), ByItem(costs)),), back_pressure=BackPressure(high=0, low=0)
    )
    outcome = simulate(model, grouping="round-robin", records=40, by_record=True)
    assert outcome.latencies_s is not None
    came_through = np.flatnonzero(~np.isnan(outcome.latencies_s))
    assert came_through.tolist() == [0, 1, 16, *range(30, 40)]
    assert outcome.summary["rows_lost"] == 27


@given(loads | crowded, st.integers(1, 3), quarters | st.just(1e9), st.integers(0, 3))
@few
def test_limits_shed_and_timeouts_remove(load: list[tuple[float, float]], replicas: int, timeout: float, limit: int) -> None:
    times, costs, outcome = run(load, replicas, {"queue_limit": limit}, {"timeout_s": timeout})
    found = expected(times, costs, in_turn(len(times), replicas), timeout, limit)
    latencies = np.where(found.lost | found.late, np.nan, found.depart - times)
    np.testing.assert_array_equal(outcome.latencies_s, latencies)
    summary = outcome.summary
    assert (summary["rows_lost"], summary["rows_timed_out"]) == (found.lost.sum(), found.late.sum())
    beyond = np.isnan(latencies) | (latencies > timeout)
    assert summary["dephased_ratio"] == pytest.approx(beyond.mean())


def test_late_records_may_be_counted_only() -> None:
    load = [(1.0, 2.0)] * 10
    _, _, outcome = run(load, model={"timeout_s": 5.0, "late": "count"})
    assert outcome.summary["rows_timed_out"] == 0
    assert outcome.latencies_s is not None
    assert outcome.summary["dephased_ratio"] == (outcome.latencies_s > 5.0).mean() == 0.6


@given(loads | crowded, st.integers(1, 3), st.sampled_from([0.25, 1.0, 7.0]), quarters | st.just(1e9))
@few
def test_steps_change_nothing(load: list[tuple[float, float]], replicas: int, interval: float, timeout: float) -> None:
    same: dict[str, Any] = {"operator": {"queue_limit": 2}, "model": {"timeout_s": timeout}}
    _, _, whole = run(load, replicas, **same)
    _, _, cut = run(load, replicas, **same, policy="static", settings={"degree": replicas}, interval=interval)
    np.testing.assert_array_equal(cut.latencies_s, whole.latencies_s)
    assert cut.summary["operators"] == [pytest.approx(one) for one in whole.summary["operators"]]


STOP = 10.0


def reconfigured(
    load: list[tuple[float, float]], kind: str, pause: float, timeout: float | None = None
) -> tuple[Floats, Floats, Outcome, list[int]]:
    cost = Reconfiguration(kind, pause)  # type: ignore[arg-type]
    script = {"script": f"server 0:1 {STOP}:2"}
    times, costs, outcome = run(load, policy="scripted", settings=script, reconfiguration=cost, model={"timeout_s": timeout})
    before = int((times <= STOP).sum())
    return times, costs, outcome, [0] * before + in_turn(len(times) - before, 2)


@given(loads, quarters, st.sampled_from([None, 1.0, 3.0]))
@few
def test_a_pause_loses_nothing(load: list[tuple[float, float]], pause: float, timeout: float | None) -> None:
    times, costs, outcome, targets = reconfigured(load, "pause", pause, timeout)
    found = expected(times, costs, targets, timeout or math.inf, stop=STOP, pause=pause)
    np.testing.assert_array_equal(outcome.latencies_s, np.where(found.late, np.nan, found.depart - times))
    assert outcome.summary["rows_lost"] == 0
    assert outcome.summary["rows_timed_out"] == found.late.sum()


@given(loads, quarters)
@few
def test_a_restart_loses_exactly_what_waits(load: list[tuple[float, float]], pause: float) -> None:
    times, costs, outcome, targets = reconfigured(load, "restart", pause)
    reaches = outcome.summary["reconfigurations"] == 1  # else all was over before
    found = expected(times, costs, targets, stop=STOP if reaches else math.inf, pause=pause, drops=True)
    np.testing.assert_array_equal(outcome.latencies_s, np.where(found.lost, np.nan, found.depart - times))
    assert outcome.summary["rows_lost"] == found.lost.sum()


class Log(NamedTuple):
    """What a grouping was told, and what it saw when it chose."""

    completions: Floats  # target, key, cost, time
    seen: Floats  # time, the longest queue, the last free replica
    counts: npt.NDArray[np.int64]


@kernel
def shortest(state: Log, key: int, now: float, free: Floats, queue: npt.NDArray[np.int64]) -> int:
    target = 0
    for i in range(1, len(free)):
        if queue[i] < queue[target]:
            target = i
    state.seen[state.counts[1], 0] = now
    state.seen[state.counts[1], 1] = queue.max()
    state.seen[state.counts[1], 2] = free.max()
    state.counts[1] += 1
    return target


@kernel
def note(state: Log, target: int, key: int, cost: float, now: float) -> None:
    state.completions[state.counts[0], 0] = target
    state.completions[state.counts[0], 1] = cost
    state.completions[state.counts[0], 2] = now
    state.counts[0] += 1


class Watching:
    """Joins the shortest queue, and writes all down."""

    name = "watching"

    def __init__(self) -> None:
        self.log = Log(np.zeros((100, 3)), np.zeros((100, 3)), np.zeros(2, dtype=np.int64))

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(self.log, shortest, note)


@given(loads, st.integers(1, 4), quarters, st.sampled_from([None, 1.0]))
@few
def test_groupings_are_told_in_the_order_of_time(
    load: list[tuple[float, float]], replicas: int, delay: float, interval: float | None
) -> None:
    watching = Watching()
    sliced: dict[str, Any] = (
        {} if interval is None else {"policy": "static", "settings": {"degree": replicas}, "interval": interval}
    )
    times, costs, outcome = run(load, replicas, model={"feedback_s": delay}, grouping=watching, **sliced)
    targets: list[int] = []
    for i, at in enumerate(times):  # the reference routes by what is known at the time
        depart = expected(times[:i], costs[:i], targets).depart
        known = [sum(t == r and depart[j] + delay > at for j, t in enumerate(targets)) for r in range(replicas)]
        assert watching.log.seen[i, 1] == max(known)
        targets.append(known.index(min(known)))
    found = expected(times, costs, targets)
    np.testing.assert_array_equal(outcome.latencies_s, found.depart - times)
    count = int(watching.log.counts[0])
    completions = watching.log.completions[:count]
    assert (np.diff(completions[:, 2]) >= 0).all()
    # what is over by the end is told, each record once, with its replica, its cost and the time
    over = found.depart + delay <= outcome.summary["duration_s"]
    assert sorted(map(tuple, completions.tolist())) == sorted(
        zip(np.array(targets)[over].astype(float), costs[over], (found.depart + delay)[over], strict=True)
    )


def test_groupings_hear_nothing_of_replicas_that_only_drain() -> None:
    watching = Watching()
    script = {"script": "server 0:3 5:1"}
    _, _, outcome = run([(0.25, 2.0)] * 60, grouping=watching, policy="scripted", settings=script)
    completions = watching.log.completions[: watching.log.counts[0]]
    assert set(completions[completions[:, 2] <= 5.0, 0]) == {0, 1, 2}
    assert set(completions[completions[:, 2] > 5.0, 0]) == {0}
    assert outcome.summary["rows_out"] == 60


networks = st.fixed_dictionaries(
    {
        "replicas": st.tuples(*[st.integers(1, 3)] * 3),
        "limits": st.tuples(*[st.sampled_from([1, 5, 2**62])] * 3),
        "timeout": st.sampled_from([None, 1.0, 5.0]),
        "pressure": st.sampled_from([None, BackPressure(8, 3), BackPressure(3, 0, 0.5)]),
        "held": st.sampled_from([0, 10, 2**62]),
        "duration": st.sampled_from([0.3, 7.0, 31.5]),
        "seed": st.integers(0, 1000),
        "change": st.sampled_from(
            [Reconfiguration("none"), Reconfiguration("pause", 1.0), Reconfiguration("restart", 0.5, True)]
        ),
    }
)


@given(networks)
@few
def test_no_record_is_lost_or_doubled_unseen(chosen: dict[str, Any]) -> None:
    """In = out + lost + timed out + still there, whatever happens, and the same at every operator."""
    source = Source("source", 20.0, Zipf(50, 1.0), "poisson", queue_limit=chosen["held"])
    inputs: list[tuple[str | Edge, ...]] = [("source",), (Edge("a", 0.4),), ("b", Edge("a", 0.6))]
    operators = tuple(
        Operator(name, read, Exponential(0.1), replicas=replicas, queue_limit=limit, splits=name == "a")
        for name, read, replicas, limit in zip("abc", inputs, chosen["replicas"], chosen["limits"], strict=True)
    )
    model = Model("net", (source,), operators, timeout_s=chosen["timeout"], back_pressure=chosen["pressure"])
    outcome = simulate(
        model, grouping="round-robin", policy="scripted", settings={"script": "a 5:2 20:1; c 7:3"}, interval=2.5,
        duration=chosen["duration"], seed=chosen["seed"], reconfiguration=chosen["change"],
    )  # fmt: skip
    found = outcome.summary
    assert found["rows_in"] == found["rows_out"] + found["rows_lost"] + found["rows_timed_out"] + found["rows_there"]
    if chosen["pressure"] is None:
        assert sum(o["rows_lost"] for o in found["operators"]) == found["rows_lost"]
    for operator in found["operators"]:
        assert operator["rows_in"] >= operator["rows_out"] + operator["rows_lost"] + operator["rows_timed_out"]
    reached = {operator["name"]: operator["rows_in"] for operator in found["operators"]}
    left = {operator["name"]: operator["rows_out"] for operator in found["operators"]}
    assert reached["b"] + reached["c"] == left["a"] + left["b"]  # a sends each record to one of them, b sends all to c
    assert left["c"] == found["rows_out"]


def test_the_seed_decides_everything() -> None:
    source = Source("source", 50.0, Zipf(100, 1.0, shuffles=6.0), "poisson")
    model = Model("seeds", (source,), (Operator("server", ("source",), Exponential(0.05), replicas=3),))

    def latencies(seed: int) -> Floats:
        outcome = simulate(model, grouping="round-robin", records=500, by_record=True, seed=seed)
        assert outcome.latencies_s is not None
        return outcome.latencies_s

    np.testing.assert_array_equal(latencies(1), latencies(1))
    assert (latencies(1) != latencies(2)).any()
