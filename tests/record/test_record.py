"""The run's record: what is written is read again, and the totals are those worked out by hand."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from springtide.connectors.generate import GenerateSource
from springtide.control.ports import Journal
from springtide.errors import OptionError
from springtide.model.endpoints import DiscardSink
from springtide.model.plan import Plan
from springtide.model.rate import constant
from springtide.model.report import BatchReport, TaskReport, mean_max, over_time, violation_ratio
from springtide.model.topology import AUTO, DEAD_LETTERS, Kind, Operator, Topology
from springtide.record.folder import RunFolder
from springtide.record.plots import degree_lines, draw, rates
from springtide.record.summary import Totals, summarise
from springtide.record.trace import Trace, TracePoint
from springtide.sim.batched import metrics

ROW = pa.schema({"x": pa.int64()})
TOPOLOGY = Topology(
    "demo",
    (
        Operator("in", Kind.SOURCE, schema=ROW, source=GenerateSource(int, constant(1))),
        Operator("parse", Kind.MAP, ("in",), schema=ROW),
        Operator("score", Kind.MAP, ("parse",), schema=ROW, grouping=AUTO),
        Operator("rank", Kind.MAP, ("score",), schema=ROW, grouping="hash", key=("x",)),
        Operator("out", Kind.SINK, ("rank",), sink=DiscardSink()),
    ),
)


def report(batch: int, started: float, committed: float, rows: int, score: int = 1, **more: Any) -> BatchReport:
    """A batch whose operators have degree 1, except ``score``; one of its records fails in ``score``."""
    degrees = {"parse": 1, "score": score, "rank": 1, "out": 1}
    tasks = [TaskReport("parse", 0, rows, rows, 0, 0.1, started, committed)]
    tasks += [TaskReport("score", 0, rows - 1, rows - 2, 1, 0.1, started, committed)]
    tasks += [TaskReport("score", 1, 1, 1, 0, 0.1, started, committed)]
    plan = Plan(degrees, sum(degrees.values()), {"parse": 2, "score": 2 * score, "rank": 2, "out": 2})
    sinks = {"out": rows - 1, DEAD_LETTERS: 1}
    return BatchReport(batch, 1, plan, started, committed, rows, rows - 1, 1, tuple(tasks), sinks, **more)


# Slots 4, 6, 6. Three batches from 100 to 110, with waits of 0.5 s before the second and the third.
RUN = [
    report(0, 100.0, 101.0, 100, created=((100.0, 50), (100.5, 50)), backlog=30),
    report(1, 101.5, 104.5, 300, score=3, created=((100.5, 300),), backlog=0),
    report(2, 105.0, 110.0, 600, score=3, backlog=20),
]


def points(reports: list[BatchReport]) -> list[TracePoint]:
    trace = Trace()
    for each in reports:
        trace.add(each)
    return trace.points()


def test_summary_by_hand() -> None:
    summary = summarise(TOPOLOGY, "tide", "posg", RUN, "runs/demo")
    assert summary["batches"] == 3
    assert summary["rows_in"] == 1000
    assert summary["rows_failed"] == 3
    assert summary["sinks"] == {"out": 997}
    assert summary["rows_out"] == 997
    assert summary["duration_s"] == 10.0
    assert summary["throughput_rows_s"] == 100.0
    assert summary["slot_seconds"] == 4 * 1.5 + 6 * 3.5 + 6 * 5.0
    assert summary["reconfigurations"] == 1
    assert summary["backlog_end"] == 20
    # 4 replicas for 1.5 s, 6 for 3.5 s and for 5 s, waits among them: (6 + 21 + 30) / 10
    assert summary["replicas"] == {"mean": 5.7, "max": 6}
    assert (summary["topology"], summary["policy"], summary["grouping"]) == ("demo", "tide", "posg")
    assert summary["run_dir"] == "runs/demo"


def test_replicas_and_slots_are_the_same_numbers_in_the_simulator() -> None:
    found = metrics(RUN, 100.0, None)
    assert found["replicas"] == {"mean": pytest.approx(5.7), "max": 6}
    assert found["replica_seconds"] == found["slot_seconds"] == 57.0
    assert metrics([], 0.0, None)["replicas"] == {"mean": None, "max": None}


def test_a_mean_is_over_the_batches_that_have_a_number() -> None:
    """The first batch, of 1.5 s, has no value; 2 is in force for 3.5 s, and 3 for 5 s: 22 / 8.5."""
    known = {1: 2, 2: 3}
    assert over_time(RUN, lambda report: known.get(report.batch)) == [(2, 3.5), (3, 5.0)]
    assert mean_max([(2, 3.5), (3, 5.0)]) == {"mean": pytest.approx(22 / 8.5), "max": 3}


def test_latency_merges_the_records_of_all_batches() -> None:
    """50 records waited 1 s, 50 waited 0.5 s, 300 waited 4 s; those of the third batch are not known."""
    latency = summarise(TOPOLOGY, "tide", "posg", RUN, "")["latency_ms"]
    assert latency == {"mean": 3187.5, "p50": 4000.0, "p95": 4000.0, "p99": 4000.0}


def test_operators_by_hand() -> None:
    parse, score, rank, out = summarise(TOPOLOGY, "tide", "posg", RUN, "")["operators"]
    assert [o["grouping"] for o in (parse, score, rank, out)] == ["forward", "posg", "hash", "forward"]
    assert parse == {
        "name": "parse", "grouping": "forward", "degree": {"mean": 1.0, "max": 1},
        "width": {"mean": 2.0, "max": 2}, "rows_in": 1000, "rows_out": 1000,
    }  # fmt: skip
    assert score["degree"] == {"mean": 2.7, "max": 3}  # (1.5 + 10.5 + 15) / 10
    assert score["width"] == {"mean": 5.4, "max": 6}  # (3 + 21 + 30) / 10
    assert (score["rows_in"], score["rows_out"]) == (1000, 997)
    assert (rank["rows_in"], rank["rows_out"]) == (None, None)  # no task reported: unknown, not zero
    assert (out["rows_in"], out["rows_out"]) == (997, 997)  # by its receipts


def test_order_of_reports_does_not_matter() -> None:
    assert summarise(TOPOLOGY, "p", "g", RUN[::-1], "") == summarise(TOPOLOGY, "p", "g", RUN, "")


def test_zero_batches() -> None:
    summary = summarise(TOPOLOGY, "static", "hash", [], "d")
    assert summary["batches"] == summary["rows_in"] == summary["rows_out"] == summary["rows_failed"] == 0
    assert summary["latency_ms"] is None
    assert summary["throughput_rows_s"] is None
    assert summary["slot_seconds"] == 0
    assert summary["replicas"] == {"mean": None, "max": None}
    assert summary["sinks"] == {"out": 0}
    assert [o["name"] for o in summary["operators"]] == ["parse", "score", "rank", "out"]
    assert summary["operators"][0]["degree"] == {"mean": None, "max": None}
    assert summary["operators"][0]["rows_in"] == 0
    json.dumps(summary, allow_nan=False)


def test_a_run_without_any_duration_has_a_mean_but_no_throughput() -> None:
    summary = summarise(TOPOLOGY, "p", "g", [report(0, 5.0, 5.0, 10), report(1, 5.0, 5.0, 10, score=3)], "")
    assert summary["throughput_rows_s"] is None
    assert summary["latency_ms"] is None
    assert summary["replicas"] == {"mean": 5.0, "max": 6}


def test_folders_of_the_same_second_are_told_apart(tmp_path: Path) -> None:
    now = time.mktime((2024, 5, 6, 7, 8, 9, 0, 0, -1))
    folders = [RunFolder.create(tmp_path / "runs", "demo", now + 0.1 * i) for i in range(3)]
    names = ["demo-20240506-070809", "demo-20240506-070809-2", "demo-20240506-070809-3"]
    assert [folder.path.name for folder in folders] == names


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", 0.0)
    journal: Journal = folder
    for each in RUN:
        journal.batch(each)
    journal.decision({"at": 1.0, "reason": "a rate of 10/s – fine", "nothing": math.nan})
    folder.write_run({"topology": "demo", "root": tmp_path, "limit": math.inf, "seed": np.int64(3)})
    again = RunFolder.open(folder.path)
    assert again.batches() == RUN
    assert again.decisions() == [{"at": 1.0, "reason": "a rate of 10/s – fine", "nothing": None}]
    assert again.run() == {"topology": "demo", "root": str(tmp_path), "limit": None, "seed": 3}
    assert again.summary() is None
    folder.write_summary(summarise(TOPOLOGY, "p", "g", again.batches(), str(folder.path)))
    written = again.summary()
    assert written is not None
    assert written["rows_in"] == 1000
    assert sorted(p.name for p in folder.path.iterdir()) == [
        "batches.jsonl", "decisions.jsonl", "run.json", "summary.json",
    ]  # fmt: skip


def test_a_torn_last_line_is_passed_over_and_then_cut_off(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", 0.0)
    folder.batch(RUN[0])
    file = folder.path / "batches.jsonl"
    whole = file.read_bytes()
    torn = whole + whole[: len(whole) // 2]
    file.write_bytes(torn)
    again = RunFolder.open(folder.path)
    assert again.batches() == RUN[:1]
    assert file.read_bytes() == torn  # reading changes nothing
    again.batch(RUN[1])
    assert again.batches() == RUN[:2]


def test_a_first_line_that_is_torn(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "decisions.jsonl").write_bytes("{'reason': 'ü".encode()[:-1])
    assert folder.decisions() == []
    folder.decision({"reason": "b"})
    assert folder.decisions() == [{"reason": "b"}]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(OptionError, match=r"decisions\.jsonl, line 2 is not JSON"):
        RunFolder.open(tmp_path).decisions()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not a run's folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(OptionError, match="not a run's folder"):
        RunFolder.open(tmp_path / "missing")


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", 0.0)

    def write(thread: int) -> None:
        for i in range(50):
            folder.decision({"thread": thread, "i": i, "reason": "x" * 5000})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = folder.decisions()
    assert len(entries) == 200
    assert [e["i"] for e in entries if e["thread"] == 2] == list(range(50))


def test_rates_count_what_was_done_and_what_came() -> None:
    """Two batches of 1 s and 100 records. After the first 50 wait, after the second 80: so 130 came."""
    grid, arriving, done = rates(points([report(0, 10.0, 11.0, 100, backlog=50), report(1, 11.0, 12.0, 100, backlog=80)]))
    assert grid.tolist() == [0.0, 1.0, 2.0]
    assert done.tolist() == [100.0, 100.0]
    assert arriving is not None
    assert math.isnan(arriving[0])  # what waited before the run is not known
    assert arriving[1] == 130.0


def test_rates_without_a_backlog_have_no_input_rate() -> None:
    assert rates(points([report(0, 10.0, 11.0, 100), report(1, 11.0, 12.0, 100)]))[1] is None


def test_operators_of_equal_degrees_share_a_line() -> None:
    assert degree_lines(points(RUN)) == {"parse, rank, out": (1.0, 1.0, 1.0), "score": (1.0, 3.0, 3.0)}


@pytest.mark.parametrize("batches", [RUN, RUN[:1], [replace(RUN[0], backlog=None, created=())]])
def test_a_run_is_drawn(tmp_path: Path, batches: list[BatchReport]) -> None:
    pytest.importorskip("matplotlib")
    (path,) = draw(points(batches), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_many_batches_are_drawn_as_few_points_that_keep_rows_and_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 batches of a second, of which a single batch and its records take longer."""
    monkeypatch.setattr("springtide.record.trace.POINTS", 64)
    quick = [report(n, float(n), n + 0.5, 10, created=((n - 0.5, 10),), backlog=n) for n in range(1_000)]
    slow = replace(quick[701], committed=quick[701].committed + 7)
    found = points([*quick[:701], slow, *quick[702:]])
    assert 32 <= len(found) <= 64
    assert sum(point.rows_in for point in found) == 10_000
    assert (found[0].started, found[-1].committed, found[-1].backlog) == (0.0, 999.5, 999)
    assert [point.duration_s for point in found if point.duration_s > 1] == [7.5]
    assert [point.p95_s for point in found if point.duration_s > 1] == [8.0]
    stands_for = 16  # 64 points were joined four times: after 64, 128, 256 and 512 batches
    assert [point.mean_s for point in found if point.duration_s > 1] == [pytest.approx(1 + 7 / stands_for)]
    assert {point.rows_in for point in found[:-1]} == {10 * stands_for}


@pytest.mark.long
def test_a_thousand_batches_and_ten_thousand_take_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("springtide.record.trace.POINTS", 64)
    retained = []
    for batches in (1_000, 10_000):
        tracemalloc.start()
        totals, trace = Totals(TOPOLOGY, "posg", target_s=1.0), Trace()
        for n in range(batches):
            each = report(n, float(n), n + 0.9, 100, score=1 + n % 3, created=((n - n % 7, 60.0), (n - 0.2, 40.0)), backlog=n)
            totals.add(each)
            trace.add(each)
        assert totals.document("tide", "")["rows_in"] == 100 * batches
        retained.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert retained[1] < retained[0] + 20_000  # ten thousand reports take 20 MB


def test_totals_can_be_asked_for_at_any_time() -> None:
    totals = Totals(TOPOLOGY, "posg", target_s=2.0)
    assert totals.violation_ratio is None
    for number, each in enumerate(RUN, start=1):
        totals.add(each)
        assert totals.document("tide", "d") == totals.document("tide", "d")
        assert totals.document("tide", "d") == summarise(TOPOLOGY, "tide", "posg", RUN[:number], "d")
    assert totals.violation_ratio == violation_ratio(RUN, 2.0) == 3 / 9  # the second of 1 s, 3 s and 5 s


def test_batches_are_read_one_at_a_time(tmp_path: Path) -> None:
    """The file has 8 MB, and each of its lines 27 kB."""
    folder = RunFolder.create(tmp_path, "demo", 0.0)
    line = json.dumps(replace(RUN[0], tasks=RUN[0].tasks * 60).to_json()) + "\n"
    (folder.path / "batches.jsonl").write_text(line * 300)
    assert len(line) > 20_000
    tracemalloc.start()
    assert sum(batch.rows_in for batch in folder.each_batch()) == 30_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_last_batches_are_read_without_parsing_the_others(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", 0.0)
    (folder.path / "batches.jsonl").write_text("no JSON\n")
    for each in RUN:
        folder.batch(each)
    assert folder.batches(last=2) == RUN[1:]


def test_a_torn_line_is_found_from_the_end_of_a_large_file(tmp_path: Path) -> None:
    """64 MB without a newline before the torn line; the search reads its end alone."""
    folder, file = RunFolder(tmp_path), tmp_path / "decisions.jsonl"
    with file.open("wb") as hole:
        hole.truncate(64 * 2**20)
        hole.seek(0, 2)
        hole.write(b"\n" + b'{"torn": "' + b"x" * 200_000)
    tracemalloc.start()
    folder.decision({"reason": "b"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert file.stat().st_size == 64 * 2**20 + 1 + len('{"reason": "b"}\n')


def test_nobody_else_can_read_a_run(tmp_path: Path) -> None:
    """The file modes, whatever the umask: reasons and logs may have pieces of records."""
    before = os.umask(0o000)
    try:
        folder = RunFolder.create(tmp_path / "runs", "demo", 0.0)
        folder.write_run({"topology": "demo"})
        folder.batch(RUN[0])
        folder.decision({"reason": "a"})
        folder.write_summary({"batches": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert modes == dict.fromkeys(("run.json", "batches.jsonl", "decisions.jsonl", "summary.json"), 0o600)


def test_nothing_is_drawn_without_batches_or_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw([], tmp_path) == []
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(points(RUN), tmp_path) == []
