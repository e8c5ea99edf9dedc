"""A forecast by what came after times like this one, and how it is weighed against another."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from springtide.policy.scale import alike

DAY = [0.0, 1.0, 2.0, 1.0]


def test_a_day_is_found_without_being_looked_for() -> None:
    """…, 0, 1: 2 comes next, then 1, then 0."""
    series = DAY * 12 + [0.0, 1.0]
    assert [alike.alike(series, series, ahead) for ahead in (1, 2, 3)] == pytest.approx([2.0, 1.0, 0.0], abs=1e-6)


def test_only_the_shape_counts_and_the_level_is_now() -> None:
    """The same days three higher, as logarithms: twenty times as much."""
    series = DAY * 12 + [3.0 + value for value in DAY * 3] + [3.0, 4.0]
    assert alike.alike(series, series) == pytest.approx(5.0, abs=0.01)


def test_the_peak_of_an_interval_may_be_above_its_end() -> None:
    """Each interval ends where it began, and rises by 0.5 in between."""
    assert alike.alike([1.0] * 40, [1.5] * 40) == pytest.approx(1.5)


def test_a_day_in_a_week_is_told_apart() -> None:
    """Five days of 24 intervals and two without a rise: on the evening before one of those, none comes next morning."""
    work = [math.sin(2 * math.pi * hour / 24) for hour in range(24)]
    rest = [0.3 * value for value in work]
    weeks = (work * 5 + rest * 2) * 5
    monday, saturday = weeks + work[:12], weeks + (work * 5) + rest[:12]
    assert alike.alike(monday, monday) == pytest.approx(work[12], abs=0.02)
    assert alike.alike(saturday, saturday) == pytest.approx(rest[12], abs=0.02)


def test_nothing_is_said_before_there_is_something_to_compare() -> None:
    """Twelve intervals to compare, with twelve times before, and what came after the last of them."""
    assert alike.alike([0.0] * 23, [0.0] * 23) is None
    assert alike.alike([0.0] * 24, [0.0] * 24) == 0.0
    assert alike.alike([0.0] * 24, [0.0] * 24, 2) is None


def test_after_a_silence_at_most_ten_times_as_much_is_said() -> None:
    silence_and_noise = ([math.log(1e-8)] * 12 + [8.0]) * 4 + [math.log(1e-8)] * 12
    said = alike.alike(silence_and_noise, silence_and_noise)
    assert said is not None
    assert said <= math.log(1e-8) + math.log(10) + 1e-9


def followed(ends: list[float], other: float) -> dict[str, object]:
    state: dict[str, object] = {}
    for end in ends:
        state = json.loads(json.dumps(alike.followed(state, end, end, other), allow_nan=False))
    return state


def test_who_was_right_lately_counts() -> None:
    """Days of 100, 200, 400, 200; the other one always says 1,000. 100 comes next."""
    state = followed([100.0, 200.0, 400.0, 200.0] * 20, 1_000.0)
    assert alike.mixed(state, 1_000.0, 1) == pytest.approx(100, rel=0.01)
    assert alike.mixed(state, 1_000.0, 2) == pytest.approx(200, rel=0.01)


def test_both_count_as_much_before_either_was_wrong() -> None:
    """Of 100 and 10,000 the middle is 1,000: logarithms are averaged."""
    state = {"ends": [math.log(100)] * 30, "peaks": [math.log(100)] * 30, "losses": (0.0, 0.0), "said": (0.0, math.log(100))}
    assert alike.mixed(state, 10_000.0, 1) == pytest.approx(1_000)


def test_a_loss_is_an_error_beside_the_larger_one() -> None:
    """It said ln 100 and ln 200 of a peak of 100: errors of 0 and 0.69, losses of 0.95·1 + 0 and 0.95·0.5 + 1."""
    before = {"ends": [], "peaks": [], "losses": (1.0, 0.5), "said": (math.log(100), math.log(200))}
    assert alike.followed(before, 100.0, 100.0, 1.0)["losses"] == pytest.approx([0.95, 1.475], abs=1e-3)


def test_without_input_the_other_one_is_believed() -> None:
    state = followed([100.0] * 40 + [0.0], 50.0)
    assert alike.mixed(state, 50.0, 1) == 50.0
    assert alike.mixed(followed([100.0] * 40, 0.0), 0.0, 1) == 0.0


def test_what_is_kept_is_bounded_and_looked_through_quickly() -> None:
    noise = np.random.default_rng(0).normal(5, 1, alike.MAX_INTERVALS + 100)
    state: dict[str, object] = {"ends": noise.tolist(), "peaks": noise.tolist()}
    state = alike.followed(state, 100.0, 100.0, 100.0)
    assert len(json.dumps(alike.followed(state, 1.0, 1.0, 1.0)["ends"])) < 25 * alike.MAX_INTERVALS
    assert len(state["ends"]) == len(state["peaks"]) == alike.MAX_INTERVALS  # type: ignore[arg-type]
    begun = time.process_time()
    for _ in range(20):
        alike.mixed(state, 100.0, 2)
    assert time.process_time() - begun < 20 * 0.02
