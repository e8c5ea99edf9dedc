"""Every ready stateful operator, and all that a processor can do, on real Spark: each against plain Python.

What an operator tells depends on which records a batch has. One operator tells just that, so that the expected output follows
from the records and from the batches that there were, however those were cut.
"""

from __future__ import annotations

import datetime
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import springtide as st
from crash.job import fixed_limit
from springtide.cli.main import cli
from springtide.model.state import moment
from springtide.record.folder import RunFolder
from springtide.running import execution
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.state.reading import reading, stored_states

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

agg = st.agg
EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
HALF, ALL = 500, 1_000
BEFORE, AFTER = 8, 32
"""Shards, before the state is exported and after it was imported."""
LONG, SLIDE, HOUR, GAP, REMIND, WITHIN = 60.0, 20.0, 300.0, 7.0, 20.0, 15.0
"""Seconds of event time; the gap is a whole number, so that records come just when a session ends: they begin another."""
DELAY = 30.0
TTL, ALARM = 2.0, 1.5
"""Seconds by the clock: one or two batches' time."""

Row = dict[str, Any]


def after(at: datetime.datetime, s: float) -> datetime.datetime:
    return at + datetime.timedelta(seconds=s)


# Records


@dataclass(frozen=True)
class Event:
    number: int
    lane: int
    route: str
    item: str | None
    phase: str
    at: datetime.datetime
    fare: int | None


LATENESS = {9: 20, 14: 60, 19: 200}
"""By the number's remainder by 20: never too late, at times, and always, but in the first batches."""


def event(n: int) -> Event:
    """One a second of its own time. Fares differ: 7919 has no factor in common with 100,003. Some are null, and some items."""
    draw = random.Random(n)
    at = after(EPOCH, n - LATENESS.get(n % 20, 0))
    fare = None if n % 17 == 0 else n * 7919 % 100_003
    phase = f"often{n % 3}" if n % 2 else f"seldom{n // 40 % 12}"
    item = draw.choice([None, *(f"i{k}" for k in range(12))])
    return Event(n, n % 5, f"r{draw.randrange(7)}", item, phase, at, fare)


def right(n: int) -> Event:
    """The other source: twice as fast by its own time, and never late."""
    return replace(event(n), number=-1 - n, at=after(EPOCH, 2 * n + 0.25))


def events(make: Callable[[int], Event], limit: int, begin: int = 0, name: str = "events") -> st.Stream:
    def made(draw: st.Draw) -> Event:
        return make(begin + draw.index)

    return st.source.generate(made, rate=1e6, limit=limit, name=name)


# Processors


@dataclass(frozen=True)
class Noted:
    number: int
    now: datetime.datetime
    watermark: datetime.datetime | None
    in_order: bool


class Note(st.Processor):
    """Tells in which batch a record was, and whether those of its lane are in order."""

    last = st.value(int, default=-1)

    def process(self, key: int, records: list[Event], state: st.State) -> Iterator[Noted]:
        for record in records:
            yield Noted(record.number, state.now, state.watermark, record.number > state.last)
            state.last = record.number


class NoteBoth(Note):
    """Of two sources, which have an order each."""

    def process(self, key: int, records: list[Event], state: st.State) -> Iterator[Noted]:
        for record in records:
            yield Noted(record.number, state.now, state.watermark, True)
            state.last = record.number


@dataclass(frozen=True)
class Visit:
    item: str | None
    fare: int


@dataclass(frozen=True)
class Page:
    route: str
    visits: int
    items: int
    total: int


class Ledger(st.Processor):
    """A list, a map, two records, one of which is seldom there, and a value; forgotten at every number that ends in 77."""

    visits = st.list_of(Visit)
    items = st.map_of(str, int)
    best = st.value(Visit)
    free = st.value(Visit)
    total = st.value(int, default=0)

    def process(self, key: str, records: list[Event], state: st.State) -> Iterator[Page]:
        for record in records:
            if record.number % 100 == 77:
                state.clear()
                continue
            visit = Visit(record.item, record.fare or 0)
            state.visits = [*state.visits[-4:], visit]
            if record.item is not None:
                state.items[record.item] = state.items.get(record.item, 0) + 1
            if state.best is None or visit.fare > state.best.fare:
                state.best = visit
            if record.fare is None:
                state.free = visit
            state.total += visit.fare
        yield Page(key, len(state.visits), len(state.items), state.total)


@dataclass(frozen=True)
class Tally:
    key: str
    here: int
    count: int
    now: datetime.datetime


class Recent(st.Processor):
    """How many there were, as far as it remembers."""

    count = st.value(int, default=0)

    def process(self, key: str, records: list[Event], state: st.State) -> Iterator[Tally]:
        state.count += len(records)
        yield Tally(key, len(records), state.count, state.now)


class Touchy(st.Processor):
    """Fails at times, after it has changed its state."""

    count = st.value(int, default=0)

    def process(self, key: str, records: list[Event], state: st.State) -> Iterator[Tally]:
        state.count += len(records)
        if any(record.number % 90 == 50 for record in records):
            raise ValueError(f"{key} is touchy")
        yield Tally(key, len(records), state.count, state.now)


@dataclass(frozen=True)
class Rang:
    route: str
    at: datetime.datetime
    clock: str
    now: datetime.datetime
    watermark: datetime.datetime | None
    seen: int


class Remind(st.Processor):
    """A timer for every record, some taken back, and one by the clock whenever there is none."""

    seen = st.value(int, default=0)
    armed = st.value(bool, default=False)

    def process(self, key: str, records: list[Event], state: st.State) -> Iterator[Rang]:
        for record in records:
            state.seen += 1
            state.set_timer(after(record.at, REMIND))
            if record.number % 13 == 5:
                state.cancel_timer(after(record.at, REMIND))
        if not state.armed:
            state.armed = True
            state.set_timer(after(state.now, ALARM), "processing")
        return iter(())

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Rang]:
        if timer.clock == "processing":
            state.armed = False
        yield Rang(key, timer.at, str(timer.clock), state.now, state.watermark, state.seen)


@dataclass(frozen=True)
class Closed:
    route: str
    ends: datetime.datetime
    n: int


def closed(row: Any) -> Closed:
    return Closed(row.route, row.window_end, row.n)


# Topologies


def ready(limit: int, begin: int = 0, shards: int = BEFORE) -> st.Topology:
    """All operators of one stream."""
    raw = events(event, limit, begin)
    timed = raw.watermark("at", DELAY)
    of: dict[str, Any] = {"shards": shards}
    count = raw.key_by("route", "item").count(**of)
    measures: dict[str, Any] = {"n": agg.count(), "total": agg.sum("fare"), "most": agg.max("fare")}
    tumbling = timed.key_by("route").window(LONG, **measures, name="tumbling", **of)
    sliding = timed.key_by("route").window(LONG, slide=SLIDE, **measures, name="sliding", **of)
    session = timed.key_by("route").window(gap=GAP, **measures, name="session", **of)
    again = tumbling.map(closed).key_by("route").window(HOUR, time="ends", n=agg.sum("n"), name="again", **of)
    remind = timed.key_by("route").stateful(Remind, **of)
    told: dict[str, st.Stream] = {
        "note": raw.key_by("lane").stateful(Note, **of),
        "aggregate": raw.key_by("route").aggregate(
            n=agg.count(), total=agg.sum("fare"), mean=agg.mean("fare"), least=agg.min("fare"), most=agg.max("fare"),
            first=agg.first("item"), last=agg.last("item"), low=agg.min("item"), spread=agg.stddev("fare"),
            square=agg.variance("fare"), latest=agg.max("at"), **of,
        ),
        "count": count,
        "popular": count.key_by("route").top_k(3, by="count", of="item", name="popular", **of),
        "dear": raw.key_by("route").top_k(3, by="fare", name="dear", **of),
        "first": raw.key_by("item").deduplicate(name="first", **of),
        "fresh": raw.key_by("phase").deduplicate(TTL, name="fresh", **of),
        "ledger": raw.key_by("route").stateful(Ledger, **of),
        "recent": raw.key_by("phase").stateful(Recent, ttl=TTL, **of),
        "touchy": raw.key_by("route").stateful(Touchy, **of),
        "tumbling": tumbling, "tumbling-late": tumbling.late, "sliding": sliding, "sliding-late": sliding.late,
        "session": session, "session-late": session.late, "again": again, "again-late": again.late,
        "remind": remind, "remind-late": remind.late,
    }  # fmt: skip
    return st.topology("ready", *(stream.to(st.sink.memory(f"{name}-out")) for name, stream in told.items()))


def imported() -> st.Topology:
    """The second half of the records, and other shards."""
    return ready(ALL - HALF, HALF, AFTER)


@dataclass(frozen=True)
class Pair:
    route: str
    left: int
    right: int


def paired(left: Event, right: Event) -> Pair:
    return Pair(left.route, left.number, right.number)


def two(limit: int) -> st.Topology:
    """All operators of two streams: the left one is the slower by its own time, so that it sets the union's."""
    lefts, rights = events(event, limit, name="left"), events(right, limit, name="right")
    timed = lefts.watermark("at", DELAY, name="left-watermark"), rights.watermark("at", "5s", name="right-watermark")
    joined = timed[0].key_by("route").join(timed[1].key_by("route"), paired, within=WITHIN, shards=BEFORE)
    both = timed[0].union(timed[1])
    united = both.key_by("lane").stateful(NoteBoth, name="united", shards=BEFORE)
    window = both.key_by("route").window(LONG, n=agg.count(), shards=BEFORE)
    partners = joined.key_by("left").aggregate(n=agg.count(), most=agg.max("right"), name="partners", shards=BEFORE)
    told: dict[str, st.Stream] = {
        "note": lefts.union(rights).key_by("lane").stateful(NoteBoth, name="note", shards=BEFORE),
        "join": joined, "join-late": joined.late, "united": united, "united-late": united.late, "window": window,
        "partners": partners, "busy": partners.key_by("n").count(name="busy", shards=BEFORE),
    }  # fmt: skip
    return st.topology("two", *(stream.to(st.sink.memory(f"{name}-out")) for name, stream in told.items()))


# Runs


class Told:
    """What the sinks of some runs, one after another, received."""

    def __init__(self, *results: st.Result) -> None:
        self._results = results

    def __getitem__(self, name: str) -> list[Row]:
        came = [one for one in self._results if one.summary["sinks"][f"{name}-out"]]
        return [row for one in came for row in one.table(f"{name}-out").to_pylist()]

    def last(self, name: str, *key: str) -> dict[Any, Row]:
        """What each key told last."""
        return {tuple(row[one] for one in key): row for row in self[name]}

    @property
    def times(self) -> list[datetime.datetime]:
        """Of all batches, also of those without records."""
        found = []
        for run in (RunFolder.open(result.folder) for result in self._results):
            checkpoint = Checkpoint(Path((run.run() or {})["checkpoint"]))
            found += [moment(checkpoint.logs.batch_time(report.batch)) for report in run.batches()]
        return found

    @property
    def failed(self) -> int:
        return sum(int(result.summary["rows_failed"]) for result in self._results)


def go(spark: Any, topology: st.Topology, folder: Path, width: int, checkpoint: str = "checkpoint") -> st.Result:
    return st.run(
        topology, target="60s", max_slots=width, spark=spark, runs=folder / "runs", checkpoint=folder / checkpoint,
        policy="static", settings={"degree": width},
    )  # fmt: skip


def widest(result: st.Result) -> int:
    """In its first batches a run has all slots, later what its work needs, which may be less."""
    batches = RunFolder.open(result.folder).batches()
    return max(batch.plan.widths[operator] for batch in batches for operator in batch.state)


def state(*arguments: object) -> None:
    result = CliRunner().invoke(cli, ["state", *map(str, arguments)])
    assert result.exit_code == 0, result.output


@dataclass(frozen=True)
class Runs:
    half: st.Result
    whole: st.Result
    moved: st.Result
    folder: Path


@pytest.fixture(scope="module")
def runs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Half of the records; then the other half twice: with what the checkpoint has, and with what was exported from it."""
    folder = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "ReadLimit", fixed_limit(100))
        half = go(spark, ready(HALF), folder, 2)
        for operator in stored_states(folder / "checkpoint"):
            state("export", half.folder, operator, folder / f"{operator}.parquet")
            state("import", f"{__name__}:imported", operator, folder / f"{operator}.parquet",
                  "--checkpoint", folder / "moved", "--accept-recount")  # fmt: skip
        whole = go(spark, ready(ALL), folder, 3)
        moved = go(spark, imported(), folder, 3, "moved")
    return Runs(half, whole, moved, folder)


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Told:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "ReadLimit", fixed_limit(100))
        result = go(spark, two(500), tmp_path_factory.mktemp("two"), 2)
    assert widest(result) == 2
    return Told(result)


# What is expected


@dataclass(frozen=True)
class Batch:
    """What a batch began with: its time, the watermark, that behind another stateful operator; and its records."""

    now: datetime.datetime
    mark: datetime.datetime | None
    later_mark: datetime.datetime | None
    records: list[Event]

    def in_time(self) -> list[Event]:
        return [one for one in self.records if self.mark is None or one.at >= self.mark]


def batches_of(told: Told, made: Callable[[int], Event], mark: Callable[[list[Event]], Any]) -> list[Batch]:
    """The batches of one life of a checkpoint. ``mark``: the watermark after some records."""
    numbers: dict[datetime.datetime, list[int]] = {now: [] for now in told.times}
    for row in told["note"]:
        numbers[row["now"]].append(row["number"])
    cut = [[made(n) for n in sorted(numbers[now])] for now in sorted(numbers)]
    marks = [None, None, *(mark([one for batch in cut[: i + 1] for one in batch]) for i in range(len(cut)))]
    return [Batch(now, marks[i + 1], marks[i], cut[i]) for i, now in enumerate(sorted(numbers))]


def slowest(*delays: tuple[Callable[[Event], bool], float]) -> Callable[[list[Event]], Any]:
    """The watermark of a union: the least of the latest times, each less its delay; None while one has none."""

    def mark(records: list[Event]) -> datetime.datetime | None:
        seen = [[after(one.at, -delay) for one in records if mine(one)] for mine, delay in delays]
        return min(map(max, seen)) if all(seen) else None

    return mark


def measured(records: list[Event]) -> tuple[int, int | None, int | None]:
    fares = [one.fare for one in records if one.fare is not None]
    return len(records), sum(fares) if fares else None, max(fares, default=None)


def covering(at: datetime.datetime, length: float, slide: float) -> list[datetime.datetime]:
    """When the windows begin that a time is in."""
    since = (at - EPOCH).total_seconds()
    first = int(since // slide)
    return [after(EPOCH, k * slide) for k in range(first - 20, first + 1) if k * slide <= since < k * slide + length]


Windows = list[tuple[str, datetime.datetime, tuple[Any, ...]]]


def windowed(batches: list[Batch], length: float, slide: float) -> tuple[Windows, list[tuple[int, datetime.datetime]]]:
    """What windows tell, and which record came too late for which of them."""
    opened: dict[tuple[str, datetime.datetime], list[Event]] = defaultdict(list)
    told: Windows = []
    late = []
    for batch in batches:
        for route, start in list(opened):
            if batch.mark is not None and after(start, length) <= batch.mark:
                told.append((route, start, measured(opened.pop((route, start)))))
        for one in batch.records:
            for start in covering(one.at, length, slide):
                if batch.mark is not None and after(start, length) <= batch.mark:
                    late.append((one.number, start))
                else:
                    opened[one.route, start].append(one)
    return sorted(told), sorted(late)


def gathered(batches: list[Batch]) -> Windows:
    """What sessions tell: by route, the records in the order of their times, cut where one is too far from the next."""
    opened: dict[str, list[list[Event]]] = defaultdict(list)
    told: Windows = []
    for batch in batches:
        for route, sessions in opened.items():
            ended = [one for one in sessions if batch.mark is not None and after(one[-1].at, GAP) <= batch.mark]
            told += [(route, one[0].at, (after(one[-1].at, GAP), *measured(one))) for one in ended]
            opened[route] = [one for one in sessions if one not in ended]
        for route in {one.route for one in batch.in_time()}:
            own = [one for one in batch.in_time() if one.route == route]
            records = sorted([one for session in opened[route] for one in session] + own, key=lambda one: one.at)
            sessions = [[records[0]]]
            for one in records[1:]:
                if (one.at - sessions[-1][-1].at).total_seconds() < GAP:
                    sessions[-1].append(one)
                else:
                    sessions.append([one])
            opened[route] = sessions
    return sorted(told)


def rung(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """When which timer comes."""
    timers: dict[str, set[datetime.datetime]] = defaultdict(set)
    alarms: dict[str, datetime.datetime] = {}
    seen: Counter[str] = Counter()
    told: list[tuple[Any, ...]] = []
    for batch in batches:
        for route in timers:
            for at in sorted(at for at in timers[route] if batch.mark is not None and at <= batch.mark):
                timers[route].remove(at)
                told.append((route, at, "event", batch.now, batch.mark, seen[route]))
            if route in alarms and alarms[route] <= batch.now:
                told.append((route, alarms.pop(route), "processing", batch.now, batch.mark, seen[route]))
        for one in batch.in_time():
            seen[one.route] += 1
            timers[one.route].add(after(one.at, REMIND))
            if one.number % 13 == 5:
                timers[one.route].discard(after(one.at, REMIND))
            alarms.setdefault(one.route, after(batch.now, ALARM))
    return told


def by_key(records: Iterable[Event], *key: str) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for one in records:
        found[tuple(getattr(one, name) for name in key)].append(one)
    return found


@pytest.fixture(params=["whole", "moved"])
def told(request: pytest.FixtureRequest, runs: Runs) -> Told:
    return Told(runs.half, getattr(runs, request.param))


@pytest.fixture
def batches(request: pytest.FixtureRequest, runs: Runs, told: Told) -> list[Batch]:
    """All batches. A new checkpoint, also one with imported state, begins without a watermark."""
    cut = partial(batches_of, made=event, mark=slowest((lambda one: True, DELAY)))
    if request.node.callspec.params["told"] == "whole":
        return cut(told)
    return cut(Told(runs.half)) + cut(Told(runs.moved))


EVERY = [event(n) for n in range(ALL)]


# One stream


def test_every_record_comes_once_and_in_order_at_several_widths(runs: Runs, told: Told, batches: list[Batch]) -> None:
    assert sorted(row["number"] for row in told["note"]) == list(range(ALL))
    assert all(row["in_order"] for row in told["note"])
    assert len(batches) >= 10
    assert [widest(one) for one in (runs.half, runs.whole, runs.moved)] == [2, 3, 3]


def test_aggregates(told: Told) -> None:
    expected = by_key(EVERY, "route")
    found = told.last("aggregate", "route")
    assert found.keys() == expected.keys()
    for route, records in expected.items():
        row, fares = found[route], [one.fare for one in records if one.fare is not None]
        items = [one.item for one in records if one.item is not None]
        assert (row["n"], row["total"], row["least"], row["most"]) == (len(records), sum(fares), min(fares), max(fares))
        assert (row["first"], row["last"], row["low"]) == (items[0], items[-1], min(items))
        assert row["latest"] == max(one.at for one in records)
        assert row["mean"] == pytest.approx(statistics.fmean(fares))
        assert row["square"] == pytest.approx(statistics.pvariance(fares))
        assert row["spread"] == pytest.approx(statistics.pstdev(fares))


def test_counts_by_two_columns_one_of_them_null(told: Told) -> None:
    expected = {key: len(records) for key, records in by_key(EVERY, "route", "item").items()}
    assert {key: row["count"] for key, row in told.last("count", "route", "item").items()} == expected
    assert any(item is None for _, item in expected)


def last_ranks(rows: list[Row]) -> dict[str, list[Row]]:
    """What a key told last, from the first rank on."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found[row["route"]] = [row] if row["rank"] == 1 else [*found[row["route"]], row]
    assert all([row["rank"] for row in ranks] == list(range(1, len(ranks) + 1)) for ranks in found.values())
    return found


def test_the_greatest(told: Told) -> None:
    expected = {}
    for (route,), records in by_key(EVERY, "route").items():
        known = [one for one in records if one.fare is not None]
        expected[route] = [one.number for one in sorted(known, key=lambda one: -(one.fare or 0))[:3]]
    assert {route: [row["number"] for row in ranks] for route, ranks in last_ranks(told["dear"]).items()} == expected


def test_the_greatest_of_what_is_counted_before(told: Told) -> None:
    """Which of equals is before the other depends on the batches; how many there are does not."""
    counts = Counter((one.route, one.item) for one in EVERY)
    found = last_ranks(told["popular"])
    assert found.keys() == {one.route for one in EVERY}
    for route, ranks in found.items():
        assert [row["count"] for row in ranks] == [counts[route, row["item"]] for row in ranks]
        assert [row["count"] for row in ranks] == sorted((n for key, n in counts.items() if key[0] == route), reverse=True)[:3]


def test_only_the_first_passes(told: Told) -> None:
    expected = [records[0].number for records in by_key(EVERY, "item").values()]
    assert sorted(row["number"] for row in told["first"]) == sorted(expected)


def test_the_first_passes_again_once_its_time_is_over(told: Told, batches: list[Batch]) -> None:
    expected, passed = [], dict[Any, datetime.datetime]()
    for batch in batches:
        for phase, records in by_key(batch.records, "phase").items():
            if phase not in passed or after(passed[phase], TTL) < batch.now:
                passed[phase] = batch.now
                expected.append(records[0].number)
    assert sorted(row["number"] for row in told["fresh"]) == sorted(expected)


def test_what_nothing_is_written_to_is_forgotten(told: Told, batches: list[Batch]) -> None:
    expected, counts, touched = [], Counter[str](), dict[str, datetime.datetime]()
    for batch in batches:
        for (phase,), records in by_key(batch.records, "phase").items():
            if phase in touched and after(touched[phase], TTL) < batch.now:
                counts[phase] = 0
            counts[phase] += len(records)
            touched[phase] = batch.now
            expected.append((phase, len(records), counts[phase], batch.now))
    found = [(row["key"], row["here"], row["count"], row["now"]) for row in told["recent"]]
    assert sorted(found) == sorted(expected)


def test_lists_maps_and_records_are_remembered(told: Told, runs: Runs, request: pytest.FixtureRequest) -> None:
    expected: dict[str, Row] = {}
    for (route,), records in by_key(EVERY, "route").items():
        since = max((i + 1 for i, one in enumerate(records) if one.number % 100 == 77), default=0)
        layout = records[since:]
        visits = [{"item": one.item, "fare": one.fare or 0} for one in layout]
        free = [visit for visit, one in zip(visits, layout, strict=True) if one.fare is None]
        expected[route] = {
            "visits": visits[-5:],
            "items": dict(Counter(one.item for one in layout if one.item is not None)),
            "best": max(visits, key=lambda one: int(one["fare"] or 0)) if visits else None,
            "free": free[-1] if free else None,
            "total": sum(one.fare or 0 for one in layout),
        }
    found = {route: (row["visits"], row["items"], row["total"]) for (route,), row in told.last("ledger", "route").items()}
    assert found == {route: (len(one["visits"]), len(one["items"]), one["total"]) for route, one in expected.items()}
    checkpoint = "moved" if request.node.callspec.params["told"] == "moved" else "checkpoint"
    with reading(runs.folder / checkpoint, "ledger") as opened:
        rows = [row for part in opened.rows() for row in part.to_pylist(maps_as_pydicts="strict")]
    stored = {row["key.route"]: {name: row[f"state.{name}"] for name in expected[row["key.route"]]} for row in rows}
    assert stored == {route: one for route, one in expected.items() if one["visits"]}
    assert {one["free"] is None for one in stored.values()} == {True, False}


def test_state_stays_as_it_was_where_a_processor_fails(told: Told, batches: list[Batch]) -> None:
    expected, counts, failed = [], Counter[str](), 0
    for batch in batches:
        for (route,), records in by_key(batch.records, "route").items():
            if any(one.number % 90 == 50 for one in records):
                failed += len(records)
                continue
            counts[route] += len(records)
            expected.append((route, len(records), counts[route], batch.now))
    found = [(row["key"], row["here"], row["count"], row["now"]) for row in told["touchy"]]
    assert sorted(found) == sorted(expected)
    assert told.failed == failed > 0


@pytest.mark.parametrize(("name", "slide"), [("tumbling", LONG), ("sliding", SLIDE)])
def test_windows(told: Told, batches: list[Batch], name: str, slide: float) -> None:
    expected, late = windowed(batches, LONG, slide)
    found = [(row["route"], row["window_start"], (row["n"], row["total"], row["most"])) for row in told[name]]
    assert sorted(found) == expected
    assert all(row["window_end"] == after(row["window_start"], LONG) for row in told[name])
    assert sorted((row["number"], row["window_start"]) for row in told[f"{name}-late"]) == late
    assert late and len(expected) > 7 * 10  # 7 routes; of 1,000 s, most have ended


def test_sessions(told: Told, batches: list[Batch]) -> None:
    found = [
        (row["route"], row["window_start"], (row["window_end"], row["n"], row["total"], row["most"])) for row in told["session"]
    ]
    assert sorted(found) == gathered(batches)
    ends = {(row["route"], row["window_end"]) for row in told["session"]}
    assert any((row["route"], row["window_start"]) in ends for row in told["session"])
    late = [one.number for batch in batches for one in batch.records if one not in batch.in_time()]
    assert sorted(row["number"] for row in told["session-late"]) == late != []


def test_windows_of_what_windows_told(told: Told, batches: list[Batch]) -> None:
    """Behind a stateful operator time is one batch older, so that nothing that it tells is late."""
    opened: Counter[tuple[str, datetime.datetime]] = Counter()
    expected = []
    for i, batch in enumerate(batches):
        for route, start in list(opened):
            if batch.later_mark is not None and after(start, HOUR) <= batch.later_mark:
                expected.append((route, start, opened.pop((route, start))))
        known = Counter(windowed(batches[:i], LONG, LONG)[0])
        for route, start, (n, _, _) in (Counter(windowed(batches[: i + 1], LONG, LONG)[0]) - known).elements():
            (outer,) = covering(after(start, LONG), HOUR, HOUR)
            opened[route, outer] += n
    assert sorted((row["route"], row["window_start"], row["n"]) for row in told["again"]) == sorted(expected)
    assert told["again-late"] == [] and expected


def test_timers_of_both_clocks(told: Told, batches: list[Batch]) -> None:
    found = [tuple(row[name] for name in ("route", "at", "clock", "now", "watermark", "seen")) for row in told["remind"]]
    expected = rung(batches)
    assert Counter(found) == Counter(expected)
    assert {row[2] for row in expected} == {"event", "processing"}
    late = [one.number for batch in batches for one in batch.records if one not in batch.in_time()]
    assert sorted(row["number"] for row in told["remind-late"]) == late
    assert {Event(**row) for row in told["remind-late"]} == {event(number) for number in late}


MORTAL = {"fresh", "recent"}
"""The operators whose keys are let go by the clock."""


@pytest.mark.parametrize("checkpoint", ["checkpoint", "moved"])
@pytest.mark.parametrize("mortal", [False, True])
def test_keys_are_counted_as_they_are(runs: Runs, checkpoint: str, mortal: bool) -> None:
    """Also if a batch writes to a key that a merge, in the background, lets go meanwhile."""
    found = stored_states(runs.folder / checkpoint)
    assert {held.shards for held in found.values()} == {AFTER if checkpoint == "moved" else BEFORE}
    counted = {name: held.catalog.keys for name, held in found.items() if (name in MORTAL) == mortal}
    there = {}
    for name in counted:
        with reading(runs.folder / checkpoint, name) as opened:
            there[name] = sum(part.num_rows for part in opened.rows())
    assert counted == there


# Two streams


@pytest.fixture
def united(both: Told) -> list[Batch]:
    mark = slowest((lambda one: one.number >= 0, DELAY), (lambda one: one.number < 0, 5.0))
    return batches_of(both, lambda n: event(n) if n >= 0 else right(-1 - n), mark)


def test_a_unions_watermark_is_the_least_of_its_inputs(both: Told, united: list[Batch]) -> None:
    assert sorted(row["number"] for row in both["note"]) == list(range(-500, 500))
    expected = [(one.number, batch.now, batch.mark) for batch in united for one in batch.in_time()]
    assert Counter((row["number"], row["now"], row["watermark"]) for row in both["united"]) == Counter(expected)
    late = [one.number for batch in united for one in batch.records if one not in batch.in_time()]
    assert sorted(row["number"] for row in both["united-late"]) == sorted(late) != []


def test_windows_of_a_union(both: Told, united: list[Batch]) -> None:
    expected = [(route, start, n) for route, start, (n, _, _) in windowed(united, LONG, LONG)[0]]
    assert sorted((row["route"], row["window_start"], row["n"]) for row in both["window"]) == expected != []


def pairs(united: list[Batch]) -> list[tuple[str, int, int]]:
    came = [one for batch in united for one in batch.in_time()]
    lefts, rights = [one for one in came if one.number >= 0], [one for one in came if one.number < 0]
    return [
        (left.route, left.number, right.number) for left in lefts for right in rights
        if left.route == right.route and abs((left.at - right.at).total_seconds()) <= WITHIN
    ]  # fmt: skip


def test_a_join_has_every_pair_once(both: Told, united: list[Batch]) -> None:
    expected = pairs(united)
    assert both.failed == 0
    assert Counter((row["route"], row["left"], row["right"]) for row in both["join"]) == Counter(expected)
    assert len(expected) > 100
    late = [one.number for batch in united for one in batch.records if one not in batch.in_time()]
    assert [Event(**row["left"]) for row in sorted(both["join-late"], key=lambda row: row["at"])] == sorted(
        map(event, late), key=lambda one: one.at
    )


def test_operators_in_a_row(both: Told, united: list[Batch]) -> None:
    """A join, its pairs by record, and how often a record was told to have so many."""
    partners: dict[int, list[int]] = defaultdict(list)
    for _, left, other in pairs(united):
        partners[left].append(other)
    last = {left: (row["n"], row["most"]) for (left,), row in both.last("partners", "left").items()}
    assert last == {left: (len(others), max(others)) for left, others in partners.items()}
    counts = Counter(row["n"] for row in both["partners"])
    assert {n: row["count"] for (n,), row in both.last("busy", "n").items()} == counts
