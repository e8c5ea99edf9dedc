"""Requests and verdicts: every way to make one, and their JSON, also that of earlier versions."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from springtide.model.plan import Request as OfPolicies
from springtide.model.request import (
    Action,
    AddExecutors,
    Degree,
    Migrate,
    RemoveExecutor,
    Request,
    Scale,
    Verdict,
    action_to_json,
)  # fmt: skip

MOVES: list[Action] = [Migrate("a", 0, "n1", "n2"), RemoveExecutor("7"), RemoveExecutor("7", another=True)]


def test_a_policy_names_an_operator_and_a_degree() -> None:
    assert OfPolicies is Request
    made = Request("a", 3, "why", 0.5)
    assert made == Request(operator="a", degree=3, reason="why", score=0.5) == Request("a", 3, "why", score=0.5)
    assert (made.operator, made.degree, made.reason, made.score) == ("a", 3, "why", 0.5)
    assert (made.action, made.manager) == (Degree("a", 3), "")
    assert made != Request("a", 4, "why", 0.5) and made != Request("b", 3, "why", 0.5)
    assert len({made, Request("a", 3, "why", 0.5)}) == 1
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_field_of_a_request_is_replaced() -> None:
    made = Request("a", 3, "why", 0.5)
    assert replace(made, degree=4) == Request("a", 4, "why", 0.5)  # type: ignore[call-arg]
    assert replace(made, operator="b") == Request("b", 3, "why", 0.5)  # type: ignore[call-arg]
    assert replace(made, reason="because") == Request("a", 3, "because", 0.5)
    placed = Request("a", 5, "why", 0.5, Scale("a", 2, 5, ("n1", "n2", "n3")))
    assert replace(placed, degree=4).action == Scale("a", 2, 4, ("n1", "n2", "n3"))  # type: ignore[call-arg]
    assert replace(placed, degree=2).action == Degree("a", 2), "nothing is left to scale"  # type: ignore[call-arg]


@pytest.mark.parametrize("action", MOVES)
def test_a_move_changes_no_degree(action: Any) -> None:
    made = Request(action=action, reason="why", score=0.5, manager="node n1")
    assert (made.operator, made.degree, made.action) == ("", 0, action)
    assert made.checked(()) is made
    with pytest.raises(ValueError, match="is no request"):
        Request("a", 3, "why", 0.5, action)
    with pytest.raises(ValueError, match="is no request"):
        replace(made, degree=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("degree", "reason"), [(-1, "why"), (2.5, "why"), (math.nan, "why"), (None, "why"), (3, None)])
def test_nonsense_is_made_and_refused(degree: Any, reason: Any) -> None:
    """In the policy's own process, before anything is done with it."""
    with pytest.raises((ValueError, TypeError)):
        Request("a", degree, reason).checked(("a",))


def test_managers_are_ranked_by_scores() -> None:
    assert math.isnan(Request("a", 3, "why", math.nan).score)
    with pytest.raises(ValueError, match="score of a request of operator a is nan"):
        Request("a", 3, "why", math.nan, manager="operator a")


@pytest.mark.parametrize("action", [Degree("a", 3), Scale("a", 2, 3, ("n1",)), Scale("a", 2, 3), AddExecutors(2), *MOVES])
@pytest.mark.parametrize("by", [{}, {"by": "cooldown", "before": 2}])
def test_a_refusal_is_json(action: Any, by: dict[str, Any]) -> None:
    verdict = Verdict(Request(action=action, reason="why", score=0.5, manager="operator a"), None, "not now", **by)
    document = json.loads(json.dumps(verdict.refusal()))
    assert Verdict.of_refusal(document) == verdict
    assert Request.from_json(document["refused"] if not by else verdict.request.to_json()) == verdict.request
    assert ("guard" in document["refused"]) == bool(by), "which tells guards from managers"


def test_documents_of_earlier_versions_are_read() -> None:
    action = RemoveExecutor("7", another=True)
    move = {"operator": "", "degree": 0, "reason": "full", "score": 0.5, "action": action_to_json(action)}
    assert Request.from_json(move) == Request(action=action, reason="full", score=0.5)
    assert Request.from_json({"operator": "a", "degree": 3, "reason": "r", "score": 0.5, "action": None}) == Request(
        "a", 3, "r", 0.5
    )
    proposal = {"manager": "node n1", "action": action_to_json(action), "score": 0.5, "reason": "full"}
    assert Request.from_json(proposal) == Request(action=action, reason="full", score=0.5, manager="node n1")
    stored = {"guard": "cooldown", "operator": "a", "before": 4, "after": 2, "reason": "r"}
    verdict = Verdict.of_refusal({"refused": stored, "reason": "it changed"})
    assert verdict == Verdict(Request("a", 2, "r"), None, "it changed", "cooldown", 4)
    moved = {"guard": "excluded", "operator": "", "before": None, "after": 0, "action": action_to_json(action), "reason": "r"}
    assert Verdict.of_refusal({"refused": moved, "reason": "not now"}).request == Request(action=action, reason="r")


@pytest.mark.parametrize(
    "document", [7, {}, {"operator": "a", "degree": 3}, {"operator": "a", "degree": 3, "reason": "", "x": 1}]
)
def test_what_is_no_request_is_not_read(document: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Request.from_json(document)


def test_a_refusal_in_a_log_names_who_decided() -> None:
    request = Request("a", 3, "why", manager="")
    assert str(Verdict(request, None, "not now", "cooldown", 4)) == "held back by cooldown: a from 4 to 3 (why): not now"
    moved = Request(action=MOVES[0], reason="full", manager="node n1")
    assert str(Verdict(moved, None, "not now", "excluded")) == "held back by excluded: a move (full): not now"
    assert str(Verdict(moved, None, "no token")) == "refused: migrate of node n1 (full): no token"


def test_a_subject_leaves_out_the_amounts() -> None:
    subjects = [Verdict(Request("a", degree, ""), None, "", "cooldown", 4).subject for degree in (2, 3, 5, 6)]
    assert subjects == ["cooldown: less of a"] * 2 + ["cooldown: more of a"] * 2
    assert Verdict(Request(action=MOVES[0], reason=""), None, "", "cooldown").subject == "cooldown: move of "
    assert (
        Verdict(Request(action=AddExecutors(2), reason="", manager="the fleet"), None, "").subject == "the fleet: add-executors"
    )
