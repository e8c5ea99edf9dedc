"""Rates: when records come, in both directions, and traces from files."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.errors import OptionError, TraceError
from springtide.model.rate import Rate, as_rate, constant, sampled, trace

values = st.one_of(st.just(0.0), st.floats(1e-3, 1e6), st.integers(1, 1000).map(lambda n: n / 10))
lengths = st.one_of(st.floats(0.01, 1e4), st.integers(1, 100).map(lambda n: n / 10))


@st.composite
def rates(draw: st.DrawFn, ends: bool | None = None) -> Rate:
    steps = draw(st.lists(st.tuples(lengths, values), min_size=1, max_size=12))
    starts = [draw(st.sampled_from([0.0, 2.5]))]
    for length, _ in steps:
        starts.append(starts[-1] + length)
    ended = draw(st.booleans()) if ends is None else ends
    return Rate(tuple(starts[:-1]), tuple(value for _, value in steps), starts[-1] if ended else math.inf)


def _horizon(rate: Rate) -> float:
    return rate.starts[-1] + 100.0 if math.isinf(rate.end) else rate.end


def _records(rate: Rate, data: st.DataObject, most: int = 10**9) -> int | None:
    """The index of a record that comes; None where none does."""
    total = rate.count(_horizon(rate)) if rate.total is None else rate.total
    return data.draw(st.integers(0, min(total, most) - 1)) if total else None


@given(rates(), st.data())
def test_a_record_is_counted_from_its_creation_on(rate: Rate, data: st.DataObject) -> None:
    index = _records(rate, data)
    if index is not None:
        created = float(rate.created(index, index + 1)[0])
        assert rate.count(created) > index
        assert rate.count(np.nextafter(created, -math.inf)) <= index


@given(rates(), st.floats(0, 1e5))
def test_what_is_counted_was_created_and_the_next_was_not(rate: Rate, t: float) -> None:
    count = rate.count(t)
    if count:
        assert rate.created(count - 1, count)[0] <= t
    if rate.total is None or count < rate.total:
        assert rate.created(count, count + 1)[0] > t


@given(rates(), st.lists(st.floats(-10, 1e5), min_size=2, max_size=10))
def test_counts_never_fall(rate: Rate, times: list[float]) -> None:
    counts = [rate.count(t) for t in sorted(times)]
    assert counts == sorted(counts)


@given(rates(), st.data())
def test_creation_times_rise_and_lie_in_steps_that_bring_records(rate: Rate, data: st.DataObject) -> None:
    index = _records(rate, data)
    if index is not None:
        first = max(0, index - 50)
        times = rate.created(first, index + 1)
        assert (np.diff(times) >= 0).all()
        for t in times:
            step = int(np.searchsorted(rate.starts, t, side="left")) - 1  # a record may come at a step's very end
            assert rate.values[step] > 0


@given(rates(), st.data())
def test_part_of_the_steps_dates_records_as_the_whole(rate: Rate, data: st.DataObject) -> None:
    last = _records(rate, data)
    if last is not None:
        first = data.draw(st.integers(max(0, last - 1000), last))
        part = pickle.loads(pickle.dumps(rate.steps.part(first, last + 1)))
        assert part.created(first, last + 1).tolist() == rate.created(first, last + 1).tolist()
        assert len(part.values) <= len(rate.values)


@given(rates(ends=True))
def test_all_records_have_come_by_the_end(rate: Rate) -> None:
    assert rate.count(rate.end) == rate.count(math.inf) == rate.total
    if rate.total:
        assert rate.created(rate.total - 1, rate.total)[0] <= rate.end


@given(rates())
def test_a_pickled_rate_is_the_same_and_carries_nothing_derived(rate: Rate) -> None:
    before = pickle.dumps(rate)
    rate.count(5.0)
    assert pickle.dumps(rate) == before
    assert pickle.loads(before) == rate
    assert pickle.loads(before).count(5.0) == rate.count(5.0)


def test_a_pause_delays_the_record_after_it_and_not_the_one_before() -> None:
    rate = Rate((0.0, 10.0, 20.0), (1.0, 0.0, 1.0), 30.0)
    assert rate.created(8, 12).tolist() == [9.0, 10.0, 21.0, 22.0]
    assert [rate.count(t) for t in (9.99, 10.0, 20.99, 21.0)] == [9, 10, 10, 11]


def test_ten_times_a_tenth_is_one_record() -> None:
    rate = Rate(tuple(float(i) for i in range(10)), (0.1,) * 10, 10.0)
    assert rate.total == rate.count(10.0) == 1
    assert rate.created(0, 1).tolist() == [10.0]


def test_a_rate_that_falls_to_zero_for_good_has_a_total() -> None:
    rate = Rate((0.0, 4.0), (2.0, 0.0))
    assert rate.total == 8
    assert rate.count(1e9) == 8
    with pytest.raises(OptionError, match="record 8 never comes: the rate brings 8 in all"):
        rate.created(0, 9)


def test_no_records_have_no_creation_times() -> None:
    assert constant(5).created(3, 3).tolist() == []
    assert constant(0).total == 0


@pytest.mark.parametrize(
    ("starts", "rates", "end", "fault"),
    [
        ((), (), 1.0, "at least one step"),
        ((0.0,), (1.0, 2.0), 1.0, "as many starts as values"),
        ((0.0,), (-1.0,), 1.0, "rate of -1.* finite values of 0 or more"),
        ((0.0,), (math.nan,), 1.0, "rate of nan.* finite values of 0 or more"),
        ((0.0,), (math.inf,), 1.0, "rate of inf.* finite values of 0 or more"),
        ((0.0, 0.0), (1.0, 1.0), 1.0, "start at 0, 0 and end at 1 s.* rising starts"),
        ((0.0, 2.0), (1.0, 1.0), 2.0, "start at 0, 2 and end at 2 s.* rising starts"),
        ((-1.0,), (1.0,), 2.0, "start at -1 and end at 2 s.* rising starts"),
        ((math.nan,), (1.0,), 2.0, "start at nan and end at 2 s.* rising starts"),
        ((0.0,), (1.0,), math.nan, "start at 0 and end at nan s.* rising starts"),
        ((0.0, math.inf), (1.0, 1.0), math.inf, "start at 0, inf and end at inf s.* rising starts"),
    ],
)
def test_a_senseless_rate_is_refused(starts: tuple[float, ...], rates: tuple[float, ...], end: float, fault: str) -> None:
    with pytest.raises(OptionError, match=fault):
        Rate(starts, rates, end)


@pytest.mark.parametrize("given", [20, 20.0, np.int64(20), np.float32(20)])
def test_a_number_is_a_rate(given: object) -> None:
    assert as_rate(given) == constant(20)


def test_a_function_is_sampled_and_what_is_below_zero_brings_nothing() -> None:
    rate = sampled(lambda t: 10.0 if t < 1.0 else -5.0, duration=2.0)
    assert len(rate.starts) == 20
    assert rate.total == rate.count(100.0) == 10


def test_the_last_sample_holds() -> None:
    assert sampled(lambda t: 10.0, duration=1.0).count(1000.0) == 10_000


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_function_that_gives_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(OptionError, match=r"rate=broken: at 0\.05 s it returns (nan|inf); return a finite number"):
        sampled(_named("broken", lambda t: wrong), duration=1.0)


def _named(name: str, function: Callable[[float], float]) -> Callable[[float], float]:
    function.__name__ = name
    return function


@pytest.mark.parametrize("wrong", [None, True, "20", [1]])
def test_what_is_no_rate_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"rate=.*give records/s"):
        as_rate(wrong)


def _file(folder: Path, content: str | bytes) -> Path:
    file = folder / "day.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    "content",
    [
        "0,10\n60,20\n",
        "time,value\n0,10\n60,20\n",
        "time,value\r\n0,10\r\n60,20",
        "\ufefftime,value\n0,10\n60,20\n",
        "\ufeff0,10\n60,20\n",
        "0, 10\n\n  \n60, 20\n\n",
        "1000,10\n1060,20\n",
        "2024-03-01T12:00:00,10\n2024-03-01T12:01:00,20\n",
        "2024-03-01 12:00:00+00:00,10\n 2024-03-01 14:01:00+02:00,20\n",
        '"0","10"\n"60","20"\n',
    ],
)
def test_traces_are_read_with_or_without_header_and_with_seconds_or_timestamps(tmp_path: Path, content: str) -> None:
    rate = trace(_file(tmp_path, content))
    assert rate == Rate((0.0, 60.0), (10.0, 20.0), 120.0)
    assert str(rate) == "day.csv"
    assert rate.total == 1800


def test_speed_brings_as_many_records_in_less_time_and_scale_more(tmp_path: Path) -> None:
    file = _file(tmp_path, "0,10\n60,20\n")
    assert trace(file, speed=10) == Rate((0.0, 6.0), (100.0, 200.0), 12.0)
    assert trace(file, speed=10).total == trace(file).total
    assert trace(file, scale=0.5) == Rate((0.0, 60.0), (5.0, 10.0), 120.0)


def test_a_single_line_holds_for_a_second(tmp_path: Path) -> None:
    assert trace(_file(tmp_path, "5,10\n")) == Rate((0.0,), (10.0,), 1.0)


@pytest.mark.parametrize(
    ("content", "line", "shown"),
    [
        ("time,value\n0,10\n60,many\n", 3, "'60,many'"),
        ("0,10\n60\n", 2, "'60'"),
        ("0,10\n60,20,30\n", 2, "'60,20,30'"),
        ("0,10\n\n60,-1\n", 3, "'60,-1'"),
        ("0,10\n60,nan\n", 2, "'60,nan'"),
        ("0,10\ninf,20\n", 2, "'inf,20'"),
        ("0,10\nyesterday,20\n", 2, "'yesterday,20'"),
        ("0,10\ntime,value\n", 2, "'time,value'"),
        ("x0,y\n0,10\n", 1, "'x0,y'"),
    ],
)
def test_a_malformed_line_is_shown_with_file_and_number(tmp_path: Path, content: str, line: int, shown: str) -> None:
    file = _file(tmp_path, content)
    with pytest.raises(TraceError) as caught:
        trace(file)
    assert str(caught.value).startswith(f"{file}, line {line}: {shown} is not time,value")


@pytest.mark.parametrize("content", ["0,10\n60,20\n60,30\n", "0,10\n60,20\n30,30\n"])
def test_lines_out_of_order_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError, match=r"day\.csv, line 3: '.0,30' is not later than the line before it"):
        trace(_file(tmp_path, content))


@pytest.mark.parametrize("content", ["", "\n\n", "time,value\n"])
def test_an_empty_trace_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError, match=r"day\.csv has no lines of time,value"):
        trace(_file(tmp_path, content))


def test_a_missing_trace_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TraceError, match=f"no trace at '{path}'"):
            trace(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"day\.csv cannot be read as a CSV file"):
        trace(_file(tmp_path, b"\xff\xfe0,10\n"))


@pytest.mark.parametrize("options", [{"speed": 0}, {"scale": -1}, {"speed": math.nan}, {"scale": math.inf}])
def test_a_senseless_speed_or_scale_is_refused(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=r"speed=.* and scale=.* of a trace must be above 0"):
        trace(_file(tmp_path, "0,10\n"), **options)
