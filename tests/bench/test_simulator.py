"""The simulator's benchmark: both sides simulate the same model, and say so."""

from __future__ import annotations

import io

import pytest

from springtide.bench import simulator


@pytest.mark.long
def test_both_sides_agree_with_the_closed_form() -> None:
    document = simulator.measure(rounds=1, records=50_000, progress=io.StringIO())
    assert document["model"] == {"k": 8, "rho": 0.9}
    assert document["events_per_s"] > document["simpy_events_per_s"] > 0
    closed = document["mean_sojourn"]["closed_form"]
    assert closed == pytest.approx(1.8769, abs=1e-4)
    for side in ("springtide", "simpy"):
        assert document["mean_sojourn"][side] == pytest.approx(closed, rel=0.1)
    assert document["ratio_iqr"][0] <= document["ratio"] <= document["ratio_iqr"][1]


def test_the_closed_form_at_its_ends() -> None:
    assert simulator.mean_sojourn(1, 0.7) == pytest.approx(1 / 0.3)
    assert simulator.mean_sojourn(100, 0.1) == pytest.approx(1.0)
