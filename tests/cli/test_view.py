"""What a person sees while a run goes on, and at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from springtide.cli.tables import summary_table
from springtide.cli.view import HISTORY, LiveView, bars
from springtide.model.plan import Plan
from springtide.model.report import Latency
from springtide.model.snapshot import OperatorSnapshot, Snapshot

LATENCY = Latency(mean=812.3, p50=700.0, p95=1500.0, p99=2000.0)


def snapshot(at: float, degree: int = 2, latency: Latency | None = LATENCY, reason: str = "") -> Snapshot:
    """Two operators, of which nothing but the counts is known of the second, and two batches."""
    operators = (
        OperatorSnapshot("score[0]", degree, 4, 500, 500, 0, 1.2, 1234.4, 0.73, 12345, 85.2),
        OperatorSnapshot("out", 1, 1, 500, 500, 0, 0.0, None, None, None, None),
    )
    plan = Plan({"score[0]": degree, "out": 1}, degree + 1, {"score[0]": 4, "out": 1}, reason=reason)
    known = latency is not None
    batches = ((300, 0.5), (200, 0.4))
    return Snapshot(at, 5.0, plan, operators, batches, 1234.4 if known else None, 99 if known else None, latency)


def text_of(renderable: RenderableType, width: int = 100) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


def pipe() -> Console:
    return Console(file=io.StringIO(), width=100)


def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, force_interactive=True, _environ={})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_shows_what_was_measured() -> None:
    view = LiveView("taxi", "tide", pipe())
    view.update(snapshot(5.0, degree=1), 5.0)
    view.update(snapshot(10.0, degree=3, reason="score[0] needs 2.6 replicas"), 83.0)
    header, headings, score, out, reason = text_of(view.render())
    assert header == ("taxi  tide  01:23  batches 4  rate 1,234/s  backlog 99  latency 812ms  p95 1,500ms  slots 4")
    assert headings.split() == [
        "operator", "degree", "width", "records/s", "backlog", "latency", "busy", "history",
    ]  # fmt: skip
    assert score.split() == ["score[0]", "3", "4", "1,234", "12,345", "85.2ms", "73%", "▁▃"]
    assert out.split() == ["out", "1", "1", "-", "-", "-", "-", "▁▁"]
    assert reason == "plan: score[0] needs 2.6 replicas"


def test_a_missing_latency_is_no_zero() -> None:
    view = LiveView("taxi", "tide", pipe())
    view.update(snapshot(5.0, latency=None), 5.0)
    assert "rate -  backlog -  latency -  p95 -  slots 3" in text_of(view.render())[0]


def test_before_the_first_batch() -> None:
    assert text_of(LiveView("taxi", "tide", pipe()).render()) == ["taxi  tide  waiting for the first batch"]


def test_showing_a_snapshot_again_counts_its_batches_once() -> None:
    view = LiveView("taxi", "tide", pipe())
    for elapsed in (5.0, 6.0, 7.0):
        view.update(snapshot(5.0), elapsed)
    assert "00:07  batches 2 " in text_of(view.render())[0]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_history_keeps_the_latest_and_fits(width: int) -> None:
    view = LiveView("taxi", "tide", Console(file=io.StringIO(), width=width))
    for i in range(50):
        view.update(snapshot(5.0 * i, degree=8 if i == 49 else 1), 5.0 * i)
    lines = text_of(view.render(), width)
    history = next(line for line in lines if line.startswith("score")).split()[-1]
    assert history.endswith("▁█")
    assert len(history) == {80: 8, 100: 28, 200: HISTORY}[width]
    assert not any("…" in line for line in lines)


def test_bars_scale_with_the_greatest() -> None:
    assert bars([1, 8], top=8) == "▁█"
    assert bars([1, 20, 40], top=40) == "▁▄█"
    assert bars([], top=0) == ""


def test_a_pipe_gets_a_plain_line_every_five_seconds() -> None:
    console = pipe()
    with LiveView("taxi", "tide", console) as view:
        for second in range(12):
            view.update(snapshot(float(second)), float(second))
    lines = written(console).splitlines()
    assert [line.split()[1] for line in lines] == ["00:00", "00:05", "00:10"]
    assert lines[1] == (
        "taxi 00:05 batches=12 rate=1,234/s backlog=99 latency=812ms p95=1,500ms slots=3 degrees=score[0]:2,out:1"
    )


def test_a_terminal_gets_a_table_that_stays_at_the_end() -> None:
    console = screen()
    with LiveView("taxi", "tide", console) as view:
        assert "waiting for the first batch" in written(console)
        view.update(snapshot(5.0), 5.0)
    shown = written(console)
    assert "\x1b[?25l" in shown  # the cursor hides
    assert "\x1b[?25h" in shown  # and comes back
    assert "batches=" not in shown
    assert "12,345" in shown


def test_only_standard_error_is_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in CI: no terminal all the same
    with LiveView("taxi", "tide") as view:
        view.update(snapshot(5.0), 5.0)
        print("a result")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert captured.err.startswith("taxi 00:05 batches=2 ")


def test_what_a_program_prints_is_not_caught(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView("taxi", "tide", screen()):
        print("a result")
    assert capsys.readouterr().out == "a result\n"


NOTHING = {"mean": None, "max": None}
SUMMARY = {
    "topology": "taxi",
    "policy": "tide",
    "grouping": "posg",
    "batches": 12,
    "rows_in": 34567,
    "rows_out": 34560,
    "rows_failed": 7,
    "latency_ms": {"mean": 812.3, "p50": 700.0, "p95": 1500.0, "p99": 12345.0},
    "throughput_rows_s": 576.1,
    "replicas": {"mean": 5.778, "max": 8},
    "slot_seconds": 346.7,
    "reconfigurations": 3,
    "sinks": {"files[x]": 34560},
    "operators": [
        {
            "name": "score",
            "grouping": "posg",
            "degree": {"mean": 2.778, "max": 4},
            "width": {"mean": 5.0, "max": 8},
            "rows_in": 34567,
            "rows_out": None,
        },
    ],
    "run_dir": "runs/taxi-1",
    "duration_s": 60.0,
    "backlog_end": None,
}


def test_the_summary_shows_totals_operators_and_sinks() -> None:
    lines = [" ".join(line.split()) for line in text_of(summary_table(SUMMARY))]
    assert lines[0] == "taxi · tide · posg"
    assert "batches 12 latency, mean 812ms" in lines
    assert "duration 60s latency, 95th percentile 1,500ms" in lines
    assert "records in 34,567 latency, 99th percentile 12.3s" in lines
    assert "records out 34,560 replicas, mean (max) 5.78 (8)" in lines
    assert "records failed 7 slot seconds 347" in lines
    assert "throughput 576 records/s reconfigurations 3" in lines
    assert "score posg 2.78 (4) 5 (8) 34,567 -" in lines
    assert "files[x] 34,560" in lines
    assert lines[-1] == "Run folder: runs/taxi-1"


def test_the_summary_of_a_run_without_batches() -> None:
    operator = {"name": "score", "grouping": "hash", "degree": NOTHING, "width": NOTHING}
    empty = {**SUMMARY, "batches": 0, "latency_ms": None, "throughput_rows_s": None, "duration_s": None}
    empty |= {"replicas": NOTHING, "operators": [{**operator, "rows_in": 0, "rows_out": 0}]}
    lines = [" ".join(line.split()) for line in text_of(summary_table(empty))]
    assert "batches 0 latency, mean -" in lines
    assert "score hash - - 0 0" in lines
