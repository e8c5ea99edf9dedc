"""Stateful operators on real Spark: totals, windows, late records, restarts, other widths, other declarations, and damage."""

from __future__ import annotations

import datetime
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from crash.job import fixed_limit
from springtide.errors import CheckpointError, RunError
from springtide.record.folder import RunFolder
from springtide.running import execution
from springtide.spark.state.reading import reading, stored_state

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Ride:
    route: str
    at: datetime.datetime
    fare: int


@dataclass(frozen=True)
class Total:
    route: str
    rides: int
    fares: int


def ride(draw: st.Draw) -> Ride:
    """One a second of its own time; every 50th is two minutes and a half late."""
    late = 150 if draw.index % 50 == 49 else 0
    return Ride(f"r{draw.index % 11}", EPOCH + datetime.timedelta(seconds=draw.index - late), draw.index)


def rides(limit: int) -> st.Stream:
    return st.source.generate(ride, rate=1e6, limit=limit)


class Totals(st.Processor):
    rides = st.value(int, default=0)
    fares = st.value(int, default=0)

    def process(self, key: str, records: list[Ride], state: st.State) -> Iterator[Total]:
        state.rides += len(records)
        state.fares += sum(record.fare for record in records)
        yield Total(key, state.rides, state.fares)


def totals(limit: int, **options: Any) -> st.Topology:
    made = rides(limit).key_by("route").stateful(Totals, shards=16, **options)
    return made.to(st.sink.memory("out")).named("totals")


def expected(limit: int) -> dict[str, tuple[int, int]]:
    counted: Counter[str] = Counter()
    fares: Counter[str] = Counter()
    for n in range(limit):
        counted[f"r{n % 11}"] += 1
        fares[f"r{n % 11}"] += n
    return {route: (counted[route], fares[route]) for route in counted}


def remembered(checkpoint: Path, operator: str = "totals") -> dict[str, tuple[int, ...]]:
    with reading(checkpoint, operator) as state:
        rows = [row for part in state.rows() for row in part.to_pylist()]
    return {row["key.route"]: tuple(v for name, v in row.items() if name.startswith("state.")) for row in rows}


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 100 records, whatever the machine."""
    monkeypatch.setattr(execution, "ReadLimit", fixed_limit(100))


def go(spark: Any, topology: st.Topology, folder: Path, **options: Any) -> st.Result:
    return st.run(
        topology, target="60s", max_slots=options.pop("max_slots", 3), spark=spark, runs=folder / "runs",
        checkpoint=folder / "checkpoint", **options,
    )  # fmt: skip


@pytest.mark.usefixtures("small_batches")
def test_totals_outlive_the_run_and_its_widths(spark: Any, tmp_path: Path) -> None:
    """Stopped after every few batches, and started again with another width: as if nothing had been."""
    limit, widths = 5_000, (1, 3, 2, 3)
    for number, width in enumerate(widths):
        ending = {"batches": 4} if number < 3 else {}  # it may be a few more until the run has ended
        result = go(spark, totals(limit), tmp_path, policy="static", settings={"degree": width}, max_slots=width, **ending)
    assert remembered(tmp_path / "checkpoint") == expected(limit)
    last = {row["route"]: (row["rides"], row["fares"]) for row in result.table("out").to_pylist()}
    assert last == expected(limit)
    runs = [RunFolder.open(path).batches() for path in sorted((tmp_path / "runs").iterdir())]
    seen = [[one.plan.widths["totals"] for one in batches] for batches in runs]
    assert tuple(max(one[1:]) for one in seen) == widths, seen  # the first may be a replay; later ones may need fewer
    final = runs[-1][-1].state["totals"]
    assert (final.keys, final.late) == (11, 0) and final.bytes > 0 and final.load_s > 0


@pytest.mark.usefixtures("small_batches")
def test_windows_close_late_records_go_their_own_way(spark: Any, tmp_path: Path) -> None:
    timed = rides(1_000).watermark("at", "30s").key_by("route")
    windows = timed.window("2m", n=st.agg.count(), fares=st.agg.sum("fare"), shards=8)
    result = go(
        spark,
        st.topology("windows", windows.to(st.sink.memory("windows")), windows.late.to(st.sink.memory("late"))),
        tmp_path, policy="static", settings={"degree": 2},
    )  # fmt: skip
    reported = result.table("windows").to_pylist()
    assert result.table("late").schema.names == ["route", "at", "fare", "window_start", "window_end"]
    late = result.table("late").to_pylist()
    keys = [(row["route"], row["window_start"]) for row in reported]
    assert len(keys) == len(set(keys)), "a window was reported twice"
    assert sum(row["n"] for row in reported) + len(late) <= 1_000
    late_fares = {row["fare"] for row in late}
    for row in reported:
        begin, end = row["window_start"], row["window_end"]
        inside = [one for one in map(_ride, range(1_000)) if one.route == row["route"] and begin <= one.at < end]
        assert row["n"] == len([one for one in inside if one.fare not in late_fares]), row
    assert len(reported) >= 11 * 6  # of 1,000 s, all windows but the last ones


def _ride(n: int) -> Ride:
    late = 150 if n % 50 == 49 else 0
    return Ride(f"r{n % 11}", EPOCH + datetime.timedelta(seconds=n - late), n)


@pytest.mark.usefixtures("small_batches")
def test_a_changed_declaration_is_refused_or_migrated(spark: Any, tmp_path: Path) -> None:
    go(spark, totals(600), tmp_path, batches=3)

    class Renamed(st.Processor):
        count = st.value(int, default=0)
        fares = st.value(int, default=0)

        def process(self, key: str, records: list[Ride], state: st.State) -> Iterator[Total]:
            state.count += len(records)
            state.fares += sum(record.fare for record in records)
            yield Total(key, state.count, state.fares)

    def changed(shards: int = 16, **options: Any) -> st.Topology:
        made = rides(600).key_by("route").stateful(Renamed, shards=shards, name="totals", **options)
        return made.to(st.sink.memory("out")).named("totals")

    with pytest.raises(CheckpointError, match=r"declares count: int64, fares: int64; in checkpoint .* rides: int64"):
        go(spark, changed(), tmp_path)
    with pytest.raises(CheckpointError, match=r"shards=32, but in checkpoint .* it has 16"):
        go(spark, changed(shards=32), tmp_path)
    go(spark, changed(migrate=lambda old: {"count": old["rides"], "fares": old["fares"]}), tmp_path)
    found = remembered(tmp_path / "checkpoint")
    assert {key: (values[0], values[1]) for key, values in found.items()} == expected(600)


@pytest.mark.usefixtures("small_batches")
def test_what_fails_in_a_worker_is_named_when_the_run_is_given_up(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class More(Totals):
        more = st.value(int)

    go(spark, totals(600), tmp_path, batches=3)
    monkeypatch.setattr("springtide.control.supervisor.GIVE_UP_AFTER", 0)
    made = rides(600).key_by("route").stateful(More, shards=16, name="totals", migrate=lambda old: {**old, "more": old["x"]})
    with pytest.raises(RunError, match=r"the last time with .*operator 'totals': migrate failed on .*fares: KeyError: 'x'"):
        go(spark, made.to(st.sink.memory("out")).named("totals"), tmp_path)


@pytest.mark.usefixtures("small_batches")
def test_a_damaged_merge_is_mended_from_what_it_was_made_of(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go(spark, totals(3_000), tmp_path, batches=14)
    stored = stored_state(tmp_path / "checkpoint", "totals")
    merged = next(Path(stored.place) / run.files[0].name for run in stored.catalog.runs if run.before)
    whole = merged.read_bytes()
    merged.write_bytes(whole[:90] + bytes([whole[90] ^ 255]) + whole[91:])
    with caplog.at_level(logging.WARNING):
        go(spark, totals(3_000), tmp_path)
    assert f"state file {merged} is damaged; the files that it was merged from are used instead" in caplog.text
    assert remembered(tmp_path / "checkpoint") == expected(3_000)


@pytest.mark.usefixtures("small_batches")
def test_damage_that_cannot_be_mended_ends_the_run_and_is_named(spark: Any, tmp_path: Path) -> None:
    go(spark, totals(1_000), tmp_path, batches=3)
    folder = tmp_path / "checkpoint" / "springtide" / "state" / "totals"
    newest = max(folder.glob("*.state"))
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=f"{newest} has .* bytes of .* operator 'totals'.*put that file back from a copy"):
        go(spark, totals(1_000), tmp_path)


class Reminder(st.Processor):
    """Tells of a key once the clock has gone on for a second after its first record."""

    seen = st.value(int, default=0)

    def process(self, key: str, records: list[Ride], state: st.State) -> Iterator[Total]:
        if not state.seen:
            state.set_timer(state.now + datetime.timedelta(seconds=1), "processing")
        state.seen += len(records)
        return iter(())

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Total]:
        yield Total(key, state.seen, 0)


def test_timers_come_when_no_records_do(spark: Any, tmp_path: Path) -> None:
    """All records come in one file, one batch. Nothing but time goes on behind it, here and after another start."""
    (tmp_path / "in").mkdir()
    source = st.source.files(str(tmp_path / "in"), schema=Ride, format="parquet")
    put = pa.Table.from_pylist(
        [{"route": f"r{n % 3}", "at": EPOCH + datetime.timedelta(seconds=n), "fare": n} for n in range(90)]
    )
    pyarrow.parquet.write_table(put.cast(source.schema), tmp_path / "in" / "rides.parquet")
    reminded = source.key_by("route").stateful(Reminder, shards=4)
    windows = source.watermark("at", "10s").key_by("route").window("1m", n=st.agg.count(), shards=4)
    made = st.topology("timers", reminded.to(st.sink.memory("reminded")), windows.to(st.sink.memory("windows")))
    result = go(spark, made, tmp_path, batches=6)
    assert sorted((row["route"], row["rides"]) for row in result.table("reminded").to_pylist()) == [
        (f"r{n}", 30) for n in range(3)
    ]
    reported = [(row["route"], row["window_start"], row["n"]) for row in result.table("windows").to_pylist()]
    assert sorted(reported) == [(f"r{n}", EPOCH, 20) for n in range(3)]  # the watermark is 89 − 10 s: the second minute is open
    assert go(spark, made, tmp_path, batches=2).summary["rows_out"] == 0


def test_all_that_is_there_is_read_in_batches_also_with_timers(spark: Any, tmp_path: Path) -> None:
    """Three files, one a batch: the watermark ends at 2:59, and has closed the windows of the first two minutes."""
    (tmp_path / "in").mkdir()
    source = st.source.files(str(tmp_path / "in"), schema=Ride, format="parquet", max_files=1)
    for minute in range(3):
        rides = [{"route": "r", "at": EPOCH + datetime.timedelta(seconds=60 * minute + n), "fare": n} for n in range(60)]
        path = tmp_path / "in" / f"{minute}.parquet"
        pyarrow.parquet.write_table(pa.Table.from_pylist(rides).cast(source.schema), path)
        os.utime(path, (minute, minute))  # the oldest comes first
    windows = source.watermark("at", "0s").key_by("route").window("1m", n=st.agg.count(), shards=4)
    result = go(spark, windows.to(st.sink.memory("windows")).named("there"), tmp_path, available_now=True)
    assert result.summary["rows_in"] == 180 and result.summary["batches"] >= 3
    reported = [(row["window_start"], row["n"]) for row in result.table("windows").to_pylist()]
    assert reported == [(EPOCH, 60), (EPOCH + datetime.timedelta(minutes=1), 60)]
