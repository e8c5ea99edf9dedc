"""The control loop on a simulated cluster: the same policies, stepped with a simulated clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from springtide.errors import OptionError, TopologyError
from springtide.model.plan import Request
from springtide.model.rate import Rate
from springtide.model.snapshot import Snapshot
from springtide.policy.group import Share, Table
from springtide.sim import BackPressure, Constant, Edge, Model, Operator, Outcome, Reconfiguration, Source, simulate
from springtide.sim.constants import Constants
from springtide.sim.measure import violation_ratio


def line(**options: Any) -> Model:
    """100 records/s through two operators, of 20 and 5 ms a record."""
    return Model(
        "line", (Source("source", 100.0),),
        (Operator("first", ("source",), Constant(0.02), **options), Operator("second", ("first",), Constant(0.005))),
    )  # fmt: skip


def run(model: Model, **options: Any) -> Outcome:
    return simulate(model, **{"grouping": "round-robin", "duration": 20.0, **options})


def test_scripted_degrees_change_when_the_script_says() -> None:
    outcome = run(line(), policy="scripted", settings={"script": "first 0:3 8:4 15:2; * 0:1"})
    degrees = [(snapshot.at, snapshot.plan.degrees["first"]) for snapshot in outcome.snapshots]
    assert degrees == [(float(t), 3 if t <= 8 else 4 if t <= 15 else 2) for t in range(1, 20)]  # a plan holds from the next
    assert [(entry["at_s"], entry["degrees"]) for entry in outcome.decisions] == [
        (8.0, {"first": 4, "second": 1}), (15.0, {"first": 2, "second": 1}),
    ]  # fmt: skip
    summary = outcome.summary
    assert summary["reconfigurations"] == 2
    assert summary["replica_seconds"] == pytest.approx(8 * 4 + 7 * 5 + 5 * 3)
    assert summary["replicas"] == {"mean": pytest.approx(4.1), "max": 5}
    assert summary["downtime_ratio"] == 0


def test_snapshots_tell_what_happened_in_the_interval() -> None:
    outcome = run(line(replicas=3), policy="static", settings={"degrees": "first=3"}, interval=2.0)
    last = outcome.snapshots[-1]
    assert (last.at, last.interval_s, last.rate, last.batches) == (18.0, 2.0, 100.0, ())
    first, second = last["first"], last["second"]
    assert (first.rows_in, first.degree, first.rate, first.backlog) == (200, 3, 100.0, 0)
    assert first.busy_s == pytest.approx(4.0)
    assert first.utilisation == pytest.approx(4.0 / 6)
    assert first.latency_ms == pytest.approx(20.0)
    assert second.utilisation == pytest.approx(0.5)
    assert last.latency is not None
    assert last.latency.mean == pytest.approx(25.0)
    assert last.latency.p99 == pytest.approx(25.0, rel=0.008)


def test_a_backlog_is_what_waits() -> None:
    outcome = run(line(), policy="static", interval=1.0)  # one replica serves half of what comes
    waiting = [snapshot["first"].backlog for snapshot in outcome.snapshots]
    assert waiting == [pytest.approx(50 * t, abs=2) for t in range(1, 20)]
    assert outcome.snapshots[-1].backlog == waiting[-1]
    assert outcome.summary["processed_ratio"] == pytest.approx(0.5, abs=0.01)
    assert outcome.summary["throughput_degradation"] == pytest.approx(0.5, abs=0.02)


def test_a_source_tells_what_arrived_what_it_handed_on_and_what_it_holds_back() -> None:
    """100/s come, a server does 50/s, and the source holds back what its queue has no room for. Records come at the ends of
    hundredths of a second, the last of an interval at its very end."""
    model = Model(
        "held", (Source("source", 100.0),), (Operator("server", ("source",), Constant(0.02)),),
        back_pressure=BackPressure(high=20, low=10),
    )  # fmt: skip
    shown = run(model, policy="static", interval=2.5).snapshots
    sources = [source for snapshot in shown for source in snapshot.sources]
    assert [source.arrival_rate for source in sources] == pytest.approx([100.0] * len(sources))
    read = 0
    for source, snapshot in zip(sources, shown, strict=True):
        read += source.rows or 0
        assert read + (source.backlog or 0) == round(100 * snapshot.at)
        assert snapshot.backlog == (snapshot["server"].backlog or 0) + (source.backlog or 0)
    assert sources[-1].backlog and sources[-1].backlog > 500


def test_a_deactivated_replica_drains_its_queue() -> None:
    outcome = run(
        line(replicas=4), policy="scripted", settings={"script": "first 0:2 10:1"}, trace=Rate((0.0,), (100.0,), 10.0)
    )
    assert outcome.summary["rows_there"] == 0
    assert outcome.summary["rows_out"] == outcome.summary["rows_in"] == 1000


def test_a_policy_begins_with_the_models_replicas() -> None:
    @dataclass(frozen=True)
    class OneMore:
        kind: ClassVar[str] = "scale"
        name: ClassVar[str] = "one-more"

        def initial(self) -> Mapping[str, Any]:
            return {}

        def decide(
            self, state: Mapping[str, Any], snapshot: Snapshot, rng: np.random.Generator
        ) -> tuple[Mapping[str, Any], tuple[Request, ...]]:
            return state, tuple(Request(o.name, o.degree + 1, "more") for o in snapshot.operators if o.name == "first")

    outcome = run(line(replicas=5), policy=OneMore(), duration=3.5)
    assert [snapshot.plan.degrees for snapshot in outcome.snapshots] == [{"first": n, "second": 1} for n in (6, 7, 8)]


def test_a_limit_on_slots_holds_here_too() -> None:
    outcome = run(line(), policy="static", settings={"degree": 9}, max_slots=6)
    assert outcome.snapshots[0].plan.degrees == {"first": 3, "second": 3}


@pytest.mark.parametrize(("whole", "others"), [(False, 0), (True, 1)])
def test_downtime_counts_and_may_stop_every_operator(whole: bool, others: int) -> None:
    change = Reconfiguration("pause", 2.0, whole)
    model = Model(
        "two",
        (Source("source", 10.0),),
        (Operator("a", ("source",), Constant(0.01)), Operator("b", ("source",), Constant(0.01))),
    )
    outcome = run(model, policy="scripted", settings={"script": "a 5:2"}, reconfiguration=change, interval=1.0)
    assert outcome.summary["downtime_ratio"] == pytest.approx(0.1)
    seconds = {s.at: s for s in outcome.snapshots}
    assert seconds[7.0]["a"].rows_out == 0
    assert (seconds[7.0]["b"].rows_out == 0) == bool(others)
    assert outcome.summary["rows_lost"] == 0


def test_back_pressure_keeps_queues_short_and_the_source_holds_the_rest() -> None:
    model = Model(
        "held", (Source("source", 100.0, queue_limit=300),), (Operator("server", ("source",), Constant(0.02)),),
        back_pressure=BackPressure(high=20, low=10),
    )  # fmt: skip
    outcome = run(model, policy="static")
    queues = [snapshot["server"].backlog or 0 for snapshot in outcome.snapshots]
    assert max(queues) <= 30
    assert min(queues[3:]) >= 2  # it never starves
    assert all(s["server"].utilisation == pytest.approx(1.0, abs=0.01) for s in outcome.snapshots[1:])
    summary = outcome.summary
    assert summary["rows_lost"] > 0  # the source's own queue is full after six seconds
    assert summary["rows_in"] == summary["rows_out"] + summary["rows_lost"] + summary["rows_there"]
    # time at the source counts: its 300 newest are of 3 s, and up to 30 wait for the server, which takes 20 ms for each
    assert 3000 < summary["latency_ms"]["p99"] < 3700


def test_what_was_created_during_the_warm_up_is_not_measured() -> None:
    """The first record waits for nobody, and from then on each one waits a second longer than the one before it."""
    model = Model("slow", (Source("source", 1.0),), (Operator("server", ("source",), Constant(2.0)),))
    whole = run(model, duration=None, records=10, target=10.0).summary
    warm = run(model, duration=None, records=10, target=10.0, warmup=5.5).summary
    assert whole["latency_ms"]["mean"] == pytest.approx(1000 * np.arange(2, 12).mean())
    assert warm["latency_ms"]["mean"] == pytest.approx(1000 * np.arange(7, 12).mean())
    assert (warm["rows_in"], warm["rows_out"]) == (10, 10)


def test_violations_are_counted_by_seconds() -> None:
    inf = np.inf
    # of ten seconds: fine, too slow, nothing for two while a record of 1.5 waits, then it leaves, then nothing is there
    seconds = np.array([[2, 0.4, 0.1], [1, 3.0, 0.9], [0, 0, inf], [0, 0, inf], [1, 3.0, 1.5], [0, 0, inf]])
    assert violation_ratio(seconds, 2.0, 6.0, inf) == 3 / 5  # at 3 s its age is 1.5 s, at 4 s it is 2.5 s
    assert violation_ratio(seconds, 2.0, 6.0, 3.5) == 4 / 6  # the one that stays is 2.5 s old at the end
    assert violation_ratio(np.array([[0, 0, inf]]), 2.0, 1.0, inf) is None


def test_a_failing_policy_leaves_the_replicas_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name: ClassVar[str] = "broken"

        def initial(self) -> Mapping[str, Any]:
            return {}

        def decide(self, *given: object) -> Any:
            raise ValueError("no idea")

    with caplog.at_level(logging.CRITICAL):
        assert run(line(), policy=Broken()).summary["reconfigurations"] == 0


def test_wrong_use_is_told_with_what_is_right() -> None:
    class Whole:
        name: ClassVar[str] = "whole"

        def route(self, share: Share, table: Table) -> Any: ...

    with pytest.raises(OptionError, match=r"'whole' routes whole batches only.*hash.*round-robin.*micro-batch mode takes all"):
        run(line(), grouping=Whole())
    with pytest.raises(OptionError, match="'line' never ends"):
        simulate(line())
    with pytest.raises(OptionError, match="did you mean 'restart'"):
        run(line(), reconfiguration="restrat")
    with pytest.raises(OptionError, match="'scripted': the script names 'frist'"):
        run(line(), policy="scripted", settings={"script": "frist 0:1"})
    with pytest.raises(OptionError, match="by_record needs records="):
        run(line(), by_record=True)
    with pytest.raises(OptionError, match="interval=0 is not allowed"):
        run(line(), interval=0)
    for unused in ({"trigger": 1.0}, {"begin": "5s"}, {"constants": Constants()}):
        with pytest.raises(OptionError, match=f"{next(iter(unused))}=.* has no effect in continuous mode"):
            run(line(), **unused)
    with pytest.raises(OptionError, match="a pause of 2 s has no effect"):
        Reconfiguration("none", 2.0)
    with pytest.raises(TopologyError, match="neither a topology nor a springtide"):
        run("line")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="reads 'sauce', which is not listed before it; did you mean 'source'"):
        Model("m", (Source("source"),), (Operator("a", ("sauce",)),))
    with pytest.raises(TopologyError, match="two of its parts are named 'a'"):
        Model("m", (Source("a"),), (Operator("a", (Edge("a"),)),))


def test_a_grouping_that_routes_nowhere_is_told_so() -> None:
    from springtide.policy.group import Online, kernel

    @kernel
    def nowhere(state: Any, key: int, now: float, free: Any, queue: Any) -> int:
        return len(free)

    class Nowhere:
        name: ClassVar[str] = "nowhere"

        def online(self, k: int, seed: int, before: Any = None) -> Online:
            return Online((np.zeros(1),), nowhere)

    with pytest.raises(OptionError, match="'nowhere' sent a record of 'first' to none of its replicas, which are 0 to 0"):
        run(line(), grouping=Nowhere())
