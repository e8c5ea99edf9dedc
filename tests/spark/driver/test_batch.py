"""A batch's way to its commit and to the sinks, with stand-ins for Spark: what is refused, what is made good at a start."""

from __future__ import annotations

import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from springtide.errors import CheckpointError, RunError
from springtide.model.plan import Plan
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.sql import SparkSession

from springtide.spark.driver import batch as batches
from springtide.spark.driver import staged
from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.begun import Begun, Note
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.pipeline import BatchOutcome
from springtide.spark.driver.plane import BatchPlane
from springtide.spark.driver.sinks import Sinks
from springtide.spark.driver.staged import Output
from springtide.spark.driver.streams import Streams
from springtide.spark.private import jvm
from springtide.spark.private.failures import cause_of
from springtide.spark.private.logs import COMMIT
from springtide.spark.shared.offsets import SourceControl, obeyed_file
from springtide.spark.shared.program import dead_letter_sink, staging_of
from springtide.spark.shared.report import Report
from springtide.spark.task import staging


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def numbers(*sinks: Any) -> Topology:
    source = st.source.generate(number, rate=10)
    return st.topology("numbers", *(source.to(sink, name=f"sink{place}") for place, sink in enumerate(sinks)))


@dataclass
class Fixed:
    """Control that holds one plan, and keeps the reports."""

    plan: Plan = field(default_factory=lambda: Plan({}, 1, {}))
    reports: list[Any] = field(default_factory=list)

    def current(self) -> Plan:
        return self.plan

    def routes(self, plan: Plan) -> dict[str, Any]:
        return {}

    def report(self, report: Any) -> None:
        self.reports.append(report)


class Case:
    """A started run of one topology: its checkpoint, its sinks, and a runner whose tasks reported what was handed in."""

    def __init__(self, root: Path, topology: Topology, control: Fixed | None = None) -> None:
        self.checkpoint = Checkpoint(root / "checkpoint")
        self.checkpoint.acquire(topology)
        (root / "checkpoint" / "spark").mkdir(exist_ok=True)
        (root / "checkpoint" / "spark" / "metadata").write_text(f'{{"id":"{uuid.UUID(int=1)}"}}')
        private = str(self.checkpoint.own)
        self.places, dead = staging_of(topology, private, self.checkpoint.identity)
        places = {name: place for name, place in {**self.places, "": dead}.items() if place is not None}
        self.sinks = Sinks(topology, dead_letter_sink(topology, private), places)
        self.tasks: list[Report] = []
        pipeline: Any = SimpleNamespace(run=lambda *_: BatchOutcome(list(self.tasks)))
        no_state: Any = {}
        self.control = control or Fixed()
        self.checkpoint.next_epoch()
        self.runner = BatchRunner(
            topology, SimpleNamespace(), self.checkpoint, pipeline, self.sinks, self.control,
            Streams(topology, self.checkpoint), threading.Event(), no_state,
        )  # fmt: skip

    def stage(self, batch: int, *values: int, sink: str = "sink0") -> Output:
        """A task of a batch writes these for a sink; returns the staged file."""
        place = self.places[sink]
        assert place is not None
        at = staging.Attempt(self.checkpoint.epoch, batch, level=0, gate=0, task=len(self.tasks), attempt=0)
        (receipt,) = staging.write(place, sink, at, [pa.RecordBatch.from_pydict({"n": list(values)})]).receipts
        self.tasks.append(Report(len(self.tasks), receipts=(receipt,), sinks={sink: len(values)}))
        return self.sinks.located(batch, [vars(receipt)])[0]

    def begin(self, batch: int) -> None:
        """Spark logs the offsets of a batch."""
        log = self.checkpoint.root / "spark" / "offsets" / str(batch)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f'v1\n{{"batchTimestampMs":{batch}}}\n{{"offset":{batch}}}')

    def run(self, batch: int) -> None:
        """Spark calls the runner with a batch, and then logs its commit."""
        self.begin(batch)
        self.runner(None, batch)
        self.tasks.clear()
        log = self.checkpoint.root / "spark" / "commits" / str(batch)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(COMMIT)


def test_a_batch_that_is_run_again_replaces_what_a_memory_sink_got_of_it(tmp_path: Path) -> None:
    """As after its commit was taken back: the rows would be there twice."""
    case = Case(tmp_path, numbers(st.sink.memory("kept"), st.sink.memory("kept")))
    for batch in (0, 1, 1):
        outputs = [case.stage(batch, 10 * batch), case.stage(batch, 10 * batch + 1, sink="sink1")]
        case.sinks.deliver(SimpleNamespace(), batch, outputs)
        case.tasks.clear()
    case.checkpoint.release()
    received = case.sinks.received("kept")
    assert received is not None and received.column("n").to_pylist() == [0, 1, 10, 11]


def interrupted(*_: object) -> None:
    """The driver dies here."""
    raise KeyboardInterrupt


def read(folder: Path) -> list[int]:
    found = [pyarrow.parquet.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    return sorted(n for table in found for n in table.column("n").to_pylist())


Start = Callable[..., Case]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of sinks; the one before it has let go of the checkpoint by then."""
    acquired: list[Checkpoint] = []

    def started(*sinks: Any, folder: Path = tmp_path, control: Fixed | None = None) -> Case:
        for checkpoint in acquired:
            checkpoint.release()
        case = Case(folder, numbers(*sinks), control)
        acquired.append(case.checkpoint)
        return case

    yield started
    for checkpoint in acquired:
        checkpoint.release()


class Tables:
    """A session whose catalog has these tables, with rows in them or none, all partitioned by one column."""

    def __init__(self, parted_by: Any = "i", **rows: int) -> None:
        self._rows = rows
        columns = [SimpleNamespace(name="n", isPartition=False), SimpleNamespace(name=parted_by, isPartition=True)]
        self.catalog = SimpleNamespace(tableExists=lambda name: name in rows, listColumns=lambda name: columns)

    def table(self, name: str) -> Any:
        return SimpleNamespace(isEmpty=lambda: self._rows[name] == 0)


NO_TABLES: Any = Tables()


# What a commit needs


def test_a_file_that_the_driver_does_not_see_is_never_committed(start: Start, tmp_path: Path) -> None:
    """As when a node lost its mount, and wrote 2 of 5 records to a folder of its own."""
    case = start(st.sink.files(tmp_path / "out"))
    case.sinks.prepare(NO_TABLES, case.checkpoint)
    case.stage(0, 1, 2, 3)
    lost = case.stage(0, 4, 5)
    lost.staged.unlink()
    with pytest.raises(RunError, match=f"a task wrote {lost.staged}, with 2 records, and the driver does not see it"):
        case.run(0)
    assert case.checkpoint.last_manifest() is None and read(tmp_path / "out") == []
    assert isinstance(case.runner.fatal, RunError), "the run ends: the next attempt may be on the same node"


def test_offsets_are_durable_before_anybody_outside_gets_the_batch(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps batches by their number must not get other records under the same one, also after a loss of power."""
    steps: list[str] = []

    def noted(note: Note, begun: Begun, *, synced: bool) -> None:
        if synced:
            steps.append(f"synced {begun.offsets.splitlines()[-1]}")

    monkeypatch.setattr(Note, "write", noted)
    monkeypatch.setattr("springtide.spark.driver.sinks._frame", lambda *_: None)
    start(st.sink.foreach(lambda frame, batch: steps.append(f"called {batch}"))).run(0)
    assert steps == ['synced {"offset":0}', "called 0"]
    start(st.sink.files(tmp_path / "out"), folder=tmp_path / "files").run(0)
    assert len(steps) == 2, "where the manifest decides it has the offsets, and no batch waits for the disk"


def test_the_pause_between_batches_is_not_by_the_clock_that_people_set(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes a quarter of its second, while the clock is set back by an hour."""
    clock, steady = iter([7200.0, *[3600.0] * 9]), iter([10.0, 10.25])
    monkeypatch.setattr(batches, "time", SimpleNamespace(time=lambda: next(clock), monotonic=lambda: next(steady)))
    case = start(st.sink.discard(), control=Fixed(Plan({}, 1, {}, trigger_s=1.0)))
    waits: list[float] = []
    monkeypatch.setattr(case.runner._stop, "wait", waits.append)
    case.run(0)
    assert waits == [0.75]
    assert case.control.reports[0].started == 7200.0


# At a start


def test_an_output_folder_that_was_removed_is_made_again(start: Start, tmp_path: Path) -> None:
    case = start(st.sink.files(tmp_path / "out"))
    case.sinks.prepare(NO_TABLES, case.checkpoint)
    case.stage(0, 1, 2)
    case.run(0)
    assert read(tmp_path / "out") == [1, 2]
    shutil.rmtree(tmp_path / "out")
    again = start(st.sink.files(tmp_path / "out"))
    again.sinks.prepare(NO_TABLES, again.checkpoint)
    again.stage(1, 3)
    again.run(1)
    assert read(tmp_path / "out") == [3]


@pytest.mark.parametrize("now", ["out", "moved"])
def test_what_was_committed_and_hidden_is_published_where_the_sink_is_now(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    """The driver dies between the commit and the publishing; the next one may have the sink in a folder that is not there."""
    case = start(st.sink.files(tmp_path / "out"))
    case.sinks.prepare(NO_TABLES, case.checkpoint)
    hidden = case.stage(0, 1, 2)
    monkeypatch.setattr(case.sinks, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        case.run(0)
    assert read(tmp_path / "out") == []
    with pytest.raises(FileNotFoundError):  # rather than take it for published
        staged.publish(replace(hidden, target=tmp_path / "elsewhere" / "file"))
    again = start(st.sink.files(tmp_path / now))
    again.sinks.prepare(NO_TABLES, again.checkpoint)
    if now == "moved":  # its staging folder is another one: the batch is computed again
        assert again.checkpoint.last_manifest() is None
        hidden = again.stage(0, 1, 2)
        again.run(0)
    assert read(tmp_path / now) == [1, 2]
    again.sinks.publish(0, [hidden])  # once more changes nothing
    assert read(tmp_path / now) == [1, 2]


def test_a_checkpoint_does_not_write_to_tables_that_have_batches_of_another(start: Start) -> None:
    """At whatever batch it is: own tables are known by their names."""

    def prepared(sink: Any, **rows: int) -> Case:
        case = start(sink)
        case.sinks.prepare(Tables(**rows), case.checkpoint)
        return case

    refused = "table 'b' holds batches of another checkpoint, which this one would overwrite; resume from that checkpoint, name"
    plain, a, b = st.sink.table("b"), st.sink.table("a", batch_column="i"), st.sink.table("b", batch_column="i")
    with pytest.raises(CheckpointError, match=refused):
        prepared(b, b=5)
    prepared(plain, b=5).begin(0)  # which appends
    with pytest.raises(CheckpointError, match=refused):
        prepared(b, b=5)  # and now would overwrite
    prepared(a, a=0)
    prepared(a, a=3)
    with pytest.raises(CheckpointError, match=refused):
        prepared(b, a=3, b=5)
    prepared(b, a=3, b=0)
    prepared(a, a=3, b=2)
    prepared(b, a=3, b=2)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_table_that_is_not_partitioned_by_batches_is_refused(start: Start, rows: int) -> None:
    """Each batch would overwrite all of it."""
    case = start(st.sink.table("a", batch_column="i"))
    with pytest.raises(
        CheckpointError, match="table 'a' is partitioned by day, not by batch_column='i'; drop it, if it is empty"
    ):
        case.sinks.prepare(Tables(parted_by="day", a=rows), case.checkpoint)
    case.sinks.prepare(Tables(parted_by="I", a=0), case.checkpoint)  # Spark's names have no case


def test_a_checkpoint_that_was_begun_before_tables_were_remembered_keeps_its_own(start: Start) -> None:
    case = start(st.sink.table("a", batch_column="i"))
    case.begin(0)
    case.sinks.prepare(Tables(a=3), case.checkpoint)
    assert case.checkpoint.recall("tables") == {"fenced": ["a"]}


# A context that stopped in a JVM that lives


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """What stands for the JVM: like it, it ends with its input."""

    def shutdown() -> None:
        raise ConnectionError

    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(shutdown=shutdown, proc=process))
    for name in ("_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    yield process
    process.kill()
    process.wait()


def test_a_jvm_that_is_forgotten_ends(orphan: subprocess.Popen[bytes]) -> None:
    jvm.forget_dead_jvm()
    assert orphan.wait(timeout=60) == 0
    assert SparkContext._gateway is None
    jvm.forget_dead_jvm()  # there is none


@pytest.mark.parametrize("after", ["close", "recover"])
def test_the_lock_of_a_jvm_whose_context_stopped_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Else the next JVM would wait for it for 30 s, and give up."""
    calls: list[str] = []
    monkeypatch.setattr(jvm, "forget_dead_jvm", lambda: calls.append("forgotten"))
    monkeypatch.setattr(jvm, "is_alive", lambda _: False)
    topology = numbers(st.sink.discard())
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(topology)
    driver = BatchPlane(topology, checkpoint, Fixed(), {}, SimpleNamespace, threading.Event())
    driver._session, driver._jvm_lock = SimpleNamespace(), SimpleNamespace(close=lambda: calls.append("closed"))
    if after == "close":
        driver.close(stop_session=False)
        assert calls == ["closed"]
    else:
        driver._failure(RuntimeError("stopped"), progressed=False)
        assert calls == ["closed", "forgotten"] and driver._session is None
    driver.close(stop_session=False)
    assert calls.count("closed") == 1
    checkpoint.release()


WORKER = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "driver.py", line 1, in collect
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o154.get.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Thrown from the Python worker: Traceback (most recent call last):
  File "stepping.py", line 104, in _step
    return step(group)
           ^^^^^^^^^^^
pyarrow.lib.ArrowInvalid: overflow

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 430, in __call__
    task.remember(node)
{raised}
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WORKER.format(raised="pyarrow.lib.ArrowInvalid: overflow"), "pyarrow.lib.ArrowInvalid: overflow"),
        (WORKER.format(raised="springtide.errors.RunError: 'a' failed"), "springtide.errors.RunError: 'a' failed"),
        (WORKER.format(raised="AssertionError"), "AssertionError"),
        ("Traceback (most recent call last):\n  File\nPy4JError: \n: a.OtherException: full\n\tat x", "a.OtherException: full"),
        ("something\nelse", "something"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failure_is_what_a_worker_raised_and_no_wrapper(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


def test_an_age_is_counted_from_when_spark_fixed_what_a_batch_reads(start: Start, tmp_path: Path) -> None:
    """Spark began batch 3 at 3 ms; until it comes to the runner, its newest may be older than what is allowed. One in which
    all were left out tells of no age, and the next is not let off for that."""
    case = start(st.sink.files(tmp_path / "out"), control=Fixed(Plan({}, 1, {}, shed_after_s=0.25)))
    for batch in (3, 4):
        case.stage(batch, 1)
        case.tasks[-1] = replace(case.tasks[-1], shed=5)
        case.run(batch)
        manifest = case.checkpoint.manifest(batch)
        assert manifest is not None and manifest["plan"]["shed_before"] == round(batch / 1000 - 0.25, 6)


def test_a_batch_records_the_read_limit_by_which_its_offsets_were_fixed(start: Start, tmp_path: Path) -> None:
    """A control cycle lowered the limit after Spark had asked where the batch ends: the batch is above the new limit. When the
    batch is replayed, it has the recorded plan."""
    case = start(st.sink.files(tmp_path / "out"), control=Fixed(Plan({}, 1, {}, read_limit=170_258)))
    (source,) = case.runner._topology.sources
    for batch, obeyed in ((0, 256_000), (1, 170_258), (2, None)):
        SourceControl(obeyed).write(obeyed_file(case.checkpoint.source_control(source.name)))
        case.stage(batch, 1)
        case.run(batch)
        assert case.control.reports[-1].plan.read_limit == obeyed
        assert case.checkpoint.manifest(batch)["plan"]["read_limit"] == obeyed  # type: ignore[index]
        assert case.checkpoint.plans.read(batch).read_limit == obeyed  # type: ignore[union-attr]
