"""``springtide papers edf``: what the set-up comes to by hand, how it measures, and the table of a short made-up trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from springtide.cli.main import cli
from springtide.model.plan import Plan
from springtide.model.rate import Rate
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.papers import edf_setup
from springtide.papers.edf import METRICS, ORDERS, PUBLISHED, QL_1, TABLE, Bench, claim_of, orders
from springtide.papers.edf_setup import PAUSE_S, TICK_S, WAY_MS, Measured, bursts, measured, model
from springtide.papers.rows import BETTER, NOT_REPRODUCED, REPRODUCED

KEYS = ["paper", "experiment", "row", "series", "x", "published", "measured", "unit", "verdict", "note"]


def test_what_is_left_of_the_bound() -> None:
    assert WAY_MS == 20  # 250 - 4·5 - 210
    made = model(Rate((0.0,), (100.0,), 60.0), 0)
    assert [operator.name for operator in made.exits] == ["partialRank"]
    assert [operator.parallelism for operator in made.operators] == [3, 3, 3, 3, 6]
    trips, updates = made.sources
    assert made.visits(trips, 0)["countByWindow"] == 1 and made.visits(trips, 0)["partialRank"] == 0
    assert made.visits(updates, 0) == {**dict.fromkeys(made.visits(updates, 0), 0.0), "updates": 1.0, "partialRank": 1.0}


def test_a_burst_has_as_many_updates_as_there_were_trips() -> None:
    """100 trips/s for an hour and 300 for another: 140 and 420 updates a tick, 2,571 ticks each."""
    rate = Rate((0.0, 3600.0), (100.0, 300.0), 7200.0)
    times = bursts(rate, 0)
    ticks = np.round(times / TICK_S)
    assert np.allclose(times, ticks * TICK_S)
    slow, fast = np.sum(times < 3600), np.sum(times >= 3600)
    assert slow == pytest.approx(360_000, rel=0.04) and fast == pytest.approx(1_080_000, rel=0.04)
    sizes = np.bincount(ticks.astype(int))[1:2571]
    # a gamma variable of deviation 0.6 times 140, and Poisson's own 140: √(84² + 140) = 84.8
    assert sizes.std() == pytest.approx(84.8, rel=0.08)
    assert (bursts(rate, 0) == times).all() and len(bursts(rate, 1)) != len(times)


def intervals(count: int, changes: dict[int, int]) -> tuple[Any, Any]:
    """Intervals of 30 s, and the only operator's degree: 1, and from these intervals on another."""
    degrees = np.ones((count, 1), dtype=np.int64)
    for first, degree in changes.items():
        degrees[first:] = degree
    return 30.0 * np.arange(count), degrees


def test_half_an_hour_and_two_minutes_after_a_change_are_left_out() -> None:
    """70 intervals; 60 are the first half hour. A change at 1,890 s, when interval 63 begins, leaves 60, 61, 62, 67, 68, 69."""
    begins, degrees = intervals(70, {63: 2})
    took = np.full(70, 10_000.0)
    took[[60, 61, 62, 67, 68, 69]] = 100, 200, 300, 240, 250, 260
    found = measured(begins, degrees, took)
    assert (found.mean_ms, found.median_ms) == (225.0, 245.0)  # 1,350/6; 100 200 240 250 260 300
    assert found.p95_ms == pytest.approx(290.0)  # 0.95·5 = 4.75 of the way: 260 + 0.75·40
    assert found.violations_percent == pytest.approx(100 * 2 / 6)  # 260 and 300; 250 is not above R_max
    assert found.replicas == pytest.approx(3 + (3 * 1 + 7 * 2) / 10)
    assert found.downtime_percent == pytest.approx(100 * PAUSE_S / 300)
    assert (found.changes, found.skip_s, found.sampled) == (1, 120.0, 0.6)


def test_a_change_in_the_first_half_hour_counts_for_what_follows_it_only() -> None:
    begins, degrees = intervals(70, {58: 2})  # at 1,740 s: until 1,860 s nothing is measured, so 60 and 61 are not
    took = np.where(np.arange(70) < 62, 9_000.0, 50.0)
    found = measured(begins, degrees, took)
    assert (found.mean_ms, found.changes, found.downtime_percent, found.replicas) == (50.0, 0, 0.0, 5.0)


def test_where_two_minutes_leave_nothing_it_is_less() -> None:
    """A change every 90 s: 120 s and 90 s after it there is nothing, 60 s after it every third interval."""
    begins, degrees = intervals(120, {first: 1 + first // 3 % 2 for first in range(0, 120, 3)})
    took = np.where(np.arange(120) % 3 == 2, 100.0, 5_000.0)
    took[80] = np.nan  # not known: 19 of 59 samples are left
    found = measured(begins, degrees, took)
    assert (found.skip_s, found.mean_ms) == (60.0, 100.0) and found.sampled == pytest.approx(19 / 59)
    note = claim_of(QL_1, "mean", [found]).note
    assert "2 minutes after a change nothing is left: measured from 60 s on, 32 % of the time" in note.replace("32%", "32 %")
    assert "nothing is left" not in claim_of(QL_1, "replicas", [found]).note


def result(**given: float) -> Measured:
    values: dict[str, Any] = {
        "mean_ms": 1.0, "median_ms": 1.0, "p95_ms": 1.0, "replicas": 8.0, "downtime_percent": 0.0, "violations_percent": 0.0,
        "changes": 0, "proposed": 100, "granted": 100, "skip_s": 120.0, "sampled": 1.0, **given,
    }  # fmt: skip
    return Measured(**values)


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [
        ("mean_ms", 380.0, REPRODUCED), ("mean_ms", 379.0, NOT_REPRODUCED), ("mean_ms", 570.0, NOT_REPRODUCED),  # 474.9 ± 95
        ("replicas", 13.1, REPRODUCED), ("replicas", 13.0, NOT_REPRODUCED),  # 13.78 ± 0.75
    ],
)  # fmt: skip
def test_neither_more_nor_less_counts_as_reproduced(metric: str, value: float, verdict: str) -> None:
    assert claim_of(QL_1, metric.removesuffix("_ms"), [result(**{metric: value})]).verdict(value) == verdict


def test_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up results: thresholds and Q-learning violate 10 %, model-based 1 % with fewer replicas, and the bucket grants 4."""

    def made_up(line: Any, rate: Rate, seed: int) -> Measured:
        own = line.policy == "model-based"
        return result(
            violations_percent=1.0 if own else 10.0, replicas=9.0 if own else 12.0, changes=2 if line.bucket else 50,
            proposed=500 if line.bucket else 100, granted=4 if line.bucket else 100,
        )  # fmt: skip

    monkeypatch.setattr("springtide.papers.edf.run", made_up)
    found = {row.row: row for row in orders(Bench(Rate((0.0,), (1.0,), 60.0)))}
    assert found["MB (.4, .4, .2) beats TH 0.3"].measured == 9.0
    assert found["QL (.4, .4, .2), token bucket cuts reconfigurations"].measured == 25.0
    assert found["QL (.4, .4, .2), token bucket: requests granted"].measured == 0.8
    # as many as the other model-based ones: 0 points less is no less than the least
    assert found["MB (.4, .2, .4) violates least"].measured == 0.0
    assert {row.verdict for name, row in found.items() if "downtime" not in name} == {REPRODUCED}
    assert found["QL (.4, .4, .2), token bucket cuts downtime"].verdict == BETTER  # 25 times, published 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """35 minutes: 350 lines of 6 s each."""
    made = tmp_path_factory.mktemp("data")
    (made / "edf_nyc_taxi_per_minute.dat").write_text("\n".join(["120"] * 350))
    return made


@pytest.mark.long
def test_the_table_of_a_short_trace(folder: Path) -> None:
    outcome = CliRunner().invoke(cli, ["papers", "edf", "--data-dir", str(folder), "--json"])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(outcome.stdout)
    shown = [row for row in rows if row["experiment"] == TABLE]
    assert len(shown) == 15 * 6 and len(PUBLISHED) == 15
    assert [row["series"] for row in shown[:6]] == list(METRICS)
    assert {row["experiment"] for row in rows} == {TABLE, ORDERS}
    for row in rows:
        assert list(row)[: len(KEYS)] == KEYS
        assert row["paper"] == "edf"
    # 100 trips/s, 13 % of partialRank in use: no threshold requests more than a single replica of each
    still = [row for row in shown if row["row"] == "TH 0.7"]
    assert {row["series"]: row["measured"] for row in still}["replicas"] == 8.0
    # a burst of 140 updates of 1.3 ms takes each 1.36·0.5·182 = 124 ms, and 20 ms and four times 1.2 ms come to it
    assert {row["series"]: row["measured"] for row in still}["mean"] == pytest.approx(149, rel=0.15)


@pytest.mark.long
def test_the_tables_on_the_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("springtide.papers.edf.run", lambda line, rate, seed: result(mean_ms=363.0))
    outcome = CliRunner().invoke(cli, ["papers", "edf"], env={"SPRINGTIDE_DATA": str(folder), "COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    assert "363 (363)" in outcome.stdout and "363 (325)" in outcome.stdout
    assert "TH 0.4, token bucket" in outcome.stdout and "not reproduced" in outcome.stdout


def test_without_the_trace() -> None:
    outcome = CliRunner().invoke(cli, ["papers", "edf"], env={"SPRINGTIDE_DATA": ""})
    assert outcome.exit_code == 2
    assert "--data-dir" in outcome.output and "SPRINGTIDE_DATA" in outcome.output


def test_the_response_time_is_known_when_all_of_it_is() -> None:
    def seen(*latencies: float | None) -> Snapshot:
        operators = tuple(
            OperatorSnapshot(f"o{i}", 1, 1, 0, 0, 0, 0.0, None, None, 0, latency_ms=latency)
            for i, latency in enumerate(latencies)
        )
        return Snapshot(0.0, 30.0, Plan({}, 1, {}), operators, (), None, 0, None)

    assert edf_setup.response_ms(seen(1.5, 100.0)) == 121.5
    assert edf_setup.response_ms(seen(1.5, None)) is None
    assert edf_setup.response_ms(seen()) is None
