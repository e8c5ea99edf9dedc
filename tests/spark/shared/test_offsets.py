"""Where Spark's batches end: the planner of a source, Spark's interface to it, and what a source decides at its beginning."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from springtide.connectors.generate import GenerateSource
from springtide.errors import RunError
from springtide.model.generated import Draw
from springtide.model.rate import constant
from springtide.model.source import Enumerator, Memory, Position, Range, Reader, Source, SourceFailed, SourceUnavailable

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from springtide.durable import write_atomic
from springtide.spark.shared import offsets
from springtide.spark.shared.offsets import FIRST_S, Beginning, OffsetReader, Planner, SourceControl, offsets_of

COLUMNS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Tap:
    """A stream that is filled and closed by hand."""

    end: int = 0
    away: bool = False
    gone: str = ""
    asked: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Tapped(Source):
    tap: Tap
    most_of_user: int | None = None

    @property
    def most(self) -> int | None:
        return self.most_of_user

    def begin(self) -> Memory:
        if self.tap.away:
            raise SourceUnavailable("nobody listens")
        return {"first": self.tap.end}

    def enumerator(self, memory: Memory) -> Enumerator:
        return Valve(self.tap, int(memory.get("first", 0)))

    def reader(self, schema: pa.Schema, record: type | None) -> Reader:
        raise AssertionError("no tasks in these tests")


class Valve(Enumerator):
    """Positions with keys in changing order, as those of a connector that asks a cluster."""

    def __init__(self, tap: Tap, first: int) -> None:
        self._tap, self._first, self._asks = tap, first, 0

    def first(self) -> Position:
        return {"next": self._first, "id": "x"}

    def end(self, since: Position) -> Position:
        self._tap.asked.append(since["next"])
        if self._tap.away:
            raise SourceUnavailable("nobody listens")
        if self._tap.gone:
            raise RunError(self._tap.gone)
        return self._position(max(self._tap.end, since["next"]))

    def _position(self, number: int) -> Position:
        self._asks += 1
        return {"next": number, "id": "x"} if self._asks % 2 else {"id": "x", "next": number}

    def count(self, since: Position, until: Position) -> int:
        return int(until["next"] - since["next"])

    def limited(self, since: Position, end: Position, most: int) -> Position:
        return self._position(min(end["next"], since["next"] + max(1, most)))

    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        raise AssertionError("the driver cuts")


@dataclass
class Bench:
    """A reader of a tap with its control file."""

    tap: Tap
    reader: OffsetReader
    control: Path

    def latest(self, start: int, limit: ReadLimit | None = None) -> int:
        wanted = limit or self.reader.getDefaultReadLimit()
        return int(self.reader.latestOffset({"id": "x", "next": start}, wanted)["next"])


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time here."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def bench(folder: Path, most: int | None = None, end: int = 1000, first: int = 0) -> Bench:
    tap, control = Tap(end), folder / "control.json"
    return Bench(tap, OffsetReader(lambda: Planner(Tapped(tap, most), lambda: {"first": first}, control)), control)


# Positions


def test_a_stream_starts_where_its_memory_says(tmp_path: Path) -> None:
    assert bench(tmp_path, first=17).reader.initialOffset() == {"id": "x", "next": 17}


def test_a_batch_ends_where_the_stream_ends(tmp_path: Path) -> None:
    made = bench(tmp_path, end=0)
    assert made.reader.reportLatestOffset() is None
    assert made.latest(0) == 0
    made.tap.end = 25
    assert made.latest(0) == made.latest(20) == 25
    assert made.reader.reportLatestOffset() == {"id": "x", "next": 25}


def test_equal_positions_have_one_text(tmp_path: Path) -> None:
    """Spark compares offsets as text: another order of the keys would be another batch, without records."""
    made = bench(tmp_path)
    limit = made.reader.getDefaultReadLimit()
    texts = {json.dumps(made.reader.latestOffset({"next": 1000, "id": "x"}, limit)) for _ in range(4)}
    assert texts == {'{"id": "x", "next": 1000}'}


def test_spark_reads_no_record_itself(tmp_path: Path) -> None:
    reader = bench(tmp_path).reader
    assert reader.partitions({"next": 0}, {"next": 1000}) == []


# Limits


def test_the_read_limit_changes_from_batch_to_batch(tmp_path: Path) -> None:
    made = bench(tmp_path)
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
    assert made.latest(0, ReadMaxRows(20)) == 20
    SourceControl(read_limit=30).write(made.control)
    assert made.latest(0, ReadMaxRows(20)) == 20
    assert made.latest(0, ReadMaxRows(50)) == 30
    assert made.latest(0, ReadAllAvailable()) == 1000


def test_the_users_own_limit_holds_whatever_the_plan_allows(tmp_path: Path) -> None:
    made = bench(tmp_path, most=40)
    assert made.latest(0) == 40
    for plan, limit in ((30, 30), (50, 40), (None, 40)):
        SourceControl(plan).write(made.control)
        assert made.latest(0) == limit


@pytest.mark.parametrize(
    "torn",
    [
        "",
        '{"read_limit": 5',
        "null",
        "[]",
        "{}",
        '{"limit": 5}',
        '{"read_limit": -1}',
        '{"read_limit": true}',
        '{"read_limit": 2.5}',
        '{"read_limit": 5, "sources": 0}',
    ],
)
def test_a_torn_or_missing_control_file_leaves_the_last_one_in_force(tmp_path: Path, torn: str) -> None:
    made = bench(tmp_path)
    assert made.latest(0) == 1000
    SourceControl(read_limit=30).write(made.control)
    assert made.latest(0) == 30
    made.control.write_text(torn)
    assert made.latest(0) == 30
    made.control.unlink()
    assert made.latest(30) == 60


def test_a_control_document_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It also had the number of partitions."""
    assert SourceControl.parse('{"read_limit": 5, "partitions": 2}') == SourceControl(5)


def test_a_control_document_is_written_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    SourceControl(5).write(tmp_path / "deep" / "control.json")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["control.json"]
    assert SourceControl.parse((tmp_path / "deep" / "control.json").read_text()) == SourceControl(5)


# Available now


def test_available_now_reads_what_there_was_in_several_batches_and_ends(tmp_path: Path) -> None:
    made = bench(tmp_path, end=100)
    SourceControl(read_limit=40).write(made.control)
    made.reader.prepareForTriggerAvailableNow()
    assert made.latest(0) == 40
    made.tap.end = 1000
    assert made.latest(40) == 80
    assert made.latest(80) == made.latest(100) == 100
    assert made.tap.asked == [0], "it was asked again"
    assert made.reader.reportLatestOffset() == {"id": "x", "next": 100}


def test_available_now_sees_what_came_since_the_reader_was_asked_before(tmp_path: Path) -> None:
    made = bench(tmp_path, end=100)
    assert made.latest(0) == 100
    made.tap.end = 200
    made.reader.prepareForTriggerAvailableNow()
    assert made.latest(100) == 200


def test_available_now_ends_at_once_behind_a_checkpoint_ahead_of_the_clock(tmp_path: Path) -> None:
    made = bench(tmp_path, end=10)
    made.reader.prepareForTriggerAvailableNow()
    assert made.latest(500) == 500


# A source that is away


def test_a_stream_that_cannot_be_reached_has_nothing_new_and_goes_on_later(tmp_path: Path, pauses: list[float]) -> None:
    made = bench(tmp_path, end=10)
    assert made.latest(0) == 10
    made.tap.away, made.tap.end = True, 20
    assert made.latest(10) == made.latest(10) == 10
    assert pauses == [offsets.RETRY_S] * 2, "it is asked without a pause"
    made.tap.away = False
    assert made.latest(10) == 20


def test_available_now_fails_while_its_stream_cannot_be_reached(tmp_path: Path) -> None:
    """Otherwise it would end as if it had read everything."""
    made = bench(tmp_path)
    made.tap.away = True
    made.reader.prepareForTriggerAvailableNow()
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="nobody listens"):
            made.latest(0)
    made.tap.away = False
    assert made.latest(0) == 1000
    made.tap.away = True
    assert made.latest(500) == 1000, "once its end is known, batches need no source"


def test_a_stream_that_does_not_go_on_fails_for_good(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.tap.gone = "40 records were deleted"
    with pytest.raises(SourceFailed, match="40 records were deleted"):
        made.latest(0)


# The beginning


@dataclass
class Clock:
    seconds: float = 50.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Dated(GenerateSource):
    """A generated stream with a clock that is set by hand."""

    clock: Clock = field(default_factory=Clock)

    def begin(self, clock: Any = None) -> Memory:
        return super().begin(self.clock)

    def enumerator(self, memory: Memory, clock: Any = None) -> Any:
        return super().enumerator(memory, self.clock)


def test_the_schedule_starts_when_spark_first_asks_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is part of it: the first batch has the records of a tenth of a second."""
    source, file = Dated(int, constant(1_000)), tmp_path / "schedule.json"
    clock = source.clock
    monkeypatch.setattr(time, "sleep", lambda waited: setattr(clock, "seconds", clock.seconds + waited))

    def reader() -> OffsetReader:
        return OffsetReader(lambda: Planner(source, Beginning(source, file), tmp_path / "control.json"))

    def latest(reader: OffsetReader, start: int) -> int:
        return int(reader.latestOffset({"next": start}, ReadAllAvailable())["next"])

    first, other = reader(), reader()
    assert not file.exists()
    assert first.initialOffset() == {"next": 0}
    assert latest(first, 0) == pytest.approx(1_000 * FIRST_S, abs=1)
    assert json.loads(file.read_text())["started"] == 50.0
    clock.seconds = 51.0
    assert latest(other, 0) == latest(first, 0) == 1_000
    clock.seconds = 90.0  # a restart
    assert latest(reader(), 1_000) == 40_000
    assert json.loads(file.read_text())["started"] == 50.0


def test_a_source_reads_its_own_entry_of_a_document_of_several(tmp_path: Path) -> None:
    file = tmp_path / "origins.json"
    write_atomic(file, {"one": {"first": 1}, "two": {"first": 2}})
    assert [Beginning(Tapped(Tap()), file, name)() for name in ("one", "two")] == [{"first": 1}, {"first": 2}]


def test_a_source_that_began_before_never_begins_anew(tmp_path: Path) -> None:
    """The driver has stored its memory before the query started. Without it the stream would be read from elsewhere."""
    with pytest.raises(AssertionError, match=r"origins\.json is gone"):
        Beginning(Tapped(Tap(end=7)), tmp_path / "origins.json", "one")()
    assert not list(tmp_path.iterdir())


# Spark's data source


def number(draw: Draw) -> int:
    return draw.index


def test_every_data_source_has_a_name_of_its_own_and_can_be_shipped(tmp_path: Path) -> None:
    source = GenerateSource(number, constant(10))
    planner = Planner(source, Beginning(source, tmp_path / "schedule.json"), tmp_path / "control.json")
    first, second = (offsets_of(lambda: planner, COLUMNS) for _ in range(2))
    assert first.name().startswith("springtide-")
    assert first.name() != second.name()
    shipped: type[offsets.Offsets] = cloudpickle.loads(cloudpickle.dumps(first))
    made = shipped(options={})
    assert made.schema().names == ["n"]
    assert made.streamReader(made.schema()).initialOffset() == {"next": 0}
