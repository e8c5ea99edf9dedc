"""The generated source: offsets, partitions and records, by hand with a fake clock, and in queries."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from springtide.spark.driver.arrivals import SourceActuator
from springtide.spark.driver.generated import data_source, stream
from springtide.spark.task.generate import (
    BATCH_ROWS,
    GenerateDataSource,
    GenerateReader,
    IndexRange,
    Records,
    Schedule,
    SourceControl,
    Start,
    scheduled,
)

import springtide
from springtide.errors import OptionError, RecordError
from springtide.model.endpoints import GenerateSource
from springtide.model.generated import Draw, draws
from springtide.model.plan import Plan
from springtide.model.rate import Rate, constant
from springtide.model.schema import schema_of
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.program import CREATED

T0 = 1_700_000_000.25
T0_MICROS = 1_700_000_000_250_000


@dataclass(frozen=True)
class Trip:
    id: int
    fare: float
    route: str | None


def trip(draw: Draw) -> Trip:
    return Trip(draw.index, draw.random.random(), draw.random.choice(["a", "b", None]))


COLUMNS = schema_of(Trip)
WITH_CREATED = COLUMNS.append(pa.field(CREATED, pa.int64(), nullable=False))


@dataclass
class Clock:
    """A clock that is set by hand, in seconds after T0."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return T0 + self.seconds


@dataclass
class Bench:
    """A reader of 10 records/s with its clock and its control file."""

    reader: GenerateReader
    clock: Clock
    control: Path

    def latest(self, start: int, limit: ReadLimit | None = None) -> int:
        wanted = limit or self.reader.getDefaultReadLimit()
        return self.reader.latestOffset({"next": start}, wanted)["next"]

    def cut(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(p.first, p.last) for p in self.reader.partitions({"next": start}, {"next": end})]


def bench(folder: Path, limit: int | None = None, rate: Rate | None = None) -> Bench:
    clock, control = Clock(), folder / "control.json"
    schedule = Schedule(GenerateSource(trip, rate or constant(10), limit=limit), lambda: T0, control, clock)
    return Bench(GenerateReader(Records(trip, 0, WITH_CREATED), lambda: schedule), clock, control)


def test_a_stream_starts_at_its_first_record(tmp_path: Path) -> None:
    assert bench(tmp_path).reader.initialOffset() == {"next": 0}


def test_as_many_records_are_ready_as_the_schedule_has_by_now(tmp_path: Path) -> None:
    made = bench(tmp_path)
    assert made.latest(0) == 0
    made.clock.seconds = 2.55
    assert made.latest(0) == made.latest(20) == 25
    assert made.reader.reportLatestOffset() == {"next": 25}


def test_the_clock_set_back_takes_no_record_back(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.clock.seconds = 10.0
    assert made.latest(0) == 100
    made.clock.seconds = -3600.0
    assert made.latest(0) == made.latest(100) == 100
    assert made.reader.reportLatestOffset() == {"next": 100}


def test_a_checkpoint_ahead_of_the_clock_waits_for_it(tmp_path: Path) -> None:
    """After a restart on a machine whose clock is behind, the reader has seen nothing yet."""
    made = bench(tmp_path)
    made.clock.seconds = 1.0
    assert made.latest(500) == 500
    made.clock.seconds = 51.0
    assert made.latest(500) == 510


def test_the_schedule_starts_when_spark_first_asks_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is part of it: the first batch has the records of a tenth of a second."""
    clock, file = Clock(50.0), tmp_path / "schedule.json"
    monkeypatch.setattr(time, "sleep", lambda waited: setattr(clock, "seconds", clock.seconds + waited))

    def schedule() -> Schedule:
        return Schedule(GenerateSource(trip, constant(1_000)), Start(file, clock), tmp_path / "numbers.json", clock)

    first, other = schedule(), schedule()
    assert not file.exists()
    assert first.latest(0, None) == pytest.approx(100, abs=1)
    assert json.loads(file.read_text())["started"] == T0 + 50.0
    clock.seconds = 51.0
    assert other.latest(0, None) == first.latest(0, None) == 1_000
    assert {part.t0 for part in first.ranges(0, 20)} == {T0 + 50.0}
    clock.seconds = 90.0  # a restart
    assert schedule().latest(1_000, None) == 40_000


def test_the_limit_ends_the_stream(tmp_path: Path) -> None:
    made = bench(tmp_path, limit=12)
    made.clock.seconds = 100.0
    assert made.latest(0) == made.latest(12) == 12
    assert made.reader.reportLatestOffset() == {"next": 12}


def test_scheduled_counts_up_to_the_limit() -> None:
    assert [scheduled(GenerateSource(trip, constant(10), limit=12), s) for s in (-1.0, 1.0, 2.0)] == [
        0,
        10,
        12,
    ]
    assert scheduled(GenerateSource(trip, constant(10)), 2.0) == 20


def test_the_read_limit_changes_from_batch_to_batch(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.clock.seconds = 100.0
    SourceControl(read_limit=30).write(made.control)
    assert made.latest(0) == 30
    SourceControl(read_limit=7).write(made.control)
    assert made.latest(30) == 37
    SourceControl(read_limit=0).write(made.control)
    assert made.latest(37) == 37
    SourceControl(read_limit=None).write(made.control)
    assert made.latest(37) == 1000


def test_sparks_own_limit_applies_too(tmp_path: Path) -> None:
    """The smaller of two limits holds; a trigger that demands all there is gets it."""
    made = bench(tmp_path)
    made.clock.seconds = 100.0
    SourceControl(read_limit=30).write(made.control)
    assert made.latest(0, ReadMaxRows(20)) == 20
    assert made.latest(0, ReadMaxRows(50)) == 30
    assert made.latest(0, ReadAllAvailable()) == 1000


@pytest.mark.parametrize(
    "torn",
    [
        "",
        '{"read_limit": 5, "part',
        "null",
        "[]",
        "{}",
        '{"read_limit": 5}',
        '{"read_limit": -1, "partitions": 2}',
        '{"read_limit": true, "partitions": 2}',
        '{"read_limit": 5, "partitions": 0}',
        '{"read_limit": 5, "partitions": 2.5}',
    ],
)
def test_a_torn_or_missing_control_file_leaves_the_last_one_in_force(tmp_path: Path, torn: str) -> None:
    made = bench(tmp_path)
    made.clock.seconds = 100.0
    assert made.latest(0) == 1000
    assert made.cut(0, 1000) == [(0, 1000)]
    SourceControl(read_limit=30, partitions=3).write(made.control)
    assert made.latest(0) == 30
    made.control.write_text(torn)
    assert made.latest(0) == 30
    assert made.cut(0, 30) == [(0, 10), (10, 20), (20, 30)]
    made.control.unlink()
    assert made.latest(30) == 60
    assert made.cut(30, 33) == [(30, 31), (31, 32), (32, 33)]


def test_a_control_document_is_written_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    SourceControl(5, 2).write(tmp_path / "deep" / "control.json")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["control.json"]
    assert SourceControl.parse((tmp_path / "deep" / "control.json").read_text()) == SourceControl(5, 2)


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(1, 200))
def test_partitions_are_even_contiguous_and_never_empty(start: int, rows: int, partitions: int) -> None:
    schedule = Schedule(GenerateSource(trip, constant(10)), lambda: T0, Path("none"), _control=SourceControl(None, partitions))
    ranges = schedule.ranges(start, start + rows)
    assert len(ranges) == min(partitions, rows)
    assert [i for r in ranges for i in range(r.first, r.last)] == list(range(start, start + rows))
    sizes = {r.last - r.first for r in ranges}
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


def test_one_batch_is_cut_the_same_way_however_often_spark_asks(tmp_path: Path) -> None:
    made = bench(tmp_path)
    SourceControl(None, 2).write(made.control)
    assert made.cut(0, 10) == [(0, 5), (5, 10)]
    SourceControl(None, 1).write(made.control)
    assert made.cut(0, 10) == [(0, 5), (5, 10)]
    assert made.cut(10, 20) == [(10, 20)]


def test_available_now_reads_what_there_was_in_several_batches_and_ends(tmp_path: Path) -> None:
    made = bench(tmp_path)
    SourceControl(read_limit=40).write(made.control)
    made.clock.seconds = 10.0
    made.reader.prepareForTriggerAvailableNow()
    made.clock.seconds = 1000.0
    assert made.latest(0) == 40
    assert made.latest(40) == 80
    assert made.latest(80) == made.latest(100) == 100


def test_available_now_ends_at_once_behind_a_checkpoint_ahead_of_the_clock(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.clock.seconds = 1.0
    made.reader.prepareForTriggerAvailableNow()
    assert made.latest(500) == 500


def _rows(reader: GenerateReader, start: int, end: int) -> list[dict[str, Any]]:
    """The rows of a batch, as tasks make them: a partition is pickled on its way."""
    rows = []
    for partition in reader.partitions({"next": start}, {"next": end}):
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema == WITH_CREATED
            rows += batch.to_pylist()
    return rows


def test_records_are_the_users_columns_and_the_creation_time(tmp_path: Path) -> None:
    made = bench(tmp_path)
    wanted = [{**vars(trip(draw)), CREATED: T0_MICROS + 100_000 * (draw.index + 1)} for draw in draws(0, 3, [0, 0])]
    assert _rows(made.reader, 3, 5) == wanted


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 5))
def test_records_do_not_depend_on_how_the_stream_is_cut(sizes: list[int], partitions: int) -> None:
    rate = Rate((0.0, 0.7, 3.0), (20.0, 0.0, 35.5))
    schedule = Schedule(GenerateSource(trip, rate), lambda: T0, Path("none"), _control=SourceControl(None, partitions))
    reader = GenerateReader(Records(trip, 5, WITH_CREATED), lambda: schedule)
    rows, start = [], 0
    for size in sizes:
        rows += _rows(reader, start, start + size)
        start += size
    schedule._control = SourceControl()
    assert rows == _rows(reader, 0, start)
    assert [row["id"] for row in rows] == list(range(start))


def test_batches_have_at_most_10_000_rows(tmp_path: Path) -> None:
    reader = bench(tmp_path, rate=constant(1e6)).reader
    (partition,) = reader.partitions({"next": 0}, {"next": 2 * BATCH_ROWS + 1})
    assert [batch.num_rows for batch in reader.read(partition)] == [BATCH_ROWS, BATCH_ROWS, 1]


def test_what_travels_to_the_tasks_is_small(tmp_path: Path) -> None:
    """A function sampled for an hour has 36,000 steps; 1,000 records at 200/s need some 50 of them."""
    rate = Rate(tuple(i / 10 for i in range(36_000)), tuple(200.0 + i % 7 for i in range(36_000)))
    made = bench(tmp_path, rate=rate)
    (partition,) = made.reader.partitions({"next": 500_000}, {"next": 501_000})
    assert len(pickle.dumps(partition)) < 3_000
    assert [row["id"] for row in _rows(made.reader, 500_000, 501_000)] == list(range(500_000, 501_000))


def _faults(make: Callable[[Draw], Any]) -> str:
    records = Records(make, 0, WITH_CREATED)
    with pytest.raises(RecordError) as caught:
        list(records.batches(IndexRange(10, 20, constant(10).steps, T0)))
    return str(caught.value)


def test_a_function_that_raises_is_reported_with_the_record() -> None:
    def broken(draw: Draw) -> Trip:
        if draw.index == 13:
            raise ValueError("no more trips")
        return trip(draw)

    assert "broken: record 13 failed: ValueError: no more trips" in _faults(broken)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (Trip("x", 1.0, None), "'x'"),  # type: ignore[arg-type]
        (Trip(2**63, 1.0, None), "9223372036854775808"),
        (Trip(None, 1.0, None), "'id' is None"),  # type: ignore[arg-type]
        (Trip(1, 1.0, 5), "int"),  # type: ignore[arg-type]
        (None, "NoneType"),
        ({"id": 1, "fare": 1.0}, "route"),
    ],
)
def test_a_record_that_does_not_fit_is_reported_with_its_index(wrong: object, fault: str) -> None:
    message = _faults(lambda draw: wrong if draw.index in (15, 17) else trip(draw))
    assert "record 15 does not fit its schema" in message
    assert fault in message


def test_a_mapping_is_a_record_too() -> None:
    records = Records(lambda draw: vars(trip(draw)), 0, WITH_CREATED)
    (batch,) = records.batches(IndexRange(0, 2, constant(10).steps, T0))
    assert batch["id"].to_pylist() == [0, 1]


def test_every_data_source_has_a_name_of_its_own() -> None:
    spec = GenerateSource(trip, constant(10))
    first, second = data_source(spec, COLUMNS), data_source(spec, COLUMNS)
    assert GenerateDataSource.name() == "springtide-generate"
    assert first.name().startswith("springtide-generate-")
    assert first.name() != second.name()


def test_a_missing_option_is_named() -> None:
    source = data_source(GenerateSource(trip, constant(10)), COLUMNS)(options={})
    with pytest.raises(OptionError, match="'start' is missing"):
        source.streamReader(source.schema())


@dataclass
class Seen:
    """What the batches of a query brought, by their numbers, and into how many partitions they were cut."""

    rows: dict[int, list[tuple[Any, ...]]]
    partitions: dict[int, int]
    then: Callable[[int], None] = lambda batch: None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows[batch] = [tuple(row) for row in frame.collect()]
        self.partitions[batch] = frame.rdd.getNumPartitions()
        self.then(batch)

    @property
    def all(self) -> list[tuple[Any, ...]]:
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]


def _wanted(seed: int, first: int, last: int, rate: float) -> list[tuple[Any, ...]]:
    dates = constant(rate).created(first, last)
    return [
        (*vars(trip(draw)).values(), T0_MICROS + round(t * 1e6))
        for draw, t in zip(draws(seed, first, [0] * (last - first)), dates, strict=True)
    ]


def _run(spark: SparkSession, folder: Path, spec: GenerateSource, seen: Seen) -> None:
    (folder / "start.json").write_text(json.dumps({"started": T0}))
    frame = stream(spark, spec, COLUMNS, folder / "start.json", folder / "control.json")
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
def test_rows_are_exact_over_batches_whose_limits_and_partitions_change(spark: SparkSession, tmp_path: Path) -> None:
    plans = [SourceControl(100, 2), SourceControl(250, 5), SourceControl(7, 1), SourceControl(3, 4), SourceControl(None, 3)]

    def next_plan(batch: int) -> None:
        plans[min(batch + 1, len(plans) - 1)].write(tmp_path / "control.json")

    next_plan(-1)
    seen = Seen({}, {}, next_plan)
    _run(spark, tmp_path, GenerateSource(trip, constant(40), seed=9, limit=1000), seen)
    assert [len(seen.rows[batch]) for batch in sorted(seen.rows)] == [100, 250, 7, 3, 640]
    assert seen.partitions == {0: 2, 1: 5, 2: 1, 3: 3, 4: 3}
    assert seen.all == _wanted(9, 0, 1000, 40)


class Crash(Exception):
    """Stands for whatever kills a batch."""


@pytest.mark.spark
def test_a_restart_goes_on_without_gap_or_double_and_repeats_a_lost_batch(spark: SparkSession, tmp_path: Path) -> None:
    spec = GenerateSource(trip, constant(40), limit=500)

    def crash(batch: int) -> None:
        if batch == 1:
            raise Crash

    SourceControl(200, 2).write(tmp_path / "control.json")
    before = Seen({}, {}, crash)
    with pytest.raises(Exception, match="Crash"):
        _run(spark, tmp_path, spec, before)
    SourceControl(150, 3).write(tmp_path / "control.json")
    after = Seen({}, {})
    _run(spark, tmp_path, spec, after)
    assert sorted(after.rows) == [1, 2]
    assert after.rows[1] == before.rows[1]
    assert before.rows[0] + after.all == _wanted(0, 0, 500, 40)


@pytest.mark.spark
def test_a_fault_of_the_function_fails_the_query_and_names_the_record(spark: SparkSession, tmp_path: Path) -> None:
    def broken(draw: Draw) -> Trip:
        return Trip(1 // (draw.index - 7), 0.0, None)

    with pytest.raises(Exception, match="record 7 failed: ZeroDivisionError"):
        _run(spark, tmp_path, GenerateSource(broken, constant(40), limit=20), Seen({}, {}))


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
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "loaded_by_path.py"
    file.write_text(MODULE)
    monkeypatch.setitem(sys.modules, file.stem, _loaded(file))
    seen = Seen({}, {})
    _run(spark, tmp_path, GenerateSource(sys.modules[file.stem].make, constant(40), limit=5), seen)
    assert [row[0] for row in seen.all] == [0, 1, 4, 9, 16]


SCRIPT = (
    MODULE
    + """
if __name__ == "__main__":
    import sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from springtide.model.endpoints import GenerateSource
    from springtide.model.rate import constant
    from springtide.model.schema import schema_of
    from springtide.spark.driver.generated import stream

    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spec = GenerateSource(make, constant(40), limit=5)
    Path(sys.argv[1], "start").write_text('{"started": 0.0}')
    frame = stream(spark, spec, schema_of(Trip), sys.argv[1] + "/start", sys.argv[1] + "/control")
    rows = []
    writer = frame.writeStream.foreachBatch(lambda batch, number: rows.extend(r.id for r in batch.collect()))
    writer = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    print("rows", rows)
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


def test_a_batch_has_no_more_than_the_source_allows(tmp_path: Path) -> None:
    """The plan's limit is shared by two sources; the one that allows less keeps to that."""
    a = springtide.source.generate(trip, rate=1, name="a", max_records=30)
    b = springtide.source.generate(trip, rate=1, name="b")
    topology = a.union(b).to(springtide.sink.discard()).named("two")
    checkpoint = Checkpoint(tmp_path)
    (checkpoint.own / "sources").mkdir(parents=True)
    actuator = SourceActuator(checkpoint, topology)
    for limit, expected in ((100, (30, 50)), (40, (20, 20)), (None, (30, None))):
        actuator.apply(Plan({}, 1, {}, limit))
        limits = [json.loads(checkpoint.source_control(name).read_text())["read_limit"] for name in ("a", "b")]
        assert tuple(limits) == expected
    with pytest.raises(OptionError, match="max_records=0 is not allowed"):
        springtide.source.generate(trip, rate=1, max_records=0)
