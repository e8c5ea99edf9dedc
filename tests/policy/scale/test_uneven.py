"""How much of M/M/k's wait is planned for, by what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from springtide.model.plan import Plan
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.scale.tide import uneven


def seen(wait_ms: float | None, rate: float = 50.0, backlog: int = 0, batches: tuple[tuple[int, float], ...] = ()) -> Snapshot:
    """One replica, 10 ms a record. At 50/s it is half busy, and by M/M/1 a record waits 10 ms · 0.5/0.5 = 10 ms."""
    rows = round(10 * rate)
    operator = OperatorSnapshot(
        "a", 1, 1, rows, rows, 0, rows * 0.01, rate, rate * 0.01, backlog, None if wait_ms is None else 10 + wait_ms,
        served=rows, inputs=(("source", rows),), limit=40,
    )  # fmt: skip
    return Snapshot(10.0, 10.0, Plan({"a": 1}, 1, {"a": 1}), (operator,), batches, rate, backlog, None)


def after(*snapshots: Snapshot) -> float:
    sums: Any = {}
    for snapshot in snapshots:
        sums = json.loads(json.dumps(uneven.followed(sums, snapshot, 0.25)))
    return uneven.part(sums.get("a"))


def test_before_anything_is_measured_chance_rules() -> None:
    assert uneven.part(None) == 1.0
    assert after() == 1.0


def test_one_interval_counts_by_the_wait_that_was_expected() -> None:
    """It begins with a quarter of a record's cost, 2.5 ms, of 2.5 ms. Then 6 of 10 ms: (0.95·2.5 + 6)/(0.95·2.5 + 10)."""
    assert after(seen(6.0)) == pytest.approx(8.375 / 12.375, rel=1e-6)


def test_even_records_need_less_but_no_less_than_0_6() -> None:
    assert after(*[seen(7.0)] * 60) == pytest.approx(0.7, abs=0.01)
    assert after(*[seen(0.0)] * 60) == 0.6


def test_what_waits_longer_than_by_chance_changes_nothing() -> None:
    assert after(*[seen(30.0)] * 10) == 1.0


def test_records_that_come_by_chance_again_are_noticed() -> None:
    assert after(*[seen(0.0)] * 10, *[seen(10.0)] * 40) > 0.9


@pytest.mark.parametrize(
    "odd",
    [
        seen(None),  # not measured
        seen(3_000.0, backlog=100),  # 100 wait, which is a second of work
        seen(3_000.0, rate=96.0),  # nearly full
        seen(3_000.0, batches=((500, 1.0),)),  # in batches
    ],
)
def test_what_tells_nothing_of_chance_is_left_out(odd: Snapshot) -> None:
    assert after(*[seen(7.0)] * 10, odd) == after(*[seen(7.0)] * 10)


def test_an_interval_that_began_with_a_queue_is_left_out_too() -> None:
    left = seen(3_000.0, backlog=100)
    assert after(*[seen(7.0)] * 10, left, seen(900.0)) == after(*[seen(7.0)] * 10)
    assert after(*[seen(7.0)] * 10, left, seen(900.0), seen(0.0)) < after(*[seen(7.0)] * 10)


def test_a_latency_below_the_cost_is_no_wait() -> None:
    odd = replace(seen(0.0), operators=(replace(seen(0.0).operators[0], latency_ms=1.0),))
    assert after(odd) == after(seen(0.0))
