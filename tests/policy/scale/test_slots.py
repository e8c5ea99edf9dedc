"""How many slots degrees take, where stages take turns on them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from control.rig import line
from springtide.control import planner
from springtide.control.planner import SlotLimit
from springtide.policy.scale.slots import slots


def test_operators_that_hardly_work_take_no_slot_of_their_own() -> None:
    light = {f"o{i}": 0.02 for i in range(5)}
    assert slots(dict.fromkeys(light, 1), light) == 1, "5 × 1.5 × 0.02 = 0.15"
    assert slots({**dict.fromkeys(light, 1), "heavy": 4}, {**light, "heavy": 3.1}) == 5, "4 + 0.15"


def test_one_that_works_all_the_time_takes_all_of_its_own() -> None:
    assert slots({"a": 1, "b": 1}, {"a": 0.7, "b": 0.9}) == 2, "min(1, 1.05) + min(1, 1.35)"
    assert slots({"a": 1, "b": 1}, {"a": 0.3, "b": 0.3}) == 1, "0.45 + 0.45"
    assert slots({"a": 1, "b": 1}, {"a": 0.35, "b": 0.35}) == 1, "1.05, of which 0.05 is not worth a slot"
    assert slots({"a": 1, "b": 1}, {"a": 0.36, "b": 0.36}) == 2


def test_what_was_granted_beyond_one_is_granted() -> None:
    assert slots({"a": 3, "b": 2}, {"a": 0.0, "b": 0.0}) == 5, "a policy may know what is coming"


def test_what_is_not_known_counts_whole() -> None:
    assert slots({"a": 1, "b": 1, "c": 1}, {"b": 0.01}) == 2
    assert slots({}, {}) == 1


def test_a_grant_uses_all_slots_when_the_sink_needs_none() -> None:
    wanted = {"first": 7, "second": 3, "sink": 1}
    unknown = planner.grant(line(), wanted, SlotLimit(8))
    assert sum(unknown.values()) == 8
    known = planner.grant(line(), wanted, SlotLimit(8), {"first": 5.0, "second": 1.0, "sink": 0.001})
    assert known == {"first": 5, "second": 3, "sink": 1} and planner.slots(known, SlotLimit(8), {"sink": 0.001}) == 8


@given(some.lists(some.tuples(some.integers(1, 9), some.floats(0, 9)), min_size=1, max_size=20))
def test_never_more_than_the_degrees_and_enough_for_the_work(parts: list[tuple[int, float]]) -> None:
    degrees = {str(i): degree for i, (degree, _) in enumerate(parts)}
    work = {str(i): min(done, degree) for i, (degree, done) in enumerate(parts)}
    assert 1 <= slots(degrees, work) <= max(1, sum(degrees.values()))
    assert slots(degrees, work) >= np.sum(list(work.values())) - 0.05 - 1e-9
