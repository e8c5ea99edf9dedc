"""``springtide papers posg``: a small run of it, the streams that it draws, and how it judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from springtide.cli.main import cli
from springtide.papers.posg_setup import SERIES, SHIFTED, TWEETS, StreamSetup, scaled
from springtide.papers.rows import BETTER, NOT_REPRODUCED, REPRODUCED, Claim, row

KEYS = ["paper", "experiment", "row", "series", "x", "published", "measured", "unit", "verdict", "note"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("plots")
    command = ["papers", "posg", "--seeds", "3", "--figure", "5", "--figure", "10", "--json", "--plots", str(folder)]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), folder


@pytest.mark.long
def test_rows_are_as_agreed(small: tuple[list[dict[str, Any]], Path]) -> None:
    rows, _ = small
    assert {row["experiment"] for row in rows} == {"figure 5", "figure 10"}
    for line in rows:
        assert list(line)[: len(KEYS)] == KEYS
        assert line["paper"] == "posg"
        assert line["series"] in SERIES
        assert line["verdict"] in (REPRODUCED, BETTER, NOT_REPRODUCED)
        assert line["min"] <= line["measured"] * 1.00001 and line["measured"] <= line["max"] * 1.00001
        assert line["seeds"] == 3


@pytest.mark.long
def test_the_groupings_are_in_the_expected_order(small: tuple[list[dict[str, Any]], Path]) -> None:
    """Three streams are few: limits on means are looser here than with a hundred, limits on each stream are not."""
    rows, _ = small
    at = {(row["series"], row["x"]): row for row in rows if row["experiment"] == "figure 5"}
    for percent in (95, 98, 100, 102, 105, 107, 109, 115):
        assert at["round-robin", percent]["measured"] == 1.0
        assert at["full-knowledge", percent]["measured"] >= at["posg", percent]["measured"]
        assert at["posg", percent]["measured"] >= 0.98
        assert at["tide", percent]["min"] >= 0.99
    assert 1.0 < at["posg", 105]["measured"] < 1.4
    assert at["tide", 100]["measured"] >= 1.6


@pytest.mark.long
def test_posg_recovers_from_the_change(small: tuple[list[dict[str, Any]], Path]) -> None:
    rows, _ = small
    found = {row["row"]: row["measured"] for row in rows if row["experiment"] == "figure 10" and row["series"] == "posg"}
    assert 10_240 <= found["RUN begins"] <= 12_000
    assert 80_000 <= found["new matrices of all instances"] <= 92_000
    assert found["recovered"] > 2


@pytest.mark.long
def test_figures_are_drawn(small: tuple[list[dict[str, Any]], Path]) -> None:
    _, folder = small
    assert sorted(path.name for path in folder.iterdir()) == ["posg-figure-05.png", "posg-figure-10.png"]
    assert all(path.stat().st_size > 10_000 for path in folder.iterdir())


def test_a_figure_that_is_not_measured() -> None:
    result = CliRunner().invoke(cli, ["papers", "posg", "--figure", "3"])
    assert result.exit_code == 2
    assert "4, 5, 6" in result.output


def test_a_stream_has_as_many_items_of_each_cost() -> None:
    """Section V-A: w_n values at constant distance, n/w_n items of each, another draw for every seed."""
    items, seconds = StreamSetup().stream(0)
    assert len(items) == 32_768 and items.max() < 4_096
    assert np.unique(seconds.round(6)).tolist() == pytest.approx([w / 1000 for w in range(1, 65)])
    assert set(np.unique(seconds, return_counts=True)[1]) == {64}
    again, other = StreamSetup().stream(0), StreamSetup().stream(1)
    assert (items == again[0]).all() and (seconds == again[1]).all()
    assert (seconds != other[1]).any()
    chances = 1 / np.arange(1, 4_097)
    assert (items == 0).mean() == pytest.approx(chances[0] / chances.sum(), rel=0.1)
    two = StreamSetup(w_n=2).stream(0)[1]
    assert sorted(set(two)) == [0.001, 0.064]


def test_tweets_and_the_change() -> None:
    items, seconds = TWEETS.stream(0)
    assert len(items) == 500_000 and len(seconds) == 35_000
    assert (items == 0).mean() == pytest.approx(0.065, abs=0.002)
    assert sorted(set(seconds)) == [0.001, 0.005, 0.025]
    assert [np.mean(speeds.factors) for speeds in SHIFTED.speeds] == pytest.approx([1.0, 1.0])
    assert scaled(StreamSetup(), 10).m == 65_536


def test_verdicts() -> None:
    slow = Claim(100, 90, 110, "within 10", "too late", more_is_better=False)
    assert [slow.verdict(value) for value in (80, 100, 120)] == [BETTER, REPRODUCED, NOT_REPRODUCED]
    assert slow.remark(120) == "within 10; too late" and slow.remark(100) == "within 10"
    made = row("p", "e", "r", "s", 1, [90.0, 130.0], "tuples", slow, [0.5, 1.5]).as_json()
    assert (made["measured"], made["min"], made["max"], made["verdict"]) == (110.0, 90.0, 130.0, REPRODUCED)
    assert made["completion_ms"] == {"min": 500.0, "mean": 1000.0, "max": 1500.0}
