"""Micro-batch mode: it obeys what a batch is, and agrees with runs that were recorded on Spark."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded.runs import RUNS
from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport
from springtide.policy.group import Share, Table
from springtide.record.summary import summarise
from springtide.sim import (
    BackPressure,
    ByItem,
    Cluster,
    Constant,
    Edge,
    Model,
    Node,
    Operator,
    Outcome,
    Source,
    Speeds,
    Zipf,
    simulate,
)
from springtide.sim.constants import Constants, critical_s, fit, read, to_json

NONE = Constants(0.0, 0.0, 0.0, 0.0, 0.0)
RECORDED = Path(__file__).parents[1] / "recorded"


def line(rate: float = 100.0, cost: float = 0.001, replicas: int = 2, **options: Any) -> Model:
    operator = Operator("work", ("source",), Constant(cost), replicas=replicas, **options)
    return Model("line", (Source("source", rate),), (operator,))


def run(model: Model, constants: Constants = NONE, **options: Any) -> Outcome:
    busy_times = {"grouping": "round-robin", "records": 1_000, "max_slots": 8, **options}
    return simulate(model, mode="micro-batch", constants=constants, **busy_times)


# What a batch is


@settings(max_examples=25)
@given(
    rate=st.floats(10, 2_000), cost=st.floats(0, 0.01), width=st.integers(1, 6), slots=st.integers(1, 6),
    times=st.lists(st.floats(0, 0.05), min_size=5, max_size=5),
    grouping=st.sampled_from(["round-robin", "tide", "posg", "hash"]),
)  # fmt: skip
def test_every_record_is_in_one_batch_and_batches_follow_one_another(
    rate: float, cost: float, width: int, slots: int, times: list[float], grouping: str
) -> None:
    constants = Constants(*times)
    reports = run(line(rate, cost, width), constants, records=300, max_slots=slots, grouping=grouping).reports
    assert sum(report.rows_in for report in reports) == 300
    assert sum(report.rows_out for report in reports) == 300
    before = 0.0
    for report in reports:
        assert report.started >= before
        work = [task for task in report.tasks if task.operator == "work"]
        assert sum(task.rows_in or 0 for task in work) == report.rows_in
        busy = sum(task.busy_s or 0.0 for task in work)
        assert busy == pytest.approx(report.rows_in * cost, abs=1e-9)
        least = constants.batch_s + 2 * constants.stage_s + constants.row_s * report.rows_in + busy / slots
        assert report.duration_s >= least - 1e-9
        assert max(at for at, _ in report.created) <= report.started + 1e-9
        before = report.committed


def test_a_stage_takes_as_long_as_its_busiest_task() -> None:
    """Four tasks of 10 ms in two slots: 20 ms, and the fixed times."""
    constants = Constants(batch_s=0.1, stage_s=0.01, task_s=0.005, row_s=0.0, gap_s=0.0)
    model = Model(
        "line", (Source("source", times=np.zeros(40)),), (Operator("work", ("source",), Constant(0.001), replicas=4),)
    )
    reports = run(model, constants, records=40, max_slots=4).reports
    assert [report.rows_in for report in reports] == [40]
    assert reports[0].duration_s == pytest.approx(0.1 + 2 * 0.01 + 4 * 0.005 + 0.010)
    crowded = run(model, constants, records=40, max_slots=2).reports[0]
    assert crowded.plan.widths["work"] == 2, "no more tasks than slots"
    assert crowded.duration_s == pytest.approx(0.1 + 2 * 0.01 + 2 * 0.005 + 0.020)


def test_a_latency_is_from_creation_to_commit() -> None:
    model = Model("line", (Source("source", times=np.array([0.0, 0.5])),), (Operator("work", ("source",), Constant(0.2)),))
    outcome = run(model, records=2)
    assert outcome.summary["latency_ms"]["mean"] == pytest.approx(200, abs=11), "the second one waits for the next look"
    assert outcome.summary["batches"] == 2


def test_the_trigger_holds_batches_apart_and_the_read_limit_keeps_them_small() -> None:
    apart = run(line(1_000), trigger=0.5, records=3_000).reports
    starts = [report.started for report in apart]
    assert min(np.diff(starts)) == pytest.approx(0.5, abs=0.02)
    limited = run(line(5_000, 0.001, 1), records=20_000, target="1s", max_slots=1).reports
    assert max(report.duration_s for report in limited[20:]) < 1.2, "ten seconds of backlog are not swallowed whole"


def test_copies_and_splits_reach_their_readers() -> None:
    model = Model(
        "tree",
        (Source("source", 1_000.0, Zipf(50, 1.0)),),
        (
            Operator("first", ("source",), splits=True),
            Operator("left", (Edge("first", 0.3),)),
            Operator("right", (Edge("first", 0.7),)),
            Operator("last", ("left", Edge("right", 2.0))),
        ),
    )
    reports = run(model, records=5_000).reports
    rows = {name: sum(t.rows_in or 0 for r in reports for t in r.tasks if t.operator == name) for name in
            ("first", "left", "right", "last")}  # fmt: skip
    assert rows["first"] == rows["left"] + rows["right"] == 5_000
    assert rows["left"] == pytest.approx(1_500, abs=150)
    assert rows["last"] == rows["left"] + 2 * rows["right"]


@pytest.mark.long
def test_tide_learns_and_shortens_batches() -> None:
    costs = np.random.default_rng(1).permutation(np.repeat(np.arange(1, 65), 8)) / 8000
    model = Model(
        "line", (Source("source", 500.0, Zipf(512, 1.0)),), (Operator("work", ("source",), ByItem(costs), replicas=5),)
    )
    mean = {g: run(model, records=10_000, grouping=g).summary["batch_ms"] for g in ("tide", "round-robin", "hash")}
    assert mean["tide"] < 0.95 * mean["round-robin"] < mean["hash"]


def test_the_scripted_policy_changes_the_widths_between_batches() -> None:
    outcome = run(line(400, 0.004, 1), policy="scripted", settings={"script": "work 0:1 2:3"}, records=2_000)
    widths = [(report.started, report.plan.widths["work"]) for report in outcome.reports]
    assert {width for at, width in widths if at < 1.9} == {1}
    assert max(width for at, width in widths if at >= 2) == 3
    assert outcome.reports[-1].plan.degrees["work"] == 3
    assert outcome.summary["reconfigurations"] == 1


def test_control_sees_a_batch_when_it_is_committed_and_not_before() -> None:
    """One batch from 0 to 10 s, and one after it: the nine cycles before the commit see nothing."""
    model = Model("line", (Source("source", times=np.array([0.0, 10.5])),), (Operator("work", ("source",), Constant(10.0)),))
    seen = {snapshot.at: snapshot.batches for snapshot in run(model, records=2).snapshots}
    assert [at for at, batches in seen.items() if batches] == [10.0]
    assert list(seen) == [float(second) for second in range(1, 21)]
    assert seen[10.0] == ((1, 10.0),)


def test_the_throughput_is_of_the_sources_records_in_either_mode() -> None:
    """100 records/s, of which each becomes three and then, by chance, fewer."""
    model = Model(
        "line",
        (Source("source", 100.0),),
        (Operator("work", (Edge("source", 3.0),), Constant(0.001)), Operator("last", (Edge("work", 0.5),))),
    )
    continuous = simulate(model, grouping="round-robin", duration=100).summary
    batches = run(model, Constants(), records=None, duration=100)
    assert continuous["throughput_rows_s"] == pytest.approx(100, rel=0.02)
    assert batches.summary["throughput_rows_s"] == pytest.approx(100, rel=0.02)
    document = summarise(model.topology, "none", "round-robin", batches.reports, "")
    assert document["throughput_rows_s"] == pytest.approx(batches.summary["throughput_rows_s"], abs=0.001)
    half = simulate(replace(line(100, 0.02, 1), name="half"), grouping="round-robin", duration=100).summary
    assert half["throughput_rows_s"] == pytest.approx(50, rel=0.02), "what waits was not processed"
    later = run(line(100), records=None, begin=50.0, duration=100)
    document = summarise(line().topology, "none", "round-robin", later.reports, "")
    assert later.summary["throughput_rows_s"] == pytest.approx(document["throughput_rows_s"], abs=0.001)


def test_reports_keep_no_costs() -> None:
    """They are arrays of every record, of use to the grouping alone; a run's folder has none of them either."""
    reports = run(line(300), grouping="tide").reports
    assert reports
    assert not any(report.costs or report.variances for report in reports)


def test_the_same_seed_gives_the_same_batches() -> None:
    one, other = (run(line(300), grouping="tide", seed=5).summary for _ in range(2))
    assert one == other


def test_what_is_not_for_batches_is_refused() -> None:
    for options in ({"reconfiguration": "pause"}, {"by_record": True}, {"warmup": 1.0}):
        with pytest.raises(OptionError, match="are for continuous mode"):
            run(line(), **options)
    with pytest.raises(OptionError, match="is a bound for continuous mode"):
        run(line(), grouping="full-knowledge")
    with pytest.raises(OptionError, match=r"task_s=-1.0 is not allowed"):
        Constants(task_s=-1.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeout_s": 1.0}, "timeout_s"), ({"late": "count"}, "late"), ({"feedback_s": 0.1}, "feedback_s"),
        ({"back_pressure": BackPressure(5, 2)}, "back_pressure"), ({"cluster": Cluster((Node(),))}, "cluster"),
        ({"operators": (Operator("work", ("source",), queue_limit=5),)}, "queue_limit"),
        ({"operators": (Operator("work", ("source",), nodes=(0,)),)}, "nodes"),
        ({"sources": (Source("source", queue_limit=5),)}, "queue_limit"), ({"sources": (Source("source", node=0),)}, "node"),
    ],
)  # fmt: skip
def test_rules_that_a_batch_has_no_use_for_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=f"model 'line' has {named}, which is for continuous mode"):
        run(replace(line(), **options))


def busy(outcome: Outcome) -> list[list[float | None]]:
    """Of every batch, by task."""
    return [[task.busy_s for task in report.tasks if task.operator == "work"] for report in outcome.reports]


def test_tasks_have_their_speeds() -> None:
    """Two tasks, every record 1 ms; batches of 40 records, one a second."""
    times = np.repeat(np.arange(4.0), 40)

    def busy_times(*speeds: Speeds) -> list[list[float | None]]:
        operator = Operator("work", ("source",), Constant(0.001), replicas=2, speeds=speeds)
        return busy(run(Model("line", (Source("source", times=times),), (operator,)), records=160, max_slots=2))

    even, slow = pytest.approx([0.020, 0.020]), pytest.approx([0.020, 0.060])
    assert busy_times(Speeds((1.0, 3.0))) == [slow, slow, slow, slow]
    assert busy_times(Speeds((1.0, 3.0), from_record=80)) == [even, even, slow, slow]
    assert busy_times(Speeds((1.0, 3.0), from_s=2.5)) == [even, even, even, slow]
    assert busy_times(Speeds((1.0, 3.0)), Speeds((3.0,), from_record=120, from_s=1.0))[-1] == pytest.approx([0.060, 0.020])
    half = busy_times(Speeds((1.0, 3.0), from_record=60))
    assert half == [even, pytest.approx([0.020, 0.040]), slow, slow], "a batch is cut where the record is in it"


@pytest.mark.parametrize(
    "wrong", [lambda s: np.full(s.rows, s.width), lambda s: np.full(s.rows, -1), lambda s: np.zeros(s.rows)[1:]]
)
def test_a_route_that_loses_records_is_an_error(wrong: Callable[[Share], Any]) -> None:
    class Lossy:
        name: ClassVar[str] = "lossy"

        def route(self, share: Share, table: Table) -> Any:
            return wrong(share)

    with pytest.raises(OptionError, match=r"grouping 'lossy' of operator 'work' must return a target from 0 to 1 for each of"):
        run(line(), grouping=Lossy(), max_slots=2)


# Constants


def test_constants_are_found_again() -> None:
    wanted = Constants(batch_s=0.030, stage_s=0.012, task_s=0.004, row_s=0.000_02, gap_s=0.015)
    model = Model("line", (Source("source", 900.0),), (Operator("work", ("source",), Constant(0.0005)),))
    outcome = run(model, wanted, policy="scripted", settings={"script": "work 0:1 1:2 2:4 3:3 4:1 5:4"}, records=6_000,
                  max_slots=4, trigger=0.0)  # fmt: skip
    found = fit(model.topology.stages, outcome.reports)
    assert found.gap_s == pytest.approx(wanted.gap_s, rel=0.05)
    fixed = found.batch_s + 2 * found.stage_s
    assert fixed == pytest.approx(wanted.batch_s + 2 * wanted.stage_s, rel=0.2)
    again = run(model, found, policy="static", settings={"degree": 2}, records=4_000).summary
    truth = run(model, wanted, policy="static", settings={"degree": 2}, records=4_000).summary
    assert again["batch_ms"] == pytest.approx(truth["batch_ms"], rel=0.05)
    assert again["latency_ms"]["mean"] == pytest.approx(truth["latency_ms"]["mean"], rel=0.05)


def test_a_triggers_pause_is_no_part_of_the_gap() -> None:
    wanted = Constants(batch_s=0.030, stage_s=0.012, task_s=0.004, row_s=0.000_02, gap_s=0.015)
    model = line(900.0, 0.0005)
    paused = run(model, wanted, records=30_000, trigger=0.5)
    found = fit(model.topology.stages, paused.reports)
    assert found.gap_s == pytest.approx(wanted.gap_s, rel=0.05)
    again = run(model, found, records=30_000, trigger=0.5)
    assert again.summary["batches"] == pytest.approx(paused.summary["batches"], abs=1)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 6])
def test_the_critical_path_is_that_of_the_tasks_on_the_slots(slots: int) -> None:
    """Two operators of one stage, with more tasks than slots together. Without fixed times a batch is its work alone."""
    model = Model(
        "two",
        (Source("source", 50.0, Zipf(20, 1.0)),),
        (
            Operator("one", ("source",), ByItem(np.linspace(0.001, 0.010, 20)), parallelism=1),
            Operator("other", ("source",), ByItem(np.linspace(0.020, 0.002, 20))),
            Operator("last", ("one", "other"), Constant(0.0005)),
        ),
    )
    reports = run(model, policy="static", settings={"degree": 2}, max_slots=slots, records=400).reports
    for report in reports:
        assert critical_s(report, model.topology.stages) == pytest.approx(report.duration_s)
        assert len({(model.topology.stages[task.operator], task.task) for task in report.tasks}) == len(report.tasks)


def test_tasks_beyond_the_slots_come_in_waves() -> None:
    tasks = tuple(TaskReport("one" if n < 2 else "other", n, 1, 1, 0, busy, 0.0, 0.0) for n, busy in enumerate((3, 5, 4, 1)))
    report = BatchReport(0, 1, Plan({}, 2, {}), 0.0, 9.0, 4, 4, 0, tasks, {})
    assert critical_s(report, {"one": 1, "other": 1}) == 7  # 3 + 4 on one slot, 5 + 1 on the other


def test_too_few_batches_are_refused() -> None:
    reports = run(line(), Constants(), records=200).reports
    with pytest.raises(OptionError, match="let it run longer"):
        fit(line().topology.stages, reports[:40])


def test_constants_travel_as_json(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"constants": {**to_json(Constants(gap_s=0.5)), "later": 1}, "operators": {}}))
    assert read(file) == Constants(gap_s=0.5)


# Against Spark


def recorded(name: str) -> list[dict[str, Any]]:
    batches: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return batches


def as_report(batch: dict[str, Any]) -> BatchReport:
    tasks = tuple(
        TaskReport(name, task, rows, rows, 0, busy, start, end) for name, task, rows, busy, start, end in batch["tasks"]
    )
    plan = Plan({}, RUNS["calibration"].max_slots, batch["widths"])
    return BatchReport(batch["batch"], 1, plan, batch["started"], batch["committed"], batch["rows_in"], 0, 0, tasks, {})


def overslept_s() -> float:
    """What a record took in the calibration run beyond what it was told to sleep."""
    tasks = [task for batch in recorded("calibration") for task in batch["tasks"] if task[0] == "work"]
    return float(sum(task[3] for task in tasks) / sum(task[2] for task in tasks)) - RUNS["calibration"].seconds


def constants() -> Constants:
    return fit(RUNS["calibration"].topology().stages, [as_report(batch) for batch in recorded("calibration")])


@pytest.mark.parametrize("name", ["light", "skewed", "overloaded"])
def test_it_agrees_with_spark_within_15_percent(name: str) -> None:
    """Constants and costs from one run, batch times and latencies of others. A run's first batches, in which workers start and
    code is compiled, are left out: the simulation begins with the backlog that they left."""
    run_, batches = RUNS[name], recorded(name)
    before = [batch for batch in batches if batch["started"] < run_.settled_s]
    begin, end = before[-1]["committed"], batches[-1]["committed"]
    outcome = simulate(
        run_.model(sum(batch["rows_in"] for batch in before), end, overslept_s()), policy=run_.policy, settings=run_.settings,
        grouping=run_.grouping, mode="micro-batch", constants=constants(), max_slots=run_.max_slots, begin=begin, duration=end,
    )  # fmt: skip
    measured, simulated = batches[len(before) :], outcome.reports
    batch_ms = 1000 * statistics.fmean(batch["committed"] - batch["started"] for batch in measured)
    latency_ms = np.average([b["latency_ms"] for b in measured], weights=[b["rows_in"] for b in measured])
    assert 1000 * statistics.fmean(report.duration_s for report in simulated) == pytest.approx(batch_ms, rel=0.15)
    latencies = [(report.latency.mean, report.rows_in) for report in simulated if report.latency is not None]
    means, rows = zip(*latencies, strict=True)
    assert np.average(means, weights=rows) == pytest.approx(latency_ms, rel=0.15)
