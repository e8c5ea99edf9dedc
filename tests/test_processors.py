"""The ready stateful operators, each against the same in plain Python, and their edges by hand."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import springtide as st
from springtide.errors import RunError, TopologyError
from springtide.model.state import moment
from springtide.processors.windows import END, START, Windows
from state_machine import SECOND, Machine

agg = st.agg


@dataclass(frozen=True)
class Trip:
    route: str
    at: datetime.datetime
    fare: int | None


def trips(name: str = "trips") -> st.Stream:
    return st.source.generate(lambda draw: Trip("a", draw.created, 1), rate=1, schema=Trip, name=name)


def keyed() -> st.KeyedStream:
    return trips().watermark("at", "0s").key_by("route")


def machine(stream: st.Stream, folder: Path) -> Machine:
    return Machine.of(stream.to(st.sink.discard()).named("t"), folder)


def trip(route: str, at_s: float, fare: int | None = 1) -> dict[str, Any]:
    return {"route": route, "at": moment(round(at_s * SECOND)), "fare": fare}


rides = some.lists(
    some.builds(
        trip, some.sampled_from("abcde"), some.integers(0, 50), some.one_of(some.none(), some.integers(-(10**6), 10**6))
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(rides, min_size=1, max_size=6), some.integers(1, 3))
def test_aggregates_are_what_plain_python_has(tmp_path_factory: Any, batches: list[Any], width: int) -> None:
    stream = keyed().aggregate(
        n=agg.count(), total=agg.sum("fare"), mean=agg.mean("fare"), least=agg.min("fare"), most=agg.max("fare"),
        first=agg.first("fare"), last=agg.last("fare"), spread=agg.stddev("fare"), square=agg.variance("fare"),
        latest=agg.max("at"),
    )  # fmt: skip
    tested = machine(stream, tmp_path_factory.mktemp("state"))
    seen: dict[str, list[Any]] = {}
    for batch in batches:
        told = {row["route"]: row for row in tested.run(batch, width=width)}
        for row in batch:
            seen.setdefault(row["route"], []).append(row)
        assert told.keys() == {row["route"] for row in batch}
        for route, row in told.items():
            fares = [one["fare"] for one in seen[route] if one["fare"] is not None]
            assert row["n"] == len(seen[route])
            assert row["latest"] == max(one["at"] for one in seen[route])
            if not fares:
                assert [row[name] for name in ("total", "mean", "least", "most", "first", "last", "spread")] == [None] * 7
                continue
            assert (row["total"], row["least"], row["most"]) == (sum(fares), min(fares), max(fares))
            assert (row["first"], row["last"]) == (fares[0], fares[-1])
            assert row["mean"] == pytest.approx(statistics.fmean(fares))
            assert row["square"] == pytest.approx(statistics.pvariance(fares), rel=1e-6, abs=1e-6)
            assert row["spread"] == pytest.approx(statistics.pstdev(fares), rel=1e-6, abs=1e-3)


def test_counts_have_the_key_and_nothing_else(tmp_path: Path) -> None:
    tested = machine(keyed().count(), tmp_path)
    tested.run([trip("a", 1), trip("b", 1), trip("a", 2)])
    assert sorted(map(tuple, map(dict.values, tested.run([trip("a", 3)])))) == [("a", 3)]
    assert tested.catalog.keys == 2


def test_wrong_aggregates_are_refused_by_name() -> None:
    with pytest.raises(TopologyError, match=r"sum\('toll'\): no such column; there are: route, at, fare"):
        keyed().aggregate(x=agg.sum("toll"))
    with pytest.raises(TopologyError, match=r"sum\('route'\): string is no number"):
        keyed().aggregate(x=agg.sum("route"))
    with pytest.raises(TopologyError, match="'route' is a column of the key"):
        keyed().aggregate(route=agg.count())
    with pytest.raises(TopologyError, match="at least one aggregate"):
        keyed().aggregate()


def test_a_sum_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    tested = machine(keyed().aggregate(x=agg.sum("fare")), tmp_path)
    tested.run([trip("a", 1, 2**62)])
    with pytest.raises(RunError, match=r"'aggregate' .*overflow"):
        tested.run([trip("a", 1, 2**62)])


# Windows


@given(some.lists(some.integers(-100, 100), max_size=20), some.integers(1, 20), some.integers(1, 20))
def test_a_record_is_in_every_window_that_covers_it(times: list[int], length: int, slide: int) -> None:
    rows = pa.record_batch({"at": pa.array(times, pa.int64())})
    found = Windows("at", length, slide)(rows)
    starts = [int(start.timestamp() * 1e6 + (0.5 if start.timestamp() >= 0 else -0.5)) for start in found[START].to_pylist()]
    expected = [(t, s) for t in times for s in range(t - t % slide, t - length, -slide)]
    assert sorted(zip(found["at"].to_pylist(), starts, strict=True)) == sorted(expected)
    assert all(s <= t < s + length for t, s in zip(found["at"].to_pylist(), starts, strict=True))


def test_a_window_is_told_once_when_the_watermark_has_passed_it(tmp_path: Path) -> None:
    stream = keyed().window("10s", n=agg.count(), total=agg.sum("fare"))
    tested = machine(stream, tmp_path)
    cut = Windows("at", 10 * SECOND, 10 * SECOND)

    def run(rows: list[dict[str, Any]], watermark_s: float | None) -> list[tuple[Any, ...]]:
        schema = pa.schema([field for field in tested.kept.input if field.name not in (START, END)])
        mark = None if watermark_s is None else round(watermark_s * SECOND)
        out = tested.run(cut(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pylist(), mark)
        return sorted((row["route"], row[START].timestamp(), row[END].timestamp(), row["n"], row["total"]) for row in out)

    assert run([trip("a", 1), trip("a", 9), trip("b", 5), trip("a", 12)], None) == []
    assert run([trip("a", 3)], 9.9) == []
    assert run([trip("a", 13)], 10) == [("a", 0, 10, 3, 3), ("b", 0, 10, 1, 1)]
    assert run([trip("a", 2), trip("b", 14)], 10) == []  # of a window that was told: late
    assert [row["route"] for row in tested.late] == ["a"]
    assert run([], 30) == [("a", 10, 20, 2, 2), ("b", 10, 20, 1, 1)]
    assert tested.catalog.keys == 0


def test_sessions_end_after_the_gap_and_grow_together(tmp_path: Path) -> None:
    tested = machine(keyed().window(gap="10s", n=agg.count(), mean=agg.mean("fare")), tmp_path)

    def run(rows: list[dict[str, Any]], watermark_s: float | None) -> list[tuple[Any, ...]]:
        out = tested.run(rows, None if watermark_s is None else round(watermark_s * SECOND))
        return [(row["route"], row[START].timestamp(), row[END].timestamp(), row["n"], row["mean"]) for row in out]

    assert run([trip("a", 1, 2), trip("a", 20, 4)], None) == []  # two sessions: 1 to 11, 20 to 30
    assert run([trip("a", 10.5, 6), trip("b", 3, 1)], 1) == []  # 1 to 20.5, which is one with that from 20 on
    assert run([], 12) == []
    assert run([], 13) == [("b", 3, 13, 1, 1.0)]
    assert run([], 30) == [("a", 1, 30, 3, 4.0)]
    assert tested.catalog.keys == 0


def test_columns_are_not_there_twice() -> None:
    windows = keyed().window("1m", n=agg.count())
    with pytest.raises(TopologyError, match="window: it adds a column 'window_end', and there is one already; rename that"):
        windows.key_by("route").window("1h", time="window_end", n=agg.count())
    with pytest.raises(TopologyError, match="window: it adds a column 'window_start'"):
        keyed().window(gap="1m", window_start=agg.count())
    with pytest.raises(TopologyError, match="top_k: it adds a column 'rank'"):
        keyed().top_k(3, by="fare").key_by("route").top_k(3, by="fare")
    by_time = trips().watermark("at", "0s").key_by("at")
    with pytest.raises(TopologyError, match="join: it adds a column 'at'"):
        by_time.join(by_time, lambda one, _: one, within="1m", schema=Trip)


def test_windows_need_a_time_and_one_kind() -> None:
    with pytest.raises(TopologyError, match="by which time"):
        trips().key_by("route").window("10s", n=agg.count())
    for wrong in ({}, {"length": "1s", "gap": "1s"}, {"slide": "1s"}):
        with pytest.raises(TopologyError, match="give a length, with slide="):
            keyed().window(**wrong, n=agg.count())


# Others


def test_only_the_first_of_a_key_passes(tmp_path: Path) -> None:
    tested = machine(keyed().deduplicate(within="3s"), tmp_path)
    assert [row["fare"] for row in tested.run([trip("a", 1, 1), trip("a", 2, 2), trip("b", 1, 3)], width=1)] in ([1, 3], [3, 1])
    assert tested.run([trip("a", 1, 4)]) == []
    tested.now += 3 * SECOND
    assert [row["fare"] for row in tested.run([trip("a", 1, 5)])] == [5]


def test_the_greatest_of_a_key_with_their_ranks(tmp_path: Path) -> None:
    tested = machine(keyed().top_k(2, by="fare"), tmp_path)
    assert [(r["rank"], r["fare"]) for r in tested.run([trip("a", 1, 5), trip("a", 2, 9), trip("a", 3, 7)])] == [(1, 9), (2, 7)]
    assert tested.run([trip("a", 4, 1), trip("a", 4, None)]) == []
    assert [(r["rank"], r["fare"]) for r in tested.run([trip("a", 4, 8)])] == [(1, 9), (2, 8)]


def test_what_is_ranked_counts_as_it_was_last(tmp_path: Path) -> None:
    stream = trips().map(lambda t: t, schema=Trip, name="m").key_by("fare").top_k(2, by="at", of="route")
    tested = machine(stream, tmp_path)
    ranks = tested.run([trip("a", 5), trip("b", 9), trip("c", 7)])
    assert [r["route"] for r in ranks] == ["b", "c"]
    assert [r["route"] for r in tested.run([trip("b", 1)])] == ["c", "a"]  # b fell, and a, which was third, is back


@dataclass(frozen=True)
class Pair:
    route: str
    left: int
    right: int


def paired(left: Trip, right: Trip) -> Pair:
    return Pair(left.route, left.fare or 0, right.fare or 0)


events = some.lists(some.tuples(some.sampled_from("ab"), some.integers(0, 40), some.booleans()), max_size=10)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(events, min_size=1, max_size=5))
def test_a_join_has_every_pair_within_the_bound_once(tmp_path_factory: Any, batches: list[Any]) -> None:
    other = trips("others").watermark("at", "0s", name="other-watermark").key_by("route")
    tested = machine(keyed().join(other, paired, within="5s"), tmp_path_factory.mktemp("state"))
    told: list[tuple[str, int, int]] = []
    came: list[tuple[str, int, bool, int]] = []
    mark, number = None, 0
    for batch in batches:
        rows = []
        for route, at, is_left in batch:
            number += 1
            row = trip(route, at, number)
            rows.append(
                {"route": route, "left": row if is_left else None, "right": None if is_left else row, "at": at * SECOND}
            )
            if mark is None or at >= mark:
                came.append((route, at, is_left, number))
        told += [(r["route"], r["left"], r["right"]) for r in tested.run(rows, None if mark is None else mark * SECOND)]
        mark = max([mark or 0, *(at for _, at, _ in batch)])
    lefts, rights = [c for c in came if c[2]], [c for c in came if not c[2]]
    expected = [(a[0], a[3], b[3]) for a in lefts for b in rights if a[0] == b[0] and abs(a[1] - b[1]) <= 5]
    assert sorted(told) == sorted(expected)


def test_a_join_lets_go_what_nothing_can_match(tmp_path: Path) -> None:
    other = trips("others").watermark("at", "0s", name="other-watermark").key_by("route")
    tested = machine(keyed().join(other, paired, within="5s"), tmp_path)
    tested.run([{"route": "a", "left": trip("a", 3), "right": None, "at": 3 * SECOND}])
    tested.run([], 8 * SECOND)
    assert tested.catalog.keys == 1
    tested.run([], 8 * SECOND + 1)
    assert tested.catalog.keys == 0


# A processor's own timers


class Reminders(st.Processor):
    """Sets a timer for every record, by its fare's sign on the event's clock or on the wall's, and tells when it came."""

    seen = st.value(int, default=0)

    def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Pair]:
        for record in records:
            state.seen += 1
            clock = "event" if (record.fare or 0) > 0 else "processing"
            state.set_timer(record.at, clock)
            if record.fare == 99:
                state.cancel_timer(record.at, clock)
        return iter(())

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Pair]:
        yield Pair(key, int(timer.at.timestamp()), state.seen)


def test_timers_come_once_in_their_order_and_whatever_comes(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").stateful(Reminders), tmp_path)
    assert tested.run([trip("a", 10), trip("a", 5), trip("b", 7), trip("a", 8, 99)], None) == []
    assert tested.run([], 4 * SECOND) == []
    out = [(row["route"], row["left"]) for row in tested.run([], 7 * SECOND)]
    assert sorted(out) == [("a", 5), ("b", 7)]
    assert [(row["route"], row["left"]) for row in tested.run([trip("c", 50)], 11 * SECOND)] == [("a", 10)]
    assert tested.run([], 12 * SECOND) == []


def test_timers_by_the_clock(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").stateful(Reminders), tmp_path)
    assert tested.run([trip("a", 3, -1)]) == []  # at 1 s
    assert tested.run([]) == []  # at 2 s
    assert [(row["route"], row["left"]) for row in tested.run([])] == [("a", 3)]  # at 3 s
    assert tested.run([]) == []


class Touchy(Reminders):
    """Its timer at 5 s fails, and so does a record with a fare of 7."""

    def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Pair]:
        if any(record.fare == 7 for record in records):
            raise ValueError("seven")
        return super().process(key, records, state)

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Pair]:
        state.seen += 100
        if timer.at == moment(5 * SECOND):
            raise ValueError("five")
        yield from super().on_timer(key, timer, state)


def test_a_timer_that_fails_is_told_of_and_given_up(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").stateful(Touchy), tmp_path)
    tested.run([trip("a", 4), trip("a", 5), trip("a", 6), trip("b", 6)])
    assert [tuple(row.values()) for row in tested.run([], 6 * SECOND)] == [("b", 6, 101)]
    ((row, error),) = tested.failed
    assert row == {"route": "a"} and str(error) == "five"
    again = [tuple(row.values()) for row in tested.run([], 6 * SECOND)]
    assert again == [("a", 4, 103), ("a", 6, 203)]  # its other timers, after three trips
    assert tested.failed == []
    assert tested.run([], 9 * SECOND) == tested.failed == []


def test_a_timer_that_fails_takes_the_records_of_its_key_along_once(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").stateful(Touchy), tmp_path)
    tested.run([trip("a", 5)])
    tested.run([trip("a", 20)], 5 * SECOND)
    assert [row for row, _ in tested.failed] == [trip("a", 20)]
    tested.run([trip("a", 30)], 5 * SECOND)
    assert tested.failed == []
    assert [(row["state.seen"], row["state._event_timers"]) for row in tested.rows()] == [(2, [30 * SECOND])]


def test_a_timer_comes_again_if_the_records_behind_it_failed(tmp_path: Path) -> None:
    """What it told and did was undone with what they did."""
    tested = machine(trips().key_by("route").stateful(Touchy), tmp_path)
    tested.run([trip("a", 6)])
    assert tested.run([trip("a", 20, 7)], 6 * SECOND) == []
    assert [row for row, _ in tested.failed] == [trip("a", 20, 7)]
    assert [tuple(row.values()) for row in tested.run([], 6 * SECOND)] == [("a", 6, 101)]


def test_a_timer_whose_result_does_not_fit_is_given_up(tmp_path: Path) -> None:
    class Odd(Reminders):
        def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Pair]:
            yield Pair(key, "soon", 1)  # type: ignore[arg-type]

    tested = machine(trips().key_by("route").stateful(Odd), tmp_path)
    tested.run([trip("a", 5)])
    assert tested.run([], 5 * SECOND) == []
    assert [row for row, _ in tested.failed] == [{"route": "a"}]
    assert tested.run([], 5 * SECOND) == tested.failed == []


def test_a_timer_that_fails_is_given_up_with_the_one_that_sets_it(tmp_path: Path) -> None:
    class Chained(st.Processor):
        def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Pair]:
            state.set_timer(records[0].at)
            return iter(())

        def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Pair]:
            if timer.clock == "processing":
                raise ValueError("chained")
            state.set_timer(state.now, "processing")
            return iter(())

    tested = machine(trips().key_by("route").stateful(Chained), tmp_path)
    tested.run([trip("a", 5)])
    assert tested.catalog.keys == 1
    tested.run([], 5 * SECOND)
    assert [row for row, _ in tested.failed] == [{"route": "a"}]
    assert tested.catalog.keys == 0  # there was nothing but the timer
    assert tested.run([], 5 * SECOND) == tested.failed == []


def test_timers_outlive_a_migration(tmp_path: Path) -> None:
    class Renamed(Reminders):
        count = st.value(int, default=0)

        def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Pair]:
            yield Pair(key, int(timer.at.timestamp()), state.count)

    handed = []

    def migrate(old: dict[str, Any]) -> dict[str, Any]:
        handed.append(old)
        return {"seen": 0, "count": old["seen"] * 10}

    before = machine(trips().key_by("route").stateful(Reminders, name="kept"), tmp_path)
    before.run([trip("a", 5), trip("a", 10), trip("b", 10), trip("b", 4, -1)])
    tested = machine(trips().key_by("route").stateful(Renamed, name="kept", migrate=migrate), tmp_path)
    tested.catalog, tested.batch = before.catalog, before.batch
    assert [tuple(row.values()) for row in tested.run([], 5 * SECOND)] == [("a", 5, 20)]  # as its key is read
    tested.merge(2)
    assert handed == [{"seen": 2}] * 3  # then b, and a once more: the older row of it is fitted before it is left out
    tested.now = 4 * SECOND
    assert [tuple(row.values()) for row in tested.run([], 5 * SECOND)] == [("b", 4, 20)]
    assert sorted(tuple(row.values()) for row in tested.run([], 10 * SECOND)) == [("a", 10, 20), ("b", 10, 20)]


def test_state_that_was_not_declared_is_an_error_that_says_what_was(tmp_path: Path) -> None:
    class Typo(Reminders):
        def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Pair]:
            state.sen += 1
            return iter(())

    tested = machine(trips().key_by("route").stateful(Typo), tmp_path)
    tested.run([trip("a", 3)])
    ((row, error),) = tested.failed
    assert row["route"] == "a" and "no state 'sen' was declared; there is: seen" in str(error)


def test_names_that_are_springtides_own_are_refused() -> None:
    for name in ("now", "watermark", "clear", "set_timer", "_mine"):
        with pytest.raises(TopologyError, match="the name is Springtide's own"):
            type("Mine", (st.Processor,), {name: st.value(int)})


@dataclass(frozen=True)
class Place:
    name: str
    visits: int


class LastPlace(st.Processor):
    """A record as state: none of its fields may be null, but a key has none at first."""

    last = st.value(Place)
    all = st.list_of(Place)

    def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Pair]:
        before = state.last
        state.last = Place(key, (before.visits if before else 0) + len(records))
        state.all.append(state.last)
        yield Pair(key, state.last.visits, len(state.all))


def test_a_record_can_be_remembered(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").stateful(LastPlace), tmp_path)
    tested.run([trip("a", 1), trip("b", 1)])
    assert [(row["left"], row["right"]) for row in tested.run([trip("a", 3), trip("a", 4)])] == [(3, 2)]
