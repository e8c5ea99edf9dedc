"""Conditions that are reported when they begin, and again only after they have ended."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as some

from springtide.once import Once, begun


def test_a_condition_begins_once_until_it_has_ended() -> None:
    once = Once()
    assert not once
    assert [once.begins(), once.begins(), once.begins("full")] == [True, False, True]
    assert once and list(once) == [None, "full"]
    once.end()
    once.end("never began")
    assert [once.begins("full"), once.begins()] == [False, True]


def test_conditions_that_are_not_named_have_ended() -> None:
    once = Once(["a", "b"])
    once.end_others({"b", "c"})
    assert [once.begins(name) for name in "abc"] == [True, False, True]


@given(some.lists(some.tuples(some.sets(some.sampled_from("abcd")), some.floats(0.1, 50)), max_size=30), some.integers(1, 4))
def test_the_pure_form_reports_what_the_other_does(rounds: list[tuple[set[str], float]], most: int) -> None:
    """A condition that recurs within the quiet time has not ended; one that had no room is reported later."""
    state: dict[str, float] = {}
    reported: dict[str, float] = {}  # and when it last held
    now = 0.0
    for holding, seconds in rounds:
        now += seconds
        new, state = begun(json.loads(json.dumps(state)), sorted(holding), now, quiet_s=60.0, most=most)
        reported = {name: last for name, last in reported.items() if now - last <= 60.0}
        expected = [name for name in sorted(holding) if name not in reported][:most]
        assert new == expected
        reported |= {name: now for name in holding if name in reported or name in expected}
        assert state == reported
    assert begun(state, (), now, ended=state, quiet_s=60.0, most=most) == ([], {})
