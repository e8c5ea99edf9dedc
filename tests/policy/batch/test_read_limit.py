"""The read limit: bounded whatever comes, and right once it has seen some batches."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.policy.batch import ReadLimit, floor_s

ODD: st.SearchStrategy[Any] = st.sampled_from([0, -1, math.nan, math.inf, -math.inf, 1e-300, 1e300, 10**30])
ROWS = st.integers(1, 10**7) | ODD
SECONDS = st.floats(1e-4, 1e4) | ODD


def sound(rows: float, seconds: float) -> bool:
    return 1 <= rows <= 10**12 and 1e-6 <= seconds <= 1e6


def timed(fixed: float, each: float, *sizes: int) -> list[tuple[int, float]]:
    """Batches of these sizes, without noise."""
    return [(n, fixed + each * n) for n in sizes]


def play(
    rule: ReadLimit, fixed: float, each: Callable[[int], float], batches: int, noise: float, seed: int = 0
) -> list[tuple[int, float, int]]:
    """Work off an endless backlog; the records, seconds and next limit of every batch."""
    rng = np.random.default_rng(seed)
    state, limit = rule.decide(rule.initial(), [])
    played = []
    for number in range(batches):
        assert limit is not None
        rows = limit
        took = (fixed + each(number) * rows) * math.exp(noise * rng.standard_normal())
        state, limit = rule.decide(json.loads(json.dumps(state, allow_nan=False)), [(rows, took)])
        assert limit is not None
        played.append((rows, took, limit))
    return played


@given(
    decisions=st.lists(st.lists(st.tuples(ROWS, SECONDS), max_size=5), max_size=12),
    target=st.floats(1e-3, 1e3),
    rate=st.none() | st.floats(),
)
def test_the_limit_is_bounded_whatever_comes(decisions: list[list[tuple[Any, Any]]], target: float, rate: float | None) -> None:
    rule = ReadLimit(target)
    state, largest = rule.initial(), 0
    for batches in decisions:
        before = json.dumps(state)
        after, limit = rule.decide(state, batches, rate)
        assert json.dumps(state) == before
        assert (after, limit) == rule.decide(json.loads(before), batches, rate)
        state = json.loads(json.dumps(after, allow_nan=False))
        assert state == after
        largest = max([largest, *(int(n) for n, t in batches if sound(n, t))])
        assert isinstance(limit, int)
        assert 1 <= limit <= max(rule.first, 4 * largest)


@given(batches=st.lists(st.tuples(ODD, ODD) | st.tuples(ODD, st.just(1.0)) | st.tuples(st.just(5), ODD)))
def test_absurd_batches_are_not_acted_on(batches: list[tuple[Any, Any]]) -> None:
    rule = ReadLimit(2.0)
    absurd = [(n, t) for n, t in batches if not sound(n, t)]
    assert rule.decide(rule.initial(), absurd) == (rule.initial(), 1_000)
    state, limit = rule.decide(rule.initial(), [(1_000, 0.5)])
    assert rule.decide(state, absurd) == (state, limit)
    assert floor_s(absurd) is None


@settings(max_examples=25)
@given(
    target=st.floats(0.5, 20),
    fixed_share=st.floats(0.01, 0.6),
    rows=st.integers(20, 10**6),
    seed=st.integers(0, 10**6),
)
def test_a_batch_of_a_backlog_takes_the_time_that_the_target_allows(
    target: float, fixed_share: float, rows: int, seed: int
) -> None:
    rule = ReadLimit(target)
    allowed = 0.8 * target / 2
    fixed = fixed_share * allowed
    each = (allowed - fixed) / rows
    played = play(rule, fixed, lambda _: each, 50, 0.05, seed)
    usual = float(np.median([fixed + each * n for n, _, _ in played[-10:]]))
    assert usual == pytest.approx(allowed, rel=0.15)


def test_a_backlog_is_not_swallowed_by_the_first_batch() -> None:
    """A million records wait, each 1 ms: one batch would take 1,000 s."""
    played = play(ReadLimit(2.0), 0.2, lambda _: 0.001, 30, 0.1)
    assert played[0][0] == 1_000
    assert max(took for _, took, _ in played) < 2.0
    assert played[-1][2] == pytest.approx(600, rel=0.15)


def test_one_stalled_batch_changes_little() -> None:
    rule = ReadLimit(2.0)
    state, limit = rule.decide(rule.initial(), timed(0.4, 1e-4, 500, 1_000, 2_000, 3_000, 4_000, 4_000))
    assert limit is not None
    state, stalled = rule.decide(state, [(4_000, 15.0)])
    assert stalled == pytest.approx(limit, rel=0.2)
    _, again = rule.decide(state, [(4_000, 0.8)])
    assert again == pytest.approx(limit, rel=0.2)


@pytest.mark.parametrize("factor", [16.0, 4.0, 0.25, 1 / 16])
def test_it_follows_a_change_of_speed(factor: float) -> None:
    fixed, each = 0.2, 1e-4
    played = play(ReadLimit(2.0), fixed, lambda number: each * (factor if number >= 20 else 1), 45, 0.05)
    usual = float(np.median([fixed + each * factor * n for n, _, _ in played[-8:]]))
    assert usual == pytest.approx(0.8, rel=0.15)
    first_after = fixed + each * factor * played[19][2]
    assert max(took for _, took, _ in played) < max(1.5 * first_after, 2.0)


def test_quiet_times_do_not_unlearn_what_a_record_costs() -> None:
    rule = ReadLimit(2.0)
    rng = np.random.default_rng(3)
    state, _ = rule.decide(rule.initial(), timed(0.4, 1e-4, 1_000, 2_000, 4_000, 3_000, 4_000))
    for _ in range(60):
        rows = int(rng.poisson(10)) + 1
        state, limit = rule.decide(state, [(rows, (0.4 + 1e-4 * rows) * math.exp(0.1 * rng.standard_normal()))])
    assert limit is not None
    assert 0.4 + 1e-4 * limit < 1.2
    assert limit > 1_000


def test_progress_is_made_when_the_target_cannot_be_met() -> None:
    """Every batch takes 1.5 s, 0.8 s are allowed: not one record at a time, but batches of 1.43 · 1.5 s."""
    played = play(ReadLimit(2.0), 1.5, lambda _: 1e-4, 60, 0.02)
    usual = float(np.median([n for n, _, _ in played[-10:]]))
    assert usual == pytest.approx(0.3 / 0.7 * 1.5 / 1e-4, rel=0.35)


def test_a_known_rate_is_kept_up_with() -> None:
    """5,000 records/s at 0.1 ms each need 0.5 of the time; 1.25 times that goes to records."""
    rule = ReadLimit(2.0)
    learned, slow = rule.decide(rule.initial(), timed(0.6, 1e-4, 1_000, 2_000, 4_000, 8_000, 1_900))
    _, fast = rule.decide(learned, [], rate=5_000.0)
    assert slow is not None
    assert fast is not None
    assert fast > slow
    assert fast / (0.6 + 1e-4 * fast) > 5_000
    assert rule.decide(learned, [], rate=math.nan)[1] == slow
    assert rule.decide(learned, [], rate=1.0)[1] == slow


def test_without_a_target_there_is_no_limit() -> None:
    rule = ReadLimit(None)
    state, limit = rule.decide(rule.initial(), [(10, 1.0)])
    assert limit is None
    assert state["recent"] == [[10, 1.0]]


def test_the_least_limit_is_kept() -> None:
    rule = ReadLimit(2.0, minimum=50)
    assert rule.decide(rule.initial(), [(1_000, 900.0)])[1] == 50
    assert ReadLimit(2.0).decide({}, [(1_000, 9_000.0)])[1] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_s": 0.0}, {"target_s": -1.0}, {"target_s": math.nan}, {"target_s": math.inf}, {"share": 0.0},
        {"share": 1.1}, {"efficiency": 1.0}, {"efficiency": math.nan}, {"minimum": 0},
        {"minimum": 10, "first": 5},
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="of a read limit"):
        ReadLimit(**{"target_s": 2.0, **wrong})


@settings(max_examples=25)
@given(
    fixed=st.floats(0.05, 2),
    each=st.floats(1e-6, 1e-3),
    sizes=st.lists(st.integers(10, 3_000), min_size=5, max_size=40),
    seed=st.integers(0, 10**6),
)
def test_the_floor_is_between_nothing_and_the_fastest_batches(fixed: float, each: float, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [(n, (fixed + each * n) * float(rng.uniform(1.0, 1.1))) for n in sizes]
    floor = floor_s(batches)
    assert floor is not None
    assert 0 <= floor <= float(np.quantile([t for _, t in batches], 0.1)) + 1e-9


def test_the_floor_is_what_no_batch_undercuts() -> None:
    sizes = (100, 4_000, 1_000, 2_000, 500, 3_000, 1_500)
    assert floor_s(timed(0.4, 1e-4, *sizes)) == pytest.approx(0.4, rel=0.05)
    assert floor_s([(10, 0.4)] * 5) == pytest.approx(0.4)
    assert floor_s([*timed(0.4, 0.0001, *sizes), (1000, 15.0)]) == pytest.approx(0.4, rel=0.1)
    assert floor_s([(10, 0.4)] * 4) is None
    assert floor_s([]) is None


def test_three_times_the_tasks_read_three_times_as_much_at_once() -> None:
    """0.2 s + 20 ms a record, 5 s: 2·(0.2 + 0.02·n) ≤ 0.8·5 allows 90 records; with a third of the 20 ms, 270."""
    rule = ReadLimit(target_s=5.0)
    state, limit = rule.decide(rule.initial(), [(n, 0.2 + 0.02 * n) for n in (40, 60, 80, 90, 70, 50, 90)])
    assert limit is not None and 80 <= limit <= 100
    wider, limit = rule.decide(state, (), wider=3.0)
    assert limit is not None and 240 <= limit <= 300
    assert rule.decide(state, ())[0] is state
    assert rule.decide(rule.initial(), (), wider=3.0)[0] == rule.initial()
    state, limit = rule.decide(wider, [(n, 0.2 + 0.02 / 3 * n) for n in (200, 250)])
    assert limit is not None and 240 <= limit <= 300
    back = rule.decide(state, (), wider=1 / 3)[1]
    assert back is not None and 80 <= back <= 110
