"""Options: a function and the command line make the same value of the same words, and whatever is wrong is told."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import springtide as st
from springtide import running
from springtide.apps import tweets
from springtide.errors import OptionError
from springtide.options import RunOptions, operators_of

GIVEN: dict[str, Any] = {
    "policy": "static", "settings": {"degree": 3}, "grouping": "posg", "grouping_settings": {"mu": 0.1}, "target": "2s",
    "max_slots": 6, "trigger": "100ms", "interval": "500ms", "checkpoint": "here", "runs": "there", "duration": "1m",
    "batches": 7, "available_now": True, "master": "local[2]", "conf": {"spark.x": "y"}, "py_files": ("a.py",),
    "archives": ("b.zip",), "spark": object(), "seed": 5, "guards": ("cooldown",), "dry_run": True, "shed_after": "30s",
    "queue_limit": 9, "executors": "fixed", "min_executors": 2, "grant": "all", "managers": "settle=30s",
    "sharding": "fixed", "state": "file:///mnt/state", "stall_after": "20s",
}  # fmt: skip


def asked_by_run(monkeypatch: pytest.MonkeyPatch, **given: Any) -> RunOptions:
    seen: list[RunOptions] = []
    monkeypatch.setattr(running, "execute", lambda topology, asked, watch, stop: seen.append(asked))
    st.run(tweets.topology(), **given)
    return seen[0]


def test_a_command_line_and_the_function_ask_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(inspect.signature(st.run).parameters)
    assert names == {*GIVEN, "topology", "watch", "stop"}  # so that a new keyword is tried here too
    operators = operators_of(tweets.topology())
    assert asked_by_run(monkeypatch, **GIVEN) == RunOptions.of(operators, GIVEN)
    default = RunOptions.of(operators, {})
    assert asked_by_run(monkeypatch) == default
    for name, value in GIVEN.items():
        assert RunOptions.of(operators, {name: value}) != default, name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"interval": "0s"}, "interval='0s' is not allowed; give a duration above 0"),
        ({"target": "soon"}, "target 'soon' is not a duration"),
        ({"max_slots": 0}, "max_slots=0 is not allowed; it is at least 1"),
        ({"max_slots": 2, "min_executors": 3}, "min_executors=3 is not allowed; it is from 1 to max_slots, which is 2"),
        ({"executors": "elastik"}, "executors='elastik' is not allowed; did you mean 'elastic'"),
        ({"stall_after": 0}, "stall_after=0 is not allowed; give a duration above 0"),
        ({"queue_limit": 0}, "queue_limit=0 is not allowed"),
    ],
)
def test_options_that_are_not_allowed_are_refused_where_they_are_made(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        RunOptions.of((), given)
    assert words in str(caught.value)
