"""The driver's half of the sources, by hand: memories, ranges, backlogs and ends."""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from springtide.api import stream as api
from springtide.errors import DamageError, OptionError
from springtide.model.plan import Plan
from springtide.model.schema import as_schema
from springtide.model.source import Enumerator, Memory, Position, Range, Reader, Source, SourceUnavailable
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.streams import ORIGINS, SCHEDULE, SourceActuator, Streams
from springtide.spark.shared.offsets import Planner

T0 = 1_700_000_000.25


@dataclass(frozen=True)
class Trip:
    id: int
    fare: float
    route: str | None
    at: datetime.datetime


def trip(draw: st.Draw) -> Trip:
    return Trip(draw.index, draw.random.random(), draw.random.choice(["a", "b", None]), draw.created)


# A source that is filled and closed by hand


@dataclass
class Tap:
    """The state of a stream outside. ``counts``: whether it can count its records."""

    end: int = 0
    away: bool = False
    counts: bool = True
    last: int | None = None
    committed: list[int] = field(default_factory=list)
    opened: int = 0
    closed: int = 0


@dataclass(frozen=True)
class Tapped(Source):
    tap: Tap

    def begin(self) -> Memory:
        if self.tap.away:
            raise SourceUnavailable("nobody listens")
        return {"first": self.tap.end}

    def enumerator(self, memory: Memory) -> Enumerator:
        self.tap.opened += 1
        return Valve(self.tap, memory["first"])

    def reader(self, schema: pa.Schema, record: type | None) -> Reader:
        raise AssertionError("no tasks in these tests")


class Valve(Enumerator):
    def __init__(self, tap: Tap, first: int) -> None:
        self._tap, self._first = tap, first

    def first(self) -> Position:
        return {"next": self._first}

    def end(self, since: Position) -> Position:
        if self._tap.away:
            raise SourceUnavailable("nobody listens")
        return {"next": self._tap.end}

    def count(self, since: Position, until: Position) -> int | None:
        return until["next"] - since["next"] if self._tap.counts else None

    def limited(self, since: Position, end: Position, most: int) -> Position:
        raise AssertionError("the planner limits")

    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        """Ranges of ten, so there may be more than tasks."""
        return [
            {"from": first, "to": min(first + 10, until["next"])} for first in range(since["next"], until["next"], 10)
        ]  # fmt: skip

    def exhausted(self, position: Position) -> bool:
        return self._tap.last is not None and position["next"] >= self._tap.last

    def committed(self, until: Position) -> None:
        self._tap.committed.append(until["next"])

    def close(self) -> None:
        self._tap.closed += 1


def tapped(tap: Tap, name: str = "tap") -> st.Stream:
    return api.source(Tapped(tap), name, *as_schema(Trip, "tap"))


def generated(name: str = "made", **options: Any) -> st.Stream:
    return st.source.generate(trip, **{"rate": 10, "name": name, **options})


def topology_of(first: st.Stream, *others: st.Stream, sink: Any = None) -> Topology:
    return (first.union(*others) if others else first).to(sink or st.sink.discard(), name="out").named("streams")


class Case:
    """A checkpoint whose offset log is written by hand."""

    def __init__(self, root: Path, topology: Topology) -> None:
        self.topology, self.checkpoint = topology, Checkpoint(root / "checkpoint")
        self.checkpoint.acquire(topology)
        self.streams = Streams(topology, self.checkpoint)

    def log(self, batch: int, *offsets: int | str | None) -> None:
        """Spark logs a batch: a source's next record, or the text of its offset; None: the source has none."""
        texts = ["-" if at is None else at if isinstance(at, str) else json.dumps({"next": at}) for at in offsets]
        file = self.checkpoint.logs.file("offsets", batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["v1", json.dumps({"batchTimestampMs": batch}), *texts]))

    def again(self) -> Streams:
        """As after a restart."""
        self.streams = Streams(self.topology, self.checkpoint)
        return self.streams


@pytest.fixture
def case(tmp_path: Path) -> Any:
    """Makes one."""
    made: list[Case] = []

    def make(*streams: st.Stream) -> Case:
        made.append(Case(tmp_path, topology_of(*streams)))
        return made[-1]

    yield make
    for one in made:
        one.checkpoint.release()


Make = Callable[..., Case]


# Memories


def test_a_source_begins_before_the_first_batch_and_never_again(case: Make) -> None:
    tap = Tap(end=7)
    one = case(tapped(tap))
    one.streams.begin(at_once=False)
    assert one.checkpoint.recall(ORIGINS) == {"tap": {"first": 7}}
    tap.end = 50
    one.again().begin(at_once=True)
    assert one.checkpoint.recall(ORIGINS) == {"tap": {"first": 7}}
    one.log(0, 50)
    assert one.streams.parts(0, {}) == {"tap": [[{"from": n, "to": min(n + 10, 50)} for n in (7, 17, 27, 37, 47)]]}


def test_a_schedule_begins_with_the_first_batch_unless_a_run_takes_only_what_there_is(case: Make) -> None:
    one = case(generated("a"), generated("b"))
    one.streams.begin(at_once=False)
    assert one.checkpoint.recall(SCHEDULE) is None
    assert one.streams.ends(-1) == {} and one.streams.backlogs(-1) == {"a": None, "b": None}
    one.streams.begin(at_once=True)
    stored = one.checkpoint.recall(SCHEDULE)
    assert stored is not None
    one.again().begin(at_once=True)
    assert one.checkpoint.recall(SCHEDULE) == stored
    assert one.checkpoint.recall(ORIGINS) is None


def test_a_source_that_cannot_be_reached_at_its_beginning_leaves_nothing_behind(case: Make) -> None:
    here, away = Tap(end=1), Tap(end=2, away=True)
    one = case(tapped(here, "here"), tapped(away, "away"))
    with pytest.raises(SourceUnavailable):
        one.streams.begin(at_once=False)
    assert one.checkpoint.recall(ORIGINS) is None
    away.away = False
    one.streams.begin(at_once=False)
    assert one.checkpoint.recall(ORIGINS) == {"here": {"first": 1}, "away": {"first": 2}}


@pytest.mark.parametrize(("stream", "file"), [(tapped(Tap(), "one"), "origins.json"), (generated("one"), "schedule.json")])
def test_batches_without_the_memory_of_their_source_are_refused(case: Make, stream: st.Stream, file: str) -> None:
    one = case(stream)
    one.streams.check()
    one.log(0, 5)
    with pytest.raises(DamageError, match=rf"{file} is gone, which says where source 'one' began, but the checkpoint has batc"):
        one.streams.check()
    one.streams.begin(at_once=True)
    one.streams.check()


# Ranges


def test_a_batch_is_cut_by_the_widths_of_its_plan_and_a_replay_likewise(case: Make) -> None:
    one = case(generated())
    one.checkpoint.remember(SCHEDULE, {"started": T0})
    one.log(0, 100)
    one.log(1, 107)

    def cut(streams: Streams, batch: int, width: int) -> list[list[tuple[int, int]]]:
        return [[(part["first"], part["last"]) for part in task] for task in streams.parts(batch, {"made": width})["made"]]

    assert cut(one.streams, 0, 2) == [[(0, 50)], [(50, 100)]]
    assert cut(one.streams, 1, 3) == [[(100, 102)], [(102, 104)], [(104, 107)]]
    wanted = one.streams.parts(1, {"made": 3})
    assert cut(one.streams, 1, 50) == [[(n, n + 1)] for n in range(100, 107)]
    one.log(2, 107)
    assert cut(one.streams, 2, 4) == []
    assert one.streams.parts(1, {"made": 3}) == wanted
    assert one.again().parts(1, {"made": 3}) == wanted, "after a restart"
    assert cut(one.streams, 1, 0) == [[(100, 107)]]


def test_more_ranges_than_tasks_are_dealt_out_in_order(case: Make) -> None:
    tap = Tap()
    one = case(tapped(tap))
    one.streams.begin(at_once=False)
    one.log(0, 65)
    for width in (1, 2, 3, 7, 20):
        tasks = one.streams.parts(0, {"tap": width})["tap"]
        assert len(tasks) == min(width, 7) and all(tasks)
        assert [part["from"] for task in tasks for part in task] == list(range(0, 65, 10))


def test_a_source_without_an_offset_has_no_records_and_begins_at_its_first(case: Make) -> None:
    one = case(tapped(Tap(), "a"), tapped(Tap(end=3), "b"))
    one.streams.begin(at_once=False)
    one.log(0, 10, None)
    one.log(1, 10, 5)
    assert one.streams.parts(0, {}) == {"a": [[{"from": 0, "to": 10}]], "b": []}
    assert one.streams.parts(1, {}) == {"a": [], "b": [[{"from": 3, "to": 5}]]}


@pytest.mark.parametrize("gone", [0, 1])
def test_a_batch_whose_ends_are_not_in_the_log_is_refused(case: Make, gone: int) -> None:
    """Without the previous end it would begin at the first record again, and without its own it would have none."""
    one = case(generated())
    one.checkpoint.remember(SCHEDULE, {"started": T0})
    one.log(1 - gone, 5)
    with pytest.raises(DamageError, match=rf"offsets/{gone} is gone"):
        one.streams.parts(1, {})


# What waits


def test_a_backlog_is_what_came_behind_a_batch_and_unknown_while_the_source_is_away(
    case: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tap, other = Tap(), Tap(counts=False)
    one = case(tapped(tap, "a"), tapped(other, "b"))
    one.streams.begin(at_once=False)
    one.log(0, 10, 10)
    tap.end = other.end = 25
    assert one.streams.backlogs(0) == {"a": 15, "b": None}
    other.counts = True
    assert one.streams.backlogs(0) == {"a": 15, "b": 15}
    assert one.streams.backlogs(-1) == {"a": 25, "b": 25}, "before the first batch"
    tap.away = True
    for _ in range(3):
        assert one.streams.backlogs(0) == {"a": None, "b": 15}
        assert one.streams.ends(0) == {"b": {"next": 25}}
    tap.away = False
    assert one.streams.backlogs(0) == {"a": 15, "b": 15}
    tap.away = True
    one.streams.backlogs(0)
    words = [record.message.split(" (")[0] for record in caplog.records]
    lost, found = "source 'a' cannot be reached", "source 'a' can be reached again"
    assert words == [lost, found, lost]


def test_the_backlog_of_a_source_of_spark_comes_from_the_progress_of_its_query(case: Make, tmp_path: Path) -> None:
    one = case(generated("a"), st.source.dataframe(None, schema=Trip, name="b"))
    one.checkpoint.remember(SCHEDULE, {"started": T0})
    one.log(0, 10, '{"t":{"0":18}}')
    assert one.streams.backlogs(0)["b"] is None
    kafka = {"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"0": 15}}, "latestOffset": {"t": {"0": 20}}}
    progress: list[dict[str, Any] | None] = [{"sources": [{"description": "ours"}, kafka]}]
    one.streams.follow(lambda: progress[0])
    assert one.streams.backlogs(0)["b"] == 2
    progress[0] = {"sources": []}
    assert one.streams.backlogs(0)["b"] is None
    progress[0] = None
    assert one.streams.backlogs(0)["b"] is None


# Ends


def test_what_had_come_when_a_query_began_has_to_be_read(case: Make) -> None:
    tap = Tap()
    one = case(tapped(tap))
    one.streams.begin(at_once=False)
    one.log(0, 10)
    tap.end = 1_234
    ends = one.streams.ends(0)
    with pytest.raises(RuntimeError, match="1,224 records of source 'tap' are not committed that had arrived"):
        one.streams.check_read(ends, 0)
    with pytest.raises(RuntimeError, match="1,234 records of source 'tap'"):
        one.streams.check_read(ends, -1)
    one.log(1, 1_234)
    one.streams.check_read(ends, 1)
    tap.away = True
    assert one.streams.ends(1) == {}
    one.streams.check_read({}, 0)


def test_what_came_while_a_query_began_may_be_read_too(case: Make) -> None:
    """Spark asks for the end later than the driver did, and the schedule goes on meanwhile."""
    one = case(generated())
    one.checkpoint.remember(SCHEDULE, {"started": T0})
    one.log(0, 10)
    one.streams.check_read({"made": {"next": 7}}, 0)
    with pytest.raises(RuntimeError, match="1 records of source 'made'"):
        one.streams.check_read({"made": {"next": 11}}, 0)


def test_streams_are_exhausted_once_all_have_ended_and_are_read(case: Make) -> None:
    tap = Tap(last=20)
    one = case(generated(limit=10), tapped(tap))
    assert not one.streams.are_exhausted(-1), "nothing has begun"
    one.streams.begin(at_once=True)
    assert not one.streams.are_exhausted(-1), "no batch yet"
    for batch, (made, tapped_) in enumerate([(10, 19), (9, 20), (10, None), (10, 20)]):
        one.log(batch, made, tapped_)
        assert one.streams.are_exhausted(batch) is (batch == 3)
    tap.last = None
    assert not one.streams.are_exhausted(3)


def test_a_source_of_spark_never_ends(case: Make, tmp_path: Path) -> None:
    one = case(generated(limit=1), st.source.dataframe(None, schema=Trip, name="frame"))
    one.streams.begin(at_once=True)
    one.log(0, 1, '{"logOffset":0}')
    assert not one.streams.are_exhausted(0) and not one.streams.are_all


def test_sources_hear_of_commits_and_of_the_end(case: Make) -> None:
    tap = Tap()
    one = case(tapped(tap), generated())
    one.streams.begin(at_once=False)
    one.log(0, 10, 4)
    one.log(1, None, 9)
    one.streams.committed(0)
    one.streams.committed(1)
    assert tap.committed == [10]
    one.streams.close()
    one.streams.close()
    assert (tap.opened, tap.closed) == (1, 1)


def test_two_threads_begin_a_stream_once(case: Make) -> None:
    tap = Tap()
    one = case(tapped(tap))
    one.streams.begin(at_once=False)
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        one.streams.are_exhausted(-1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tap.opened == 1


def test_a_batch_has_no_more_than_the_source_allows(case: Make) -> None:
    """The plan's limit is shared by two sources; the one that allows less keeps to that."""
    one = case(generated("a", max_records=30), generated("b"))
    actuator = SourceActuator(one.checkpoint, one.topology)

    def limit(name: str) -> int | None:
        source = one.topology[name].source
        assert isinstance(source, Source)
        return Planner(source, lambda: {"started": T0}, one.checkpoint.source_control(name)).limit()

    assert one.streams.read_limit(7) == 7, "no planner was asked yet"
    for planned, expected in ((100, (30, 50)), (40, (20, 20)), (1, (1, 1)), (None, (30, None))):
        actuator.apply(Plan({}, 1, {}, planned))
        assert (limit("a"), limit("b")) == expected
        actuator.apply(Plan({}, 1, {}, 999))
        assert one.streams.read_limit(999) == planned, "the offsets are fixed, and another plan does not change them"
    actuator.apply(Plan({}, 1, {}, 70))
    limit("a")
    actuator.apply(Plan({}, 1, {}, 50))
    limit("b")
    assert one.streams.read_limit(50) == 70, "the batch may have as many: 35 of one source, and 25 of the other"
    with pytest.raises(OptionError, match="max_records=0 is not allowed"):
        st.source.generate(trip, rate=1, max_records=0)
