"""Generated streams: positions, ranges and records, by hand with a fake clock."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.connectors.generate import CHUNK_ROWS, GenerateSource, Maker, Schedule
from springtide.errors import RecordError
from springtide.model.generated import Draw, draws
from springtide.model.rate import Rate, constant
from springtide.model.schema import schema_of
from springtide.model.source import Range

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


@dataclass
class Clock:
    """A clock that is set by hand, in seconds after T0."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return T0 + self.seconds


@dataclass
class Bench:
    """A schedule of 10 records/s with its clock."""

    schedule: Schedule
    clock: Clock

    def end(self, since: int) -> int:
        return int(self.schedule.end({"next": since})["next"])

    def limited(self, since: int, end: int, most: int) -> int:
        return int(self.schedule.limited({"next": since}, {"next": end}, most)["next"])

    def ranges(self, since: int, until: int, tasks: int = 1) -> list[Range]:
        """The ranges as tasks get them: as JSON."""
        made = self.schedule.ranges({"next": since}, {"next": until}, tasks)
        return [json.loads(json.dumps(part)) for part in made]

    def cut(self, since: int, until: int, tasks: int) -> list[tuple[int, int]]:
        return [(part["first"], part["last"]) for part in self.ranges(since, until, tasks)]


def bench(limit: int | None = None, rate: Rate | None = None) -> Bench:
    clock = Clock()
    source = GenerateSource(trip, rate or constant(10), limit=limit)
    return Bench(source.enumerator({"started": T0}, clock), clock)


# Positions


def test_a_stream_starts_at_its_first_record() -> None:
    assert bench().schedule.first() == {"next": 0}


def test_the_schedule_starts_when_the_stream_begins() -> None:
    source = GenerateSource(trip, constant(10))
    assert source.begin(Clock(50.0)) == {"started": T0 + 50.0}
    assert source.enumerator({"started": T0 + 50.0}, Clock(51.0)).end({"next": 0}) == {"next": 10}


def test_as_many_records_are_ready_as_the_schedule_has_by_now() -> None:
    made = bench()
    assert made.end(0) == 0
    made.clock.seconds = 2.55
    assert made.end(0) == made.end(20) == 25


def test_the_clock_set_back_takes_no_record_back() -> None:
    made = bench()
    made.clock.seconds = 10.0
    assert made.end(0) == 100
    made.clock.seconds = -3600.0
    assert made.end(0) == made.end(100) == 100


def test_a_checkpoint_ahead_of_the_clock_waits_for_it() -> None:
    """After a restart on a machine whose clock is behind, the schedule has seen nothing yet."""
    made = bench()
    made.clock.seconds = 1.0
    assert made.end(500) == 500
    made.clock.seconds = 51.0
    assert made.end(500) == 510


def test_the_limit_ends_the_stream() -> None:
    made = bench(limit=12)
    made.clock.seconds = 100.0
    assert made.end(0) == made.end(12) == 12
    assert [made.schedule.exhausted({"next": n}) for n in (0, 11, 12)] == [False, False, True]


def test_the_end_of_the_rate_ends_the_stream_unless_the_limit_does_before() -> None:
    rate = Rate((0.0,), (10.0,), 2.0)
    for limit, total in ((None, 20), (30, 20), (5, 5)):
        schedule = bench(limit, rate).schedule
        assert [schedule.exhausted({"next": n}) for n in (total - 1, total, total + 1)] == [False, True, True]
    assert not bench().schedule.exhausted({"next": 10**12})


def test_arrived_counts_up_to_the_limit() -> None:
    assert [GenerateSource(trip, constant(10), limit=12).arrived(s) for s in (-1.0, 1.0, 2.0)] == [0, 10, 12]
    assert GenerateSource(trip, constant(10)).arrived(2.0) == 20


def test_records_between_positions_are_counted_and_none_are_owed() -> None:
    schedule = bench().schedule
    assert [schedule.count({"next": 7}, {"next": n}) for n in (7, 12, 3)] == [0, 5, 0]


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_a_limited_batch_makes_progress_and_never_exceeds_its_limit(since: int, rows: int, most: int) -> None:
    until = bench().limited(since, since + rows, most)
    assert until == since + min(rows, max(1, most))


# Ranges


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(1, 200))
def test_ranges_are_even_contiguous_and_never_empty(start: int, rows: int, tasks: int) -> None:
    ranges = bench().cut(start, start + rows, tasks)
    assert len(ranges) == min(tasks, rows)
    assert [i for first, last in ranges for i in range(first, last)] == list(range(start, start + rows))
    sizes = {last - first for first, last in ranges}
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


def test_one_batch_is_cut_the_same_way_however_often_it_is_asked_for_and_after_a_restart() -> None:
    made = bench(rate=Rate((0.0, 0.7, 3.0), (20.0, 0.0, 35.5)))
    wanted = made.ranges(20, 90, 3)
    made.clock.seconds = 1000.0
    assert made.end(0) > 90
    assert made.ranges(0, 10, 5) != made.ranges(20, 90, 3) == wanted
    restarted = bench(rate=Rate((0.0, 0.7, 3.0), (20.0, 0.0, 35.5)))
    assert restarted.ranges(20, 90, 3) == wanted


# Records


def _chunks(make: Callable[[Draw], Any], ranges: list[Range], seed: int = 0) -> Iterator[dict[str, Any]]:
    """The rows of a batch, as tasks make them, with their creation times as ``at``."""
    maker = Maker(make, seed, COLUMNS)
    for part in ranges:
        following = part["first"]
        for records in maker.read(part):
            assert isinstance(records.values, pa.RecordBatch)
            assert records.values.schema == COLUMNS
            assert records.created is not None
            assert records.numbers is not None
            assert (records.lost, list(records.rejected)) == (0, [])
            assert records.numbers.tolist() == list(range(following, records.next))
            following = records.next
            for row, at in zip(records.values.to_pylist(), records.created.tolist(), strict=True):
                yield {**row, "at": at}
        assert following == part["last"]


def test_records_are_the_users_columns_and_the_creation_time() -> None:
    wanted = [{**vars(trip(draw)), "at": T0_MICROS + 100_000 * (draw.index + 1)} for draw in draws(0, 3, [0, 0])]
    assert list(_chunks(trip, bench().ranges(3, 5))) == wanted


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 5))
def test_records_do_not_depend_on_how_the_stream_is_cut(sizes: list[int], tasks: int) -> None:
    made = bench(rate=Rate((0.0, 0.7, 3.0), (20.0, 0.0, 35.5)))
    rows: list[dict[str, Any]] = []
    start = 0
    for size in sizes:
        rows += _chunks(trip, made.ranges(start, start + size, tasks), seed=5)
        start += size
    assert rows == list(_chunks(trip, made.ranges(0, start), seed=5))
    assert [row["id"] for row in rows] == list(range(start))


def test_chunks_have_at_most_10_000_rows() -> None:
    (part,) = bench(rate=constant(1e6)).ranges(0, 2 * CHUNK_ROWS + 1)
    assert [len(records) for records in Maker(trip, 0, COLUMNS).read(part)] == [CHUNK_ROWS, CHUNK_ROWS, 1]


def test_what_travels_to_the_tasks_is_small() -> None:
    """A function sampled for an hour has 36,000 steps; 1,000 records at 200/s need some 50 of them."""
    rate = Rate(tuple(i / 10 for i in range(36_000)), tuple(200.0 + i % 7 for i in range(36_000)))
    made = bench(rate=rate)
    (part,) = made.ranges(500_000, 501_000)
    assert len(json.dumps(part)) < 3_000
    assert [row["id"] for row in _chunks(trip, [part])] == list(range(500_000, 501_000))
    assert len(pickle.dumps(GenerateSource(trip, rate).in_tasks())) < 1_000


def test_the_declaration_in_tasks_makes_the_same_records() -> None:
    source = GenerateSource(trip, constant(10), seed=3)
    (part,) = source.enumerator({"started": T0}).ranges({"next": 4}, {"next": 9}, 1)
    one, other = (list(made.reader(COLUMNS, Trip).read(part)) for made in (source, source.in_tasks()))
    assert [records.values for records in one] == [records.values for records in other]


def _faults(make: Callable[[Draw], Any]) -> str:
    with pytest.raises(RecordError) as caught:
        list(_chunks(make, bench().ranges(10, 20)))
    return str(caught.value)


def test_a_function_that_raises_is_reported_with_the_record() -> None:
    def broken(draw: Draw) -> Trip:
        if draw.index == 13:
            raise ValueError("no more trips")
        return trip(draw)

    assert "broken: record 13 failed: ValueError: no more trips" in _faults(broken)


def test_a_function_that_exits_is_reported_too() -> None:
    """It must not end the worker."""

    def leaves(draw: Draw) -> Trip:
        raise SystemExit(3)

    assert "leaves: record 10 failed: SystemExit: 3" in _faults(leaves)


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
    rows = list(_chunks(lambda draw: vars(trip(draw)), bench().ranges(0, 2)))
    assert [row["id"] for row in rows] == [0, 1]
