"""The end of a bounded run on real Spark: time comes to the last watermark, and nothing is left that had come."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from springtide.durable import read_json, write_atomic
from springtide.errors import CheckpointError, OptionError
from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.private.logs import Logs

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
Told = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Ride:
    route: str
    at: datetime.datetime
    fare: int


@dataclass(frozen=True)
class Seen:
    route: str
    rides: int


def at(seconds: float) -> datetime.datetime:
    return EPOCH + datetime.timedelta(seconds=seconds)


def put(folder: Path, name: str, seconds: range) -> None:
    """A file with a ride in each of these seconds, on one of three routes."""
    folder.mkdir(exist_ok=True)
    rides = [{"route": f"r{n % 3}", "at": at(n), "fare": n} for n in seconds]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rides, schema=read(folder).schema), folder / f"{name}.parquet")


def read(folder: Path, name: str = "source") -> Any:
    return st.source.files(str(folder), schema=Ride, format="parquet", name=name)


def go(spark: Any, topology: st.Topology, folder: Path, **options: Any) -> st.Result:
    return st.run(
        topology, target="60s", max_slots=2, spark=spark, runs=folder / "runs", checkpoint=folder / "checkpoint",
        **{"available_now": True, **options},
    )  # fmt: skip


def told(result: st.Result, sink: str, *columns: str) -> Told:
    try:
        rows = result.table(sink).to_pylist()
    except OptionError:  # a sink that received nothing has no table
        return []
    return sorted(tuple(row[column] for column in columns) for row in rows)


def by_minute(seconds: range, until: int) -> Told:
    """The rides of each route and minute that ended by then."""
    counted = Counter((f"r{n % 3}", at(n // 60 * 60)) for n in seconds if n // 60 * 60 + 60 <= until)
    return sorted((*window, rides) for window, rides in counted.items())


def windows(stream: Any, name: str = "minutes") -> Any:
    return stream.key_by("route").window("1m", n=st.agg.count(), shards=4, name=name)


@pytest.fixture
def few_partitions(spark: Any) -> Iterator[None]:
    """Spark's own state has 200 partitions otherwise, and a batch takes that many tasks."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def plain_windows(spark: Any, folder: Path) -> Any:
    """The same windows as Spark counts them: the route, how many seconds after the epoch they begin, and the count."""
    from pyspark.sql import functions as F

    frame = spark.readStream.schema("route string, at timestamp, fare long").parquet(str(folder))
    counted = frame.withWatermark("at", "10 seconds").groupBy("route", F.window("at", "1 minute")).count()
    start = F.unix_seconds("window.start") - F.lit(int(EPOCH.timestamp()))
    return counted.select("route", start.alias("start"), F.col("count").alias("n"))


@pytest.mark.usefixtures("few_partitions")
def test_available_now_emits_the_windows_that_plain_spark_emits(spark: Any, tmp_path: Path) -> None:
    """Ten minutes of rides; the watermark ends at 9:49, so nine minutes are closed, and three windows stay open."""
    put(tmp_path / "in", "rides", range(600))
    made = windows(read(tmp_path / "in").watermark("at", "10s")).to(st.sink.memory("windows")).named("closed")
    result = go(spark, made, tmp_path)

    counted = plain_windows(spark, tmp_path / "in")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")  # as Spark has it by default
    query = (
        counted.writeStream.format("memory").queryName("plain_windows").outputMode("append")
        .trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "plain")).start()
    )  # fmt: skip
    query.awaitTermination()
    plain = sorted((row.route, at(row.start), row.n) for row in spark.table("plain_windows").collect())

    assert told(result, "windows", "route", "window_start", "n") == plain == by_minute(range(600), 589)
    assert result.summary["ended"] == "available"
    assert result.summary["open"] == {"minutes": {"windows": 3, "timers": 0, "first": at(600).isoformat()}}


def test_a_later_run_goes_on_from_the_last_watermark(spark: Any, tmp_path: Path) -> None:
    """Nothing is told twice, what was open goes on, and what is behind the watermark is late."""
    put(tmp_path / "in", "1", range(150))
    rides = read(tmp_path / "in").watermark("at", "0s")
    counted = windows(rides)
    late = counted.late.to(st.sink.memory("late"))
    made = st.topology("later", counted.to(st.sink.memory("windows")), late)
    first = go(spark, made, tmp_path)
    assert told(first, "windows", "route", "window_start", "n") == by_minute(range(150), 149)

    nothing = go(spark, made, tmp_path)
    assert (nothing.summary["rows_in"], nothing.summary["rows_out"], nothing.summary["ended"]) == (0, 0, "available")

    put(tmp_path / "in", "2", range(100, 290))  # of which 20 are of minutes that are closed
    second = go(spark, made, tmp_path)
    expected = Counter((f"r{n % 3}", at(n // 60 * 60)) for n in (*range(120, 150), *range(120, 290)) if n < 240)
    assert told(second, "windows", "route", "window_start", "n") == sorted((*key, n) for key, n in expected.items())
    assert told(second, "late", "at") == [(at(n),) for n in range(100, 120)]


def test_time_comes_to_windows_behind_a_stateful_operator(spark: Any, tmp_path: Path) -> None:
    """Depth 2: the windows are a batch behind what is before them, so they take one closing batch more."""
    put(tmp_path / "in", "rides", range(300))
    put(tmp_path / "in", "again", range(100, 200))
    rides = read(tmp_path / "in").watermark("at", "10s")
    once = rides.key_by("route", "at").deduplicate(shards=4)
    made = windows(once).to(st.sink.memory("windows")).named("deep")
    result = go(spark, made, tmp_path)
    assert told(result, "windows", "route", "window_start", "n") == by_minute(range(300), 289)


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def test_a_join_lets_go_of_what_the_last_watermark_has_passed(spark: Any, tmp_path: Path) -> None:
    """Rides of one route, of every second and of every 50th, at most 10 s apart. What stays for partners to come is of the
    last seconds; a partner that comes too late for that finds nothing."""

    def combine(left: Ride, right: Ride) -> Pair:
        return Pair(left.fare, right.fare)

    put(tmp_path / "in", "every", range(0, 300, 3))  # all of route r0
    put(tmp_path / "some", "some", range(0, 300, 51))
    left, right = (read(tmp_path / name, name).watermark("at", "10s", name=f"{name}-at") for name in ("in", "some"))
    joined = left.key_by("route").join(right.key_by("route"), combine, within="10s", shards=4)
    made = joined.to(st.sink.memory("pairs")).named("joined")
    result = go(spark, made, tmp_path)
    expected = [(a, b) for a in range(0, 300, 3) for b in range(0, 300, 51) if abs(a - b) <= 10]
    assert told(result, "pairs", "left", "right") == expected
    put(tmp_path / "some", "late", range(120, 123, 3))
    again = go(spark, made, tmp_path)
    assert told(again, "pairs", "left", "right") == []
    assert again.summary["open"]["join"]["timers"] == 1


class Quiet(st.Processor):
    """Tells of a route when ten seconds have passed since its last ride."""

    rides = st.value(int, default=0)
    due = st.value(int, default=0)

    def process(self, key: str, records: list[Ride], state: st.State) -> Iterator[Seen]:
        state.rides += len(records)
        if state.due:
            state.cancel_timer(at(state.due))
        state.due = max(record.fare for record in records) + 10
        state.set_timer(at(state.due))
        return iter(())

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Seen]:
        yield Seen(key, state.rides)
        state.rides = state.due = 0


def test_timers_that_the_last_watermark_has_passed_come(spark: Any, tmp_path: Path) -> None:
    """Two routes were last seen at 0:20, a third goes on until 0:40. Its timer, of 0:50, stays open, and is counted."""
    folder = tmp_path / "in"
    folder.mkdir()
    rides = [{"route": route, "at": at(n), "fare": n} for route, n in (("a", 10), ("b", 20), ("c", 20), ("c", 40))]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rides, schema=read(folder).schema), folder / "rides.parquet")
    quiet = read(folder).watermark("at", "0s").key_by("route").stateful(Quiet, shards=4, name="quiet")
    result = go(spark, quiet.to(st.sink.memory("told")).named("quiet"), tmp_path)
    assert told(result, "told", "route", "rides") == [("a", 1), ("b", 1)]
    assert result.summary["open"] == {"quiet": {"windows": 0, "timers": 1, "first": at(50).isoformat()}}


def test_a_generated_stream_that_is_exhausted_closes_its_windows(spark: Any, tmp_path: Path) -> None:
    def make(draw: st.Draw) -> Ride:
        return Ride(f"r{draw.index % 3}", EPOCH + datetime.timedelta(seconds=draw.index), draw.index)

    rides = st.source.generate(make, rate=1e6, limit=200).watermark("at", "10s")
    result = go(spark, windows(rides).to(st.sink.memory("windows")).named("made"), tmp_path, available_now=False)
    assert result.summary["ended"] == "exhausted" and result.summary["rows_in"] == 200
    assert told(result, "windows", "route", "window_start", "n") == by_minute(range(200), 189)


class Crash(BaseException):
    """Ends the run as the death of its process would: the supervisor does not see it."""


@pytest.mark.parametrize("moment", ["offsets are logged", "manifest is there"])
def test_a_crash_in_a_closing_batch_is_made_good_by_the_next_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def crash(*_: Any) -> None:
        raise Crash

    put(tmp_path / "in", "rides", range(150))
    made = (
        windows(read(tmp_path / "in").watermark("at", "0s"))
        .to(st.sink.files(str(tmp_path / "out"), format="parquet"))
        .named("crash")
    )
    with monkeypatch.context() as patched:
        if moment == "offsets are logged":
            patched.setattr(BatchRunner, "close", crash)
        else:
            commit = Logs.commit
            patched.setattr(Logs, "commit", lambda self, n: crash() if n == 1 else commit(self, n))
        with pytest.raises(Crash):
            go(spark, made, tmp_path)
    spark_logs = tmp_path / "checkpoint" / "spark"
    assert (spark_logs / "offsets" / "1").exists() and not (spark_logs / "commits" / "1").exists()
    go(spark, made, tmp_path)
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["route"], row["window_start"], row["n"]) for row in rows) == by_minute(range(150), 149)
    assert (spark_logs / "commits" / "1").exists()


def test_a_closing_batch_that_fails_is_run_again(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs it then, from the offsets that were logged for it."""
    close = BatchRunner.close
    failed: list[bool] = []

    def fail_once(*arguments: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("the machine has a bad moment")
        close(*arguments)

    monkeypatch.setattr(BatchRunner, "close", fail_once)
    put(tmp_path / "in", "rides", range(150))
    made = windows(read(tmp_path / "in").watermark("at", "0s")).to(st.sink.memory("windows")).named("again")
    result = go(spark, made, tmp_path)
    assert told(result, "windows", "route", "window_start", "n") == by_minute(range(150), 149)
    assert (result.summary["restarts"], result.summary["ended"]) == (1, "available")


def test_a_query_that_is_stopped_from_elsewhere_is_no_end(spark: Any, tmp_path: Path) -> None:
    """Whoever stops the query of an ``available_now`` run leaves no error; the run goes on until all is read."""
    put(tmp_path / "in", "1", range(200))
    put(tmp_path / "in", "2", range(200, 400))
    stopped: list[str] = []

    def source() -> Any:
        return st.source.files(str(tmp_path / "in"), schema=Ride, format="parquet", max_files=1)

    prepare = st_driver().BatchPlane._start

    def start_and_stop(self: Any, ending: Any) -> Any:
        query = prepare(self, ending)
        if not stopped:
            stopped.append(query.name)
            query.stop()
        return query

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(st_driver().BatchPlane, "_start", start_and_stop)
        made = source().key_by("route").count(shards=4).to(st.sink.memory("counts")).named("stopped")
        result = go(spark, made, tmp_path)
    assert stopped and result.summary["rows_in"] == 400
    assert (result.summary["restarts"], result.summary["ended"]) == (1, "available")


def st_driver() -> Any:
    from springtide.spark.driver import plane

    return plane


@dataclass(frozen=True)
class Counted:
    route: str | None
    start: int | None
    n: int


@pytest.mark.usefixtures("few_partitions")
def test_windows_of_sparks_own_are_emitted_too(spark: Any, tmp_path: Path) -> None:
    """A DataFrame that aggregates has its state in Spark, which runs a batch without records for it."""
    put(tmp_path / "in", "rides", range(150))
    counted = st.source.dataframe(lambda session: plain_windows(session, tmp_path / "in"), schema=Counted)
    result = go(spark, counted.to(st.sink.memory("windows")).named("plain"), tmp_path)
    rows = [(route, at(start), n) for route, start, n in told(result, "windows", "route", "start", "n")]
    assert rows == by_minute(range(150), 139)


@dataclass(frozen=True)
class Tick:
    value: int


def test_a_batch_that_is_repeated_is_not_all_that_there_is(spark: Any, tmp_path: Path) -> None:
    """A crash between the manifest and Spark's commit: the next run repeats that batch, which is committed. With a source that
    does not know the trigger, Spark would end there: a run of 0 batches, and thousands of records waiting."""

    def ticks(session: Any) -> Any:
        return session.readStream.format("rate").option("rowsPerSecond", 1_000).load().select("value")

    made = st.source.dataframe(ticks, schema=Tick, ordered=True).to(st.sink.memory("out")).named("repeated")
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "false")  # Spark's default
    go(spark, made, tmp_path, available_now=False, batches=2)
    manifest = Checkpoint(tmp_path / "checkpoint").last_manifest()
    assert manifest is not None
    for name, first in (("offsets", manifest["batch"] + 1), ("commits", manifest["batch"])):
        for path in (tmp_path / "checkpoint" / "spark" / name).glob("[0-9]*"):
            if int(path.name) >= first:
                path.unlink()
    time.sleep(2.0)  # this source brings its records once a second
    result = go(spark, made, tmp_path)
    assert result.summary["rows_in"] > 0 and result.summary["ended"] == "available"


def test_a_schedule_that_is_gone_is_not_begun_anew(spark: Any, tmp_path: Path) -> None:
    """It would hold back the records that are due for as long as the checkpoint is old: a run of no batches."""

    def make(draw: st.Draw) -> Seen:
        return Seen(f"r{draw.index}", draw.index)

    made = st.source.generate(make, rate=1_000).to(st.sink.memory("out")).named("schedule")
    go(spark, made, tmp_path, available_now=False, batches=1)
    own = tmp_path / "checkpoint" / "springtide"
    schedule, before = own / "schedule.json", (own / "schedule.json").read_bytes()
    schedule.unlink()
    assert go(spark, made, tmp_path).summary["rows_in"] > 0
    assert schedule.read_bytes() == before, "it was put back from the manifest"
    for document in (*(own / "manifests").iterdir(), own / "begun.json"):  # as earlier versions wrote them
        content = read_json(document) or {}
        for name in ("schedule", "settled", "previous"):
            content.pop(name, None)
        write_atomic(document, content)
    schedule.unlink()
    with pytest.raises(CheckpointError, match=rf"{schedule} is gone.*put that file back from a copy"):
        go(spark, made, tmp_path)
