"""The ready stateful operators, each against the same in plain Python, and their edges by hand."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

import springtide as st
from processors.state_machine import SECOND, Machine
from springtide.errors import OptionError, TopologyError
from springtide.model.state import moment
from springtide.processors.timed import Timed
from springtide.processors.windows import END, START, Windows

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
        emitted = {row["route"]: row for row in tested.run(batch, width=width)}
        for row in batch:
            seen.setdefault(row["route"], []).append(row)
        assert emitted.keys() == {row["route"] for row in batch}
        for route, row in emitted.items():
            fares = [record["fare"] for record in seen[route] if record["fare"] is not None]
            assert row["n"] == len(seen[route])
            assert row["latest"] == max(record["at"] for record in seen[route])
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


def test_a_sum_that_does_not_fit_fails_its_key_alone(tmp_path: Path) -> None:
    """Be it within a batch, where Arrow would tell another number, or across batches."""
    tested = machine(keyed().aggregate(n=agg.count(), x=agg.sum("fare"), y=agg.mean("fare")), tmp_path)
    assert tested.run([*[trip("a", 1, 2**62)] * 3, trip("b", 1, 1)]) == [{"route": "b", "n": 1, "x": 1, "y": 1.0}]
    assert [(row["route"], str(error)) for row, error in tested.failed] == [
        ("a", "aggregate 'x': sum('fare'): the sum does not fit int64")
    ] * 3
    assert [row["x"] for row in tested.run([trip("a", 1, 2**62)])] == [2**62]
    assert sorted((row["route"], row["n"]) for row in tested.run([trip("a", 1, 2**62), trip("b", 1, 1)])) == [("b", 2)]
    assert [row["route"] for row, _ in tested.failed] == ["a"]
    assert [row["x"] for row in tested.run([trip("a", 1, -(2**62)), trip("a", 1, -5)])] == [-5]  # as it was, and less


numbers = some.lists(some.one_of(some.none(), some.integers(-(2**63), 2**63 - 1), some.integers(-9, 9)), max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(some.tuples(numbers, numbers), min_size=1, max_size=4))
def test_sums_are_exact_or_fail(tmp_path_factory: Any, batches: list[Any]) -> None:
    tested = machine(keyed().aggregate(x=agg.sum("fare"), mean=agg.mean("fare")), tmp_path_factory.mktemp("state"))
    summed: dict[str, list[int]] = {"a": [], "b": []}
    for a, b in batches:
        rows = [trip(route, 1, fare) for route, fares in (("a", a), ("b", b)) for fare in fares]
        emitted = {row["route"]: (row["x"], row["mean"]) for row in tested.run(rows)}
        expected = {}
        for route, came in (("a", a), ("b", b)):
            after = summed[route] + [fare for fare in came if fare is not None]
            if came and -(2**63) <= sum(after) < 2**63:
                summed[route] = after
                expected[route] = (sum(after), pytest.approx(sum(after) / len(after))) if after else (None, None)
        assert emitted == expected
        assert len(tested.failed) == sum(len(came) for route, came in (("a", a), ("b", b)) if came and route not in emitted)


@dataclass(frozen=True)
class Price:
    item: str
    price: decimal.Decimal | None


def test_decimals_are_added_up_as_long_as_they_fit(tmp_path: Path) -> None:
    stream = st.source.generate(lambda _: Price("a", None), rate=1, schema=Price).key_by("item")
    tested = machine(stream.aggregate(x=agg.sum("price"), mean=agg.mean("price")), tmp_path)
    cent, most = decimal.Decimal("0.01"), decimal.Decimal("9" * 20)
    assert tested.run([{"item": "a", "price": cent}]) == [{"item": "a", "x": cent, "mean": 0.01}]
    assert tested.run([{"item": "a", "price": None}]) == [{"item": "a", "x": cent, "mean": 0.01}]
    assert [row["x"] for row in tested.run([{"item": "a", "price": most - 1}])] == [most - 1 + cent]
    assert tested.run([{"item": "a", "price": most}]) == []
    assert tested.run([{"item": "b", "price": most}, {"item": "b", "price": most}]) == []
    assert str(tested.failed[0][1]) == "aggregate 'x': sum('price'): the sum does not fit decimal128(38, 18)"
    wide = trips().map(lambda trip: trip, schema=pa.schema({"item": pa.string(), "x": pa.decimal256(50, 2)}), name="wide")
    with pytest.raises(TopologyError, match=r"sum\('x'\): decimal256\(50, 2\) cannot be added up; cast it to decimal128 first"):
        wide.key_by("item").aggregate(v=agg.sum("x"))


@dataclass(frozen=True)
class Reading:
    place: str
    x: float | None


readings = some.lists(some.sampled_from([None, math.nan, -1.0, 0.5, math.inf, -math.inf]), min_size=1, max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(readings, some.integers(0, 5))
@example([math.nan, 1.0], 1)
def test_the_least_and_the_greatest_do_not_depend_on_how_batches_are_cut(tmp_path_factory: Any, xs: Any, cut: int) -> None:
    stream = st.source.generate(lambda _: Reading("a", 1.0), rate=1, schema=Reading).key_by("place")
    tested = machine(stream.aggregate(least=agg.min("x"), most=agg.max("x")), tmp_path_factory.mktemp("state"))
    rows = [{"place": "a", "x": x} for x in xs]
    emitted = tested.run(rows[:cut]) + tested.run(rows[cut:])
    known = [x for x in xs if x is not None and not math.isnan(x)]
    if known:
        assert (emitted[-1]["least"], emitted[-1]["most"]) == (min(known), max(known))
    else:
        only = None if set(xs) == {None} else pytest.approx(math.nan, nan_ok=True)
        assert (emitted[-1]["least"], emitted[-1]["most"]) == (only, only)


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
        schema = pa.schema([field for field in tested.layout.input if field.name not in (START, END)])
        mark = None if watermark_s is None else round(watermark_s * SECOND)
        out = tested.run(cut(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pylist(), mark)
        return sorted((row["route"], row[START].timestamp(), row[END].timestamp(), row["n"], row["total"]) for row in out)

    assert run([trip("a", 1), trip("a", 9), trip("b", 5), trip("a", 12)], None) == []
    assert run([trip("a", 3)], 9.9) == []
    assert run([trip("a", 13)], 10) == [("a", 0, 10, 3, 3), ("b", 0, 10, 1, 1)]
    assert run([trip("a", 2), trip("b", 14)], 10) == []  # late: their window was emitted before
    assert [row["route"] for row in tested.late] == ["a"]
    assert run([], 30) == [("a", 10, 20, 2, 2), ("b", 10, 20, 1, 1)]
    assert tested.catalog.keys == 0


def test_sessions_end_after_the_gap_and_grow_together(tmp_path: Path) -> None:
    tested = machine(keyed().window(gap="10s", n=agg.count(), mean=agg.mean("fare")), tmp_path)

    def run(rows: list[dict[str, Any]], watermark_s: float | None) -> list[tuple[Any, ...]]:
        out = tested.run(rows, None if watermark_s is None else round(watermark_s * SECOND))
        return [(row["route"], row[START].timestamp(), row[END].timestamp(), row["n"], row["mean"]) for row in out]

    assert run([trip("a", 1, 2), trip("a", 20, 4)], None) == []  # two sessions: 1 to 11, 20 to 30
    assert run([trip("a", 10.5, 6), trip("b", 3, 1)], 1) == []  # 1 to 20.5, which merges with the session from 20 on
    assert run([], 12) == []
    assert run([], 13) == [("b", 3, 13, 1, 1.0)]
    assert run([], 30) == [("a", 1, 30, 3, 4.0)]
    assert tested.catalog.keys == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(some.integers(0, 30), min_size=1, max_size=8), some.sets(some.integers(1, 7)))
def test_sessions_do_not_depend_on_how_batches_are_cut(tmp_path_factory: Any, times: list[int], cuts: set[int]) -> None:
    """Also where a record comes just when a session ends: it begins another. Times ascend, so that nothing is late."""
    times = sorted(times)
    tested = machine(keyed().window(gap="5s", n=agg.count(), first=agg.first("fare")), tmp_path_factory.mktemp("state"))
    ends = [0, *sorted(cut for cut in cuts if cut < len(times)), len(times)]
    emitted, mark = [], None
    for begin, end in itertools.pairwise(ends):
        emitted += tested.run([trip("a", at, number) for number, at in enumerate(times) if begin <= number < end], mark)
        mark = times[end - 1] * SECOND
    emitted += tested.run([], 99 * SECOND)
    starts = [0, *(i for i in range(1, len(times)) if times[i] - times[i - 1] >= 5), len(times)]
    expected = [(times[i], times[j - 1] + 5, j - i, i) for i, j in itertools.pairwise(starts)]
    assert [(r[START].timestamp(), r[END].timestamp(), r["n"], r["first"]) for r in emitted] == expected


def test_of_sessions_that_become_one_the_earlier_is_first(tmp_path: Path) -> None:
    tested = machine(keyed().window(gap="5s", first=agg.first("fare"), last=agg.last("fare")), tmp_path)
    tested.run([trip("a", 8, 2), trip("a", 0, 1), trip("a", 4, 3), trip("b", 0, 1), trip("b", 8, 2), trip("b", 4, 3)])
    emitted = tested.run([], 99 * SECOND)
    assert sorted((row["route"], row["first"], row["last"]) for row in emitted) == [("a", 1, 3), ("b", 1, 3)]


def test_a_session_whose_sum_does_not_fit_fails_alone(tmp_path: Path) -> None:
    tested = machine(keyed().window(gap="5s", x=agg.sum("fare")), tmp_path)
    tested.run([trip("a", 1, 2**62), trip("a", 2, 2**62), trip("b", 1, 1)])
    assert {str(error) for _, error in tested.failed} == {"aggregate 'x': sum('fare'): the sum does not fit int64"}
    assert [row["route"] for row in tested.run([], 99 * SECOND)] == ["b"]


@dataclass(frozen=True)
class Part:
    name: str
    size: float


@dataclass(frozen=True)
class Nested:
    route: str | None
    at: datetime.datetime | None
    part: Part | None
    tags: dict[str, int]
    n: float


def nested(name: str = "nested") -> st.KeyedStream:
    made = st.source.generate(lambda draw: Nested("a", draw.created, None, {}, 1.0), rate=1, schema=Nested, name=name)
    return made.watermark("at", "0s", name=f"{name}-watermark").key_by("route")


def part(at_s: float, n: float = 1.0, name: str = "x", route: str | None = "a") -> dict[str, Any]:
    return {"route": route, "at": moment(round(at_s * SECOND)), "part": {"name": name, "size": 1.0}, "tags": {"k": 1}, "n": n}


def test_sessions_of_records_in_which_others_are(tmp_path: Path) -> None:
    tested = machine(nested().window(gap="5s", n=agg.count(), total=agg.sum("n")), tmp_path)
    tested.run([part(1, 2.0), part(2, 3.0)])
    assert tested.failed == []
    assert [(row["n"], row["total"]) for row in tested.run([], 99 * SECOND)] == [(2, 5.0)]


@dataclass(frozen=True)
class Gap:
    route: str
    at: datetime.datetime | None
    fare: int


def gaps() -> st.KeyedStream:
    made = st.source.generate(lambda draw: Gap("a", draw.created, 1), rate=1, schema=Gap, name="gaps")
    return made.watermark("at", "0s").key_by("route")


def test_records_without_a_time_are_told_of_and_the_others_go_on() -> None:
    times = pa.array([None, 3 * SECOND], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"route": ["a", "b"], "at": times, "fare": [1, 2]})
    other = trips("others").watermark("at", name="other-watermark").key_by("route")
    for stream, name in (
        (gaps().window("10s", n=agg.count()), "window-cut"),
        (gaps().window(gap="10s", n=agg.count()), "window-timed"),
        (gaps().join(other, paired, within="5s"), "join-left"),
    ):
        function = stream.to(st.sink.discard()).named("t")[name].function
        assert isinstance(function, Timed)
        assert function(rows)["route"].to_pylist() == ["b"]
        assert [index for index, _ in function.split(rows)[1]] == [0]
        assert "its time, 'at', is null" in str(function.fault)
    assert "window-timed" not in keyed().window(gap="1s", n=agg.count()).to(st.sink.discard()).named("t").by_name


def test_columns_are_not_there_twice() -> None:
    windows = keyed().window("1m", n=agg.count())
    with pytest.raises(
        TopologyError, match="window: it adds a column 'window_end', which exists already; rename the existing one"
    ):
        windows.key_by("route").window("1h", time="window_end", n=agg.count())
    with pytest.raises(TopologyError, match="window: it adds a column 'window_start'"):
        keyed().window(gap="1m", window_start=agg.count())
    with pytest.raises(TopologyError, match="top_k: it adds a column 'rank'"):
        keyed().top_k(3, by="fare").key_by("route").top_k(3, by="fare")
    by_time = trips().watermark("at", "0s").key_by("at")
    with pytest.raises(TopologyError, match="join: it adds a column 'at'"):
        by_time.join(by_time, lambda left, _: left, within="1m", schema=Trip)


def test_windows_need_a_time_and_one_kind() -> None:
    with pytest.raises(TopologyError, match=r"no event time; write \.watermark"):
        trips().key_by("route").window("10s", n=agg.count())
    for wrong in ({}, {"length": "1s", "gap": "1s"}, {"slide": "1s"}):
        with pytest.raises(TopologyError, match="give a length, with slide="):
            keyed().window(**wrong, n=agg.count())
    refused: list[tuple[dict[str, Any], str]] = [
        ({"length": "0s"}, "length='0s' is not allowed; give more than 0 s, such as '10s'"),
        ({"length": "10s", "slide": 0}, "slide=0 is not allowed"),
        ({"gap": "0s"}, "gap='0s' is not allowed"),
        ({"length": "10s", "time": "nope"}, "'nope' is not there; there are: route, at, fare"),
        ({"gap": "10s", "time": "route"}, "its time is a column of datetimes, or of microseconds; 'route' is string"),
    ]
    for wrong, message in refused:
        with pytest.raises(TopologyError, match=f"window: .*{message}"):
            keyed().window(**wrong, n=agg.count())


def test_windows_and_timers_that_could_never_come_are_refused() -> None:
    bare, timed = trips("bare"), trips("timed").watermark("at", "0s")
    message = r"window: no watermark comes from 'bare', so that no window would ever end; write \.watermark\(column, delay\)"
    for stream in (bare, timed.union(bare), bare.union(timed)):
        for kind in ({"length": "10s"}, {"gap": "10s"}):
            with pytest.raises(TopologyError, match=message):
                stream.key_by("route").window(**kind, time="at", n=agg.count())
    for stream in (timed.union(bare), bare.union(timed)):
        with pytest.raises(TopologyError, match=message):
            stream.key_by("route").window("10s", n=agg.count())
        with pytest.raises(
            TopologyError, match="operator 'reminders': no watermark comes from 'bare', so that no event-time timer"
        ):
            stream.key_by("route").stateful(Reminders)
        with pytest.raises(TopologyError, match="join: no watermark comes from 'bare'"):
            keyed().join(stream.key_by("route"), paired, within="5s")
        stream.key_by("route").count()
    both = timed.union(bare.watermark("at", name="too"))
    both.key_by("route").window("10s", n=agg.count())
    both.map(lambda trip: trip, schema=Trip, name="same").key_by("route").stateful(Reminders)


MADE: list[Callable[[st.KeyedStream], st.Stream]] = [
    lambda keyed: keyed.count(),
    lambda keyed: keyed.window("1s", n=agg.count()),
    lambda keyed: keyed.window(gap="1s", n=agg.count()),
    lambda keyed: keyed.join(keyed, paired, within="1s"),
]


@pytest.mark.parametrize("made", MADE)
def test_keys_that_are_not_there_are_told(made: Callable[[st.KeyedStream], st.Stream]) -> None:
    with pytest.raises(TopologyError, match="key 'zz' is not among the columns of 'at-watermark': route, at, fare"):
        made(trips().watermark("at").key_by("zz"))


def test_options_that_are_not_there_are_told() -> None:
    with pytest.raises(OptionError, match=r"count: unknown option 'shard'; did you mean 'shards'.* migrate, .* time, ttl"):
        keyed().count(shard=3)


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


def test_what_is_ranked_may_be_a_record(tmp_path: Path) -> None:
    tested = machine(nested().top_k(3, by="n", of="part"), tmp_path)
    tested.run([part(1, 1.0, "x"), part(1, 2.0, "y")])
    ranks = tested.run([part(1, 5.0, "x")])
    assert [(r["part"]["name"], r["n"], r["rank"]) for r in ranks] == [("x", 5.0, 1), ("y", 2.0, 2)]
    assert tested.run([part(1, 5.0, "x")]) == tested.failed == []  # nothing has changed
    with pytest.raises(TopologyError, match=r"top_k: by='part' is struct.*, whose values have no order; give another column"):
        nested().top_k(3, by="part")


def test_what_is_no_number_is_ranked_last(tmp_path: Path) -> None:
    tested = machine(nested().top_k(4, by="n"), tmp_path)
    tested.run([part(1, 1.0), part(1, math.nan), part(1, 3.0)])
    ranks = [row["n"] for row in tested.run([part(1, 2.0), part(1, math.nan)])]
    assert ranks[:3] == [3.0, 2.0, 1.0] and math.isnan(ranks[3])


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
    emitted: list[tuple[str, int, int]] = []
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
        emitted += [(r["route"], r["left"], r["right"]) for r in tested.run(rows, None if mark is None else mark * SECOND)]
        mark = max([mark or 0, *(at for _, at, _ in batch)])
    lefts, rights = [c for c in came if c[2]], [c for c in came if not c[2]]
    expected = [(a[0], a[3], b[3]) for a in lefts for b in rights if a[0] == b[0] and abs(a[1] - b[1]) <= 5]
    assert sorted(emitted) == sorted(expected)


def sized(left: Nested, right: Nested) -> Pair:
    assert isinstance(left.part, Part) and isinstance(right.part, Part)
    return Pair(str(left.route), int(left.n) * left.tags["k"], int(right.n) * right.tags["k"])


def plainly(left: Any, right: Any) -> Pair:
    return Pair(left["route"], int(left["n"]) * left["tags"]["k"], int(right["n"]) * right["tags"]["k"])


@pytest.mark.parametrize("combine", [sized, plainly])
def test_a_join_of_records_with_dicts_and_records_in_them(tmp_path: Path, combine: Any) -> None:
    streams = [nested(name) for name in "xy"]
    if combine is plainly:  # without a class, records are dicts
        plain = [
            stream._plain().map_batches(lambda rows: rows, schema=stream.schema, name=f"{i}")
            for i, stream in enumerate(streams)
        ]
        streams = [stream.key_by("route") for stream in plain]
    tested = machine(streams[0].join(streams[1], combine, within="5s"), tmp_path)

    def row(side: str, n: float) -> dict[str, Any]:
        return {"route": "a", "left": None, "right": None, side: part(1, n), "at": SECOND}

    emitted = (
        tested.run([row("left", 1.0), row("right", 2.0)]) + tested.run([row("right", 3.0)]) + tested.run([row("left", 4.0)])
    )
    assert tested.failed == []
    assert [(pair["left"], pair["right"]) for pair in emitted] == [(1, 2), (1, 3), (4, 2), (4, 3)]


def test_nulls_match_nothing_in_a_join() -> None:
    made = nested("x").join(nested("y"), sized, within="5s").to(st.sink.discard()).named("t")
    for side in (made["join-left"].function, made["join-right"].function):
        assert side is not None
        rows = pa.RecordBatch.from_pylist([part(1, route=None), part(1)], schema=nested().schema)
        assert side(rows)["route"].to_pylist() == ["a"]


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
    """Its output and its changes of the state are undone together with those of the records."""
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
