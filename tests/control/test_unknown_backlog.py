"""No scale-in while records wait in an unknown number and the latency is above the target."""

from __future__ import annotations

from dataclasses import replace

from springtide.control.unknown_backlog import UnknownBacklog
from springtide.model.plan import Plan
from springtide.model.report import Latency
from springtide.model.request import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot

WORK = OperatorSnapshot("work", 4, 4, 10, 10, 0, 1.0, 10.0, 0.25, None, None)
LATE = Snapshot(
    10.0, 1.0, Plan({"work": 4}, 4, {"work": 4}), (WORK,), ((10, 0.5),), 10.0, None, Latency(9e3, 9e3, 9e3, 9e3),
    (SourceSnapshot("in", 10),), target_s=5.0,
)  # fmt: skip
LESS, MORE = Request("work", 2, "idle"), Request("work", 6, "busy")


def test_a_late_run_is_not_scaled_in() -> None:
    passed, refused = UnknownBacklog().review(LATE, (LESS,))
    assert passed == ()
    assert [(verdict.before, verdict.request, verdict.reason) for verdict in refused] == [
        (4, LESS, "backlog unknown, and the latency of 9 s is above the target of 5 s")
    ]


def test_a_run_within_its_target_is_scaled_in_and_a_late_one_out() -> None:
    """Every reason says that the backlog was unknown, once."""
    early = replace(LATE, latency=Latency(900.0, 900.0, 900.0, 900.0))
    assert UnknownBacklog().review(early, (LESS,)) == ((Request("work", 2, "idle; backlog unknown"),), [])
    said = Request("work", 6, "busy, backlog unknown")
    assert UnknownBacklog().review(LATE, (MORE, said)) == ((Request("work", 6, "busy; backlog unknown"), said), [])


def test_a_known_backlog_changes_nothing() -> None:
    assert UnknownBacklog().review(replace(LATE, backlog=0), (LESS, MORE)) == ((LESS, MORE), [])


def test_the_last_latency_counts_while_no_batch_ends() -> None:
    rule = UnknownBacklog()
    rule.review(LATE, ())
    passed, _ = rule.review(replace(LATE, batches=(), rate=None, latency=None), (LESS,))
    assert passed == ()


def test_nothing_is_said_before_anything_is_measured() -> None:
    unmeasured = replace(LATE, batches=(), rate=None, latency=None)
    assert UnknownBacklog().review(unmeasured, (LESS, MORE)) == ((LESS, MORE), [])


def test_a_refusal_is_reported_once_until_it_has_ended() -> None:
    rule = UnknownBacklog()
    assert len(rule.review(LATE, (LESS,))[1]) == 1
    assert rule.review(LATE, (LESS,))[1] == []
    rule.review(LATE, ())
    assert len(rule.review(LATE, (LESS,))[1]) == 1
