"""Generated streams in queries: exact rows over changing plans, restarts and lost tasks, and functions from anywhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest

import springtide as st
from springtide.errors import RecordError, RunError
from springtide.model.ending import Ended, Ending
from springtide.model.generated import draws
from springtide.model.plan import Plan
from springtide.model.rate import constant
from springtide.model.report import BatchReport
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from spark.driver.test_streams import T0, Trip, generated, topology_of, trip
from springtide.control import supervisor
from springtide.spark.driver import checks
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.pipeline import Pipeline
from springtide.spark.driver.plane import BatchPlane, RunOutcome
from springtide.spark.driver.streams import SCHEDULE, Parts, SourceActuator, Streams


@dataclass
class Plans:
    """Control that puts the next of some plans in force after each batch: a width and a read limit."""

    checkpoint: Checkpoint
    topology: Topology
    plans: list[tuple[int, int | None]]
    reports: list[BatchReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin(0)

    def _begin(self, batch: int) -> None:
        width, limit = self.plans[min(batch, len(self.plans) - 1)]
        self._plan = Plan({}, 1, {source.name: width for source in self.topology.sources}, limit)
        SourceActuator(self.checkpoint, self.topology).apply(self._plan)

    def current(self) -> Plan:
        return self._plan

    def routes(self, plan: Plan) -> dict[str, Any]:
        return {}

    def report(self, report: BatchReport) -> None:
        self.reports.append(report)
        self._begin(len(self.reports))


@dataclass
class Run:
    """A run over a checkpoint; ``parts``: what the tasks of each batch were to read, in its last attempt."""

    outcome: RunOutcome | None
    reports: list[BatchReport]
    parts: dict[int, Parts]

    @property
    def sizes(self) -> dict[int, int]:
        return {report.batch: report.rows_in for report in self.reports}

    def widths(self, source: str = "made") -> dict[int, int]:
        return {report.batch: sum(task.operator == source for task in report.tasks) for report in self.reports}


def carried(
    spark: Any, root: Path, topology: Topology, plans: list[tuple[int, int | None]], monkeypatch: pytest.MonkeyPatch,
    fails: bool = False,
) -> Run:  # fmt: skip
    """Read what is available; ``fails``: the run fails."""
    checks.check(topology)
    checkpoint = Checkpoint(root / "checkpoint")
    checkpoint.acquire(topology)
    if checkpoint.recall(SCHEDULE) is None:
        checkpoint.remember(SCHEDULE, {"started": T0})
    control, parts = Plans(checkpoint, topology, plans), dict[int, Parts]()
    plane = BatchPlane(topology, checkpoint, control, {}, lambda: spark, threading.Event())
    original = Streams.parts

    def noted(streams: Streams, batch: int, widths: Mapping[str, int]) -> Parts:
        parts[batch] = original(streams, batch, widths)
        return parts[batch]

    monkeypatch.setattr(Streams, "parts", noted)
    outcome = None
    try:
        if fails:
            with pytest.raises(RunError, match="Crash"):
                plane.run(Ending(available_now=True))
        else:
            outcome = plane.run(Ending(available_now=True))
            assert outcome.ended in (Ended.AVAILABLE, Ended.EXHAUSTED)
    finally:
        monkeypatch.setattr(Streams, "parts", original)
        plane.close(stop_session=False)
        checkpoint.release()
    return Run(outcome, control.reports, parts)


def rows(root: Path) -> list[dict[str, Any]]:
    """What all runs have published."""
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(root / "out").to_pylist()
    return sorted(found, key=repr)


def wanted(seed: int, first: int, last: int, rate: float) -> list[dict[str, Any]]:
    micros = [round(T0 * 1e6) + round(at * 1e6) for at in constant(rate).created(first, last)]
    return sorted((vars(trip(draw)) for draw in draws(seed, first, micros)), key=repr)


@pytest.mark.spark
def test_rows_are_exact_over_batches_whose_limits_and_widths_change(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = topology_of(generated(rate=40, seed=9, limit=1000), sink=st.sink.files(tmp_path / "out"))
    plans: list[tuple[int, int | None]] = [(2, 100), (5, 250), (1, 7), (4, 3), (3, None)]
    ran = carried(spark, tmp_path, topology, plans, monkeypatch)
    assert ran.sizes == {0: 100, 1: 250, 2: 7, 3: 3, 4: 640}
    assert ran.widths() == {0: 2, 1: 5, 2: 1, 3: 3, 4: 3}
    assert rows(tmp_path) == wanted(9, 0, 1000, 40)
    assert [report.backlog for report in ran.reports] == [900, 650, 643, 640, 0]
    for report in ran.reports:
        assert sum(weight for _, weight in report.created) == report.rows_in


@pytest.mark.spark
def test_two_streams_are_read_side_by_side(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different lengths, so that one has no records in the last batches."""
    made, more = generated("made", rate=40, seed=1, limit=50), generated("more", rate=40, seed=2, limit=300)
    topology = topology_of(made, more, sink=st.sink.files(tmp_path / "out"))
    ran = carried(spark, tmp_path, topology, [(2, 100), (3, 200)], monkeypatch)
    assert ran.sizes == {0: 100, 1: 100, 2: 100, 3: 50}
    assert (ran.widths("made"), ran.widths("more")) == ({0: 2, 1: 0, 2: 0, 3: 0}, {0: 2, 1: 3, 2: 3, 3: 3})
    assert rows(tmp_path) == sorted(wanted(1, 0, 50, 40) + wanted(2, 0, 300, 40), key=repr)


@pytest.mark.spark
def test_a_restart_goes_on_without_gap_or_double_and_repeats_a_lost_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 1 is lost before its commit, four times in one process, and is repeated by another with another plan in force."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))
    topology = topology_of(generated(rate=40, limit=500), sink=st.sink.files(tmp_path / "out"))
    commit = Checkpoint.commit

    def crash(checkpoint: Checkpoint, manifest: dict[str, Any]) -> None:
        if manifest["batch"] == 1:
            raise RuntimeError("Crash")
        commit(checkpoint, manifest)

    monkeypatch.setattr(Checkpoint, "commit", crash)
    before = carried(spark, tmp_path, topology, [(2, 200)], monkeypatch, fails=True)
    monkeypatch.setattr(Checkpoint, "commit", commit)
    after = carried(spark, tmp_path, topology, [(3, 150)], monkeypatch)
    assert after.parts[1] == before.parts[1]
    assert (before.sizes, after.sizes) == ({0: 200}, {1: 200, 2: 100})
    assert after.widths() == {1: 2, 2: 3}
    assert rows(tmp_path) == wanted(0, 0, 500, 40)


@pytest.mark.spark
def test_tasks_that_are_lost_read_the_same_again(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job fails after its tasks have run, and the batch is repeated by the same process."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))
    run, lost = Pipeline.run, list[int]()

    def once(pipeline: Pipeline, *given: Any) -> Any:
        outcome = run(pipeline, *given)
        if not lost:
            lost.append(1)
            raise RuntimeError("the tasks are lost")
        return outcome

    monkeypatch.setattr(Pipeline, "run", once)
    topology = topology_of(generated(rate=40, limit=500), sink=st.sink.files(tmp_path / "out"))
    ran = carried(spark, tmp_path, topology, [(2, 200)], monkeypatch)
    assert ran.outcome is not None and ran.outcome.restarts == 1
    assert ran.sizes == {0: 200, 1: 200, 2: 100}
    assert rows(tmp_path) == wanted(0, 0, 500, 40)


@pytest.mark.spark
def test_a_fault_of_the_function_fails_the_run_and_names_the_record(spark: Any, tmp_path: Path) -> None:
    def broken(draw: st.Draw) -> Trip:
        return Trip(1 // (draw.index - 7), 0.0, None, draw.created)

    topology = st.source.generate(broken, rate=40_000, limit=20, schema=Trip).to(st.sink.memory("out")).named("broken")
    with pytest.raises(RecordError, match="record 7 failed: ZeroDivisionError"):
        st.run(topology, spark=spark, runs=tmp_path / "runs", policy="static", max_slots=2)


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


MODULE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Trip:
    id: int
    fare: float
    route: str | None

def helper(number: int) -> int:
    return number * number

def make(draw) -> Trip:
    return Trip(helper(draw.index), 0.5, None)
"""


@pytest.mark.spark
def test_a_function_of_a_module_that_was_loaded_from_a_file_reaches_the_tasks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "loaded_by_path.py"
    file.write_text(MODULE)
    monkeypatch.setitem(sys.modules, file.stem, _loaded(file))
    topology = st.source.generate(sys.modules[file.stem].make, rate=40_000, limit=5).to(st.sink.memory("out")).named("loaded")
    result = st.run(topology, spark=spark, runs=tmp_path / "runs", policy="static", max_slots=2)
    assert sorted(result.table("out").column("id").to_pylist()) == [0, 1, 4, 9, 16]


SCRIPT = (
    MODULE
    + """
if __name__ == "__main__":
    import sys
    from pyspark.sql import SparkSession
    import springtide as st

    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    topology = st.source.generate(make, rate=40_000, limit=5).to(st.sink.memory("out")).named("script")
    result = st.run(topology, spark=spark, runs=sys.argv[1] + "/runs", policy="static", max_slots=2)
    print("rows", sorted(result.table("out").column("id").to_pylist()))
    spark.stop()
"""
)


@pytest.mark.cluster
def test_a_function_of_a_script_reaches_other_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path)]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert "rows [0, 1, 4, 9, 16]" in done.stdout, done.stderr
