"""What arrived, what was read and what waits, from batches' reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import springtide as st
from springtide.control.monitor import Monitor, estimated_rate
from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport
from springtide.model.snapshot import Snapshot, SourceSnapshot
from springtide.model.topology import Topology


@dataclass(frozen=True)
class Number:
    value: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def same(one: Number) -> Number:
    return one


def one_source() -> Topology:
    return st.source.generate(number, rate=100, name="in").to(st.sink.discard(), name="sink").named("one")


def two_sources() -> Topology:
    left, right = (st.source.generate(number, rate=100, name=name) for name in ("left", "right"))
    return left.union(right).map(same, name="both").to(st.sink.discard(), name="sink").named("two")


def batch(
    rows: int, committed: float, backlog: int | None, *tasks: TaskReport, created: tuple[tuple[float, float], ...] = ()
) -> BatchReport:
    return BatchReport(
        0, 1, Plan({}, 1, {}), committed - 0.5, committed, rows, rows, 0, tasks, {"sink": rows}, created, backlog
    )


def read(source: str, rows: int) -> TaskReport:
    return TaskReport(source, 0, None, rows, 0, None, 0.0, 1.0)


def seen(monitor: Monitor, *reports: BatchReport) -> Snapshot:
    for report in reports:
        monitor.add(report)
    return monitor.snapshot(1.0, 1.0, Plan({}, 1, {}))


def test_what_arrived_is_what_was_read_and_what_the_backlog_grew_by() -> None:
    """From 10 to 14 s, 300 + 500 records are read and 40 more wait: 840 in 4 s. The interval of 1 s plays no part."""
    monitor = Monitor(one_source())
    first = seen(monitor, batch(100, 10.0, 60))
    assert first.sources == (SourceSnapshot("in", 100, (), None, 60),), "one count is no growth"
    second = seen(monitor, batch(300, 12.0, 900), batch(500, 14.0, 100))
    assert second.sources == (SourceSnapshot("in", 800, (), 210.0, 100),)
    assert second.arrival_rate == 210.0


def test_while_no_batch_ends_nothing_is_known_but_the_last_backlog() -> None:
    monitor = Monitor(one_source())
    seen(monitor, batch(100, 10.0, 60))
    silent = seen(monitor)
    assert silent.sources == (SourceSnapshot("in", None, (), None, 60),)
    assert seen(monitor, batch(100, 20.0, 160)).arrival_rate == 20.0, "what arrived meanwhile is in the next count"


def test_a_backlog_that_is_unknown_is_not_zero() -> None:
    monitor = Monitor(one_source())
    seen(monitor, batch(100, 10.0, 60))
    assert seen(monitor, batch(100, 11.0, None)).sources == (SourceSnapshot("in", 100),)
    assert seen(monitor, batch(100, 12.0, 60)).arrival_rate is None, "the count before is too old: it lacks a batch"
    assert seen(monitor, batch(100, 13.0, 60)).arrival_rate == 100.0


def test_a_clock_that_goes_back_measures_no_rate() -> None:
    monitor = Monitor(one_source())
    seen(monitor, batch(100, 10.0, 60))
    assert seen(monitor, batch(100, 9.0, 60)).arrival_rate is None
    assert seen(monitor, batch(100, 11.0, 0)).arrival_rate == 20.0


def test_a_backlog_that_shrinks_by_more_than_was_read_is_no_negative_rate() -> None:
    """Records may be deleted unread, by a topic's retention."""
    monitor = Monitor(one_source())
    seen(monitor, batch(100, 10.0, 1_000))
    assert seen(monitor, batch(100, 11.0, 500)).arrival_rate == 0.0


def test_several_sources_share_the_arrivals_and_know_no_backlog() -> None:
    monitor = Monitor(two_sources())
    seen(monitor, batch(40, 10.0, 0, read("left", 30), read("right", 10)))
    both = seen(monitor, batch(40, 12.0, 160, read("left", 30), read("right", 10)))
    assert both.sources == (SourceSnapshot("left", 30, (), 75.0), SourceSnapshot("right", 10, (), 25.0))
    assert (both.arrival_rate, both.backlog) == (100.0, 160)
    idle = seen(monitor, batch(0, 13.0, 200))
    assert idle.sources == (SourceSnapshot("left", 0), SourceSnapshot("right", 0)), "nothing was read, so no shares are known"


def test_each_source_has_its_own_backlog_and_rate_where_they_are_counted() -> None:
    monitor = Monitor(two_sources())
    seen(monitor, replace(batch(40, 10.0, 0, read("left", 30), read("right", 10)), backlogs={"left": 0, "right": 0}))
    now = replace(batch(40, 12.0, 160, read("left", 30), read("right", 10)), backlogs={"left": 150, "right": 10})
    assert seen(monitor, now).sources == (SourceSnapshot("left", 30, (), 90.0, 150), SourceSnapshot("right", 10, (), 10.0, 10))
    away = replace(batch(0, 14.0, None), backlogs={"left": 170, "right": None})
    assert seen(monitor, away).sources == (SourceSnapshot("left", 0, (), 10.0, 170), SourceSnapshot("right", 0))


@pytest.mark.parametrize("backlogs", [{}, {"in": 300}])
def test_records_that_were_shed_arrived_too(backlogs: dict[str, int | None]) -> None:
    """Without them, a source would seem the slower the more is shed, and the limit of the age would grow."""
    monitor = Monitor(one_source())
    shed = TaskReport("in", 0, 800, 400, 0, None, 0.0, 1.0)
    seen(monitor, replace(batch(800, 10.0, 300, shed), backlogs=backlogs))
    (source,) = seen(monitor, replace(batch(800, 12.0, 300, shed), backlogs=backlogs)).sources
    assert (source.rows, source.arrival_rate) == (800, 400.0)


def test_one_report_tells_the_rate_at_which_its_backlog_was_created() -> None:
    """60 wait at 14 s, and the newest that was read was created at 12 s."""
    assert estimated_rate(batch(20, 14.0, 60, created=((10.0, 10.0), (12.0, 10.0)))) == pytest.approx(30.0)
    for unknown in (
        batch(20, 14.0, 60),
        batch(20, 14.0, None, created=((12.0, 1.0),)),
        batch(1, 9.0, 6, created=((9.0, 1.0),)),
    ):
        assert estimated_rate(unknown) is None
