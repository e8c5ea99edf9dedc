"""Granting policies: EDF's token arithmetic, ranks and conflicts by hand, and a budget that is never exceeded."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from springtide.errors import OptionError
from springtide.model.request import (
    KINDS,
    Action,
    AddExecutors,
    Migrate,
    RemoveExecutor,
    Request,
    Scale,
    Verdict,
    action_from_json,
    action_to_json,
)
from springtide.policy import registry
from springtide.policy.grant import GrantPolicy, State, View
from springtide.policy.grant.all import All
from springtide.policy.grant.budget import Budget
from springtide.policy.grant.ranking import ranked
from springtide.policy.grant.token_bucket import PAID_BY, TokenBucket

POLICIES: list[Any] = [cls() for cls in registry.available("grant")]


def out(operator: str, score: float = 0.5, node: str | None = None, before: int = 1, after: int = 2) -> Request:
    nodes = () if node is None else (node,)
    action = Scale(operator, before, after, nodes)
    return Request(manager=f"operator {operator}", action=action, score=score, reason=f"{operator} is full")


def less(operator: str, score: float = 0.5, node: str | None = None, before: int = 2) -> Request:
    nodes = () if node is None else (node,)
    action = Scale(operator, before, before - 1, nodes)
    return Request(manager=f"operator {operator}", action=action, score=score, reason=f"{operator} is idle")


def move(operator: str, score: float = 0.5, origin: str = "n1", node: str = "n2") -> Request:
    action = Migrate(operator, 0, origin, node)
    return Request(manager=f"node {origin}", action=action, score=score, reason=f"{origin} is full")


def view(now: float = 0.0, response: float | None = None, replicas: int = 10, executors: int | None = None) -> View:
    return View(now, response, 250.0, replicas, executors)


def decided(policy: GrantPolicy, proposals: Sequence[Request], shown: View, state: State | None = None) -> dict[str, Verdict]:
    """By manager."""
    _, found = policy.decide(policy.initial() if state is None else state, proposals, shown)
    return {verdict.request.manager: verdict for verdict in found}


def granted(found: Sequence[Verdict]) -> list[Action]:
    return [verdict.action for verdict in found if verdict.action is not None]


# Values


@pytest.mark.parametrize(
    "action",
    [
        Scale("a", 1, 3, ("n1", "n2")),
        Scale("a", 3, 1),
        Migrate("a", 1, "n1", "n2"),
        AddExecutors(3),
        RemoveExecutor("7"),
        RemoveExecutor("7", another=True),
    ],
)
def test_what_managers_exchange_is_json(action: Action) -> None:
    assert action_from_json(json.loads(json.dumps(action_to_json(action)))) == action
    proposal = Request(manager="operator a", action=action, score=0.25, reason="because of 5")
    assert Request.from_json(json.loads(json.dumps(proposal.to_json()))) == proposal
    shared = {"proposal": proposal.to_json(), "reason": "so"}
    assert Verdict(proposal, action, "so").to_json() == {**shared, "granted": True, "action": action_to_json(action)}
    assert Verdict(proposal, None, "so").to_json() == {**shared, "granted": False, "action": None}


def test_a_move_of_an_old_plan_is_read() -> None:
    """Moves once had shards, and none was ever named."""
    old = {"kind": "migrate", "operator": "a", "replica": 1, "origin": "n1", "node": "n2", "shards": []}
    assert action_from_json(old) == Migrate("a", 1, "n1", "n2")


def test_a_proposal_that_is_none_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="nothing to scale"):
        Scale("a", 2, 2)
    with pytest.raises(ValueError, match="score"):
        Request(manager="operator a", action=Scale("a", 1, 2), score=float("nan"), reason="")


def test_every_kind_is_ranked_and_paid_for() -> None:
    assert set(PAID_BY) == set(KINDS)


# Ranks and conflicts


def test_ranks_are_by_kind_then_by_score_then_as_asked() -> None:
    given_ = [less("a", 0.9), move("b", 0.99), out("c", 0.1), out("d", 0.7), out("e", 0.7)]
    # scale-outs first, however low their scores; d before e, as it asked first
    assert [one.action.operator for one in ranked(given_)] == ["d", "e", "c", "b", "a"]  # type: ignore[union-attr]


def test_two_that_want_the_same_node_conflict_and_the_lower_score_gives_way() -> None:
    found = decided(All(), [out("a", 0.2, "n1"), out("b", 0.8, "n1"), out("c", 0.1, "n2")], view())
    assert found["operator b"].granted
    assert found["operator c"].granted
    assert not found["operator a"].granted
    assert found["operator a"].reason == "conflict over node n1: the scale-out of operator b comes first (scores 0.8 and 0.2)"


def test_a_migration_conflicts_where_it_goes_and_not_where_it_comes_from() -> None:
    found = decided(All(), [out("a", 0.1, "n2"), move("b", 0.9, "n1", "n2"), move("c", 0.8, "n2", "n3")], view())
    assert found["operator a"].granted  # a scale-out ranks before a migration, whatever the scores
    assert not found["node n1"].granted  # to n2, which a got
    assert found["node n2"].granted  # from n2


def test_two_changes_of_one_operator_conflict() -> None:
    found = decided(All(), [less("a", 0.9), move("a", 0.1, "n1", "n2")], view())
    assert found["node n1"].granted
    assert found["operator a"].reason.startswith("conflict over operator a")


def test_scale_ins_on_one_node_do_not_conflict() -> None:
    assert all(verdict.granted for verdict in decided(All(), [less("a", node="n1"), less("b", node="n1")], view()).values())


def test_what_is_refused_stands_in_nobodys_way() -> None:
    """The migration of a ranks higher and has no token; a's scale-in has one, and is granted."""
    bucket = {"kind": "L", "tokens": 1, "since": 60.0}
    found = decided(TokenBucket(), [less("a"), move("a")], view(70, 100.0), bucket)
    assert found["operator a"].granted
    assert not found["node n1"].granted


# The token bucket: target 250 ms, so τ_L = 125 ms and τ_H = 225 ms, T_τ = 60 s, C_τ = 1


def bucket_after(*rounds: tuple[float, float | None], policy: TokenBucket | None = None) -> State:
    """The bucket after rounds (time, response time) in which nobody asked for anything."""
    policy = policy or TokenBucket()
    state = policy.initial()
    for now, response in rounds:
        state, found = policy.decide(state, (), view(now, response))
        assert found == ()
    return state


@pytest.mark.parametrize(
    ("rounds", "kind", "tokens"),
    [
        ([(30, 300)], "", 0),  # the first period is not over
        ([(30, 300), (60, 300)], "H", 1),
        ([(60, 225)], "", 0),  # not above τ_H
        ([(60, 225.1)], "H", 1),
        ([(60, 125)], "", 0),  # not below τ_L
        ([(60, 124.9)], "L", 1),
        ([(60, 300), (120, 300), (180, 300)], "H", 1),  # it holds one
        ([(60, 300), (120, 180)], "H", 1),  # in between: none comes, none goes
        ([(60, 300), (120, 100)], "L", 1),  # H is flushed
        ([(60, 100), (120, 300)], "H", 1),  # and so is L
        ([(60, None)], "", 0),
        ([(60, 300), (120, None)], "H", 1),
        ([(60, 180), (90, 300)], "", 0),  # above τ_H only when no period ended
        ([(59.9999999999, 300)], "H", 1),  # 600 intervals of 0.1 s
    ],
)
def test_what_is_in_the_bucket(rounds: list[tuple[float, float | None]], kind: str, tokens: int) -> None:
    state = bucket_after(*rounds)
    assert (state["kind"], state["tokens"]) == (kind, tokens)


def test_a_larger_bucket_gathers_tokens_of_one_kind() -> None:
    large = TokenBucket(capacity=3)
    three = [(60.0 * i, 300.0) for i in range(1, 6)]
    assert bucket_after(*three, policy=large) == {"kind": "H", "tokens": 3, "since": 300.0}  # five came, three fit
    assert bucket_after(*three, (360, 100.0), policy=large) == {"kind": "L", "tokens": 1, "since": 360.0}  # all three flushed
    # 150 s after the start two periods are over: two tokens, and the third period goes on
    assert bucket_after((150, 300.0), policy=large) == {"kind": "H", "tokens": 2, "since": 120.0}


def test_tokens_over_several_periods() -> None:
    """Everybody asks in every round of 30 s; what is granted, by hand."""
    asking = [out("a", 0.9), out("b", 0.4), less("c", 0.8)]
    rounds = [
        # at, response, who is granted
        (30, 300.0, []),  # no token yet
        (60, 300.0, ["a"]),  # H came: the highest score gets it
        (90, 300.0, []),  # it is spent
        (120, 180.0, []),  # in between: none came
        (150, 300.0, []),  # a period ended at 120, none now
        (180, 100.0, ["c"]),  # L came, and pays for a scale-in
        (210, 100.0, []),
        (240, 226.0, ["a"]),  # H
    ]
    policy = TokenBucket()
    state = policy.initial()
    for now, response, expected in rounds:
        state, found = policy.decide(state, asking, view(now, response))
        assert [action.operator for action in granted(found)] == expected, now  # type: ignore[union-attr]


def test_an_h_token_pays_for_a_migration_and_not_for_a_scale_in() -> None:
    high: State = {"kind": "H", "tokens": 1, "since": 60.0}
    assert decided(TokenBucket(), [move("a"), less("b")], view(60, 180.0), high)["node n1"].granted
    after, found = TokenBucket().decide(high, [less("b")], view(60, 180.0))
    assert not granted(found)
    assert after == high  # what is refused costs nothing
    after, _ = TokenBucket().decide(high, [move("a")], view(60, 180.0))
    assert after == {"kind": "", "tokens": 0, "since": 60.0}


def test_a_conflict_costs_no_token() -> None:
    two: State = {"kind": "H", "tokens": 2, "since": 60.0}
    after, found = TokenBucket(capacity=2).decide(two, [out("a", 0.9, "n1"), out("b", 0.8, "n1")], view(60, 180.0))
    assert len(granted(found)) == 1
    assert after["tokens"] == 1


@pytest.mark.parametrize(
    ("proposal", "shown", "reason"),
    [
        (out("a"), view(60, 180.0), "no H token: 180 ms is below 225 ms"),
        (out("a"), view(60, 225.0), "no H token: 225 ms is not above 225 ms"),
        (less("a"), view(60, 180.0), "no L token: 180 ms is above 125 ms"),
        (less("a"), view(60, 300.0), "no L token: 300 ms is above 125 ms"),
        (out("a"), view(30, 300.0), "no H token: the next is due in 30 s, one comes every 60 s"),
        (out("a"), view(60, None), "no H token: the response time is not known"),
        (out("a"), View(60, 300.0, None, 10), "no H token: the run has no target"),
    ],
)
def test_a_refusal_says_why(proposal: Request, shown: View, reason: str) -> None:
    assert decided(TokenBucket(), [proposal], shown)[proposal.manager].reason == reason


def test_who_comes_second_is_told_where_the_token_went() -> None:
    found = decided(TokenBucket(), [out("a", 0.9), out("b", 0.4)], view(60, 300.0))
    assert found["operator a"].reason == "H token 1 of 1"
    assert found["operator b"].reason == "no H token left: 1 spent on what ranks higher, the next is due in 60 s"


def test_thresholds_that_cross_are_refused() -> None:
    with pytest.raises(OptionError, match="low ≤ high"):
        TokenBucket(low=0.9, high=0.5)


# The budget


def test_a_budget_goes_to_the_highest_scores() -> None:
    """At 0.10 a replica and a limit of 1.20, ten replicas leave room for two."""
    found = decided(Budget(limit=1.2, replica=0.1), [out("a", 0.2), out("b", 0.9), out("c", 0.5)], view(replicas=10))
    assert [found[f"operator {name}"].granted for name in "abc"] == [False, True, True]
    assert found["operator a"].reason == "over the budget: 0.1 on top of 1.2 an hour is more than 1.2"
    assert found["operator b"].reason == "1.1 of 1.2 an hour"


def test_what_is_saved_in_the_same_round_can_be_spent() -> None:
    """The docstring's: nine replicas, one goes, two of three can come."""
    found = decided(Budget(limit=1.0, replica=0.1), [out("a", before=2, after=5), less("b")], view(replicas=9))
    assert found["operator b"].granted
    assert found["operator a"].action == Scale("a", 2, 4)
    assert found["operator a"].reason == "2 of 3: 1 of 1 an hour"


def test_a_part_of_a_scale_out_takes_the_first_of_its_nodes() -> None:
    asked = Request(manager="operator a", action=Scale("a", 1, 4, ("n1", "n2", "n3")), score=0.5, reason="3 more")
    found = decided(Budget(limit=0.6, replica=0.1), [asked], view(replicas=4))
    assert found["operator a"].action == Scale("a", 1, 3, ("n1", "n2"))


def test_over_the_limit_scale_ins_and_migrations_are_granted_still() -> None:
    found = decided(Budget(limit=0.5, replica=0.1), [less("a"), move("b"), out("c")], view(replicas=10))
    assert [found[who].granted for who in ("operator a", "node n1", "operator c")] == [True, True, False]


def test_executors_have_a_price_too() -> None:
    """Four executors for 0.20 are 0.80 of 1.30: two more."""
    policy = Budget(limit=1.3, replica=0.0, executor=0.2)
    asked = Request(manager="fleet", action=AddExecutors(3), score=0.5, reason="3 more")
    assert decided(policy, [asked], view(executors=4))["fleet"].action == AddExecutors(2)
    assert "not known" in decided(policy, [asked], view())["fleet"].reason
    gone = Request(manager="fleet", action=RemoveExecutor("7"), score=0.5, reason="idle")
    assert decided(policy, [gone], view())["fleet"].granted
    # it saves nothing, and costs nothing
    moved = Request(manager="node h1", action=RemoveExecutor("7", another=True), score=0.5, reason="full")
    found = decided(policy, [asked, moved], view(executors=5))
    assert found["node h1"].granted
    assert found["fleet"].action == AddExecutors(1)


def test_a_budget_without_a_price_is_refused() -> None:
    with pytest.raises(OptionError, match="nothing has a price"):
        Budget(replica=0.0)


# What holds for all


names = some.sampled_from("abcdef")
scores = some.floats(-1, 1)
nodes = some.sampled_from(["n1", "n2", "n3"])
actions = some.one_of(
    some.builds(
        lambda name, before, by, node: Scale(name, before, before + by, (node,) if node else ()),
        names, some.integers(4, 9), some.sampled_from([-3, -1, 1, 2, 5]), some.none() | nodes,
    ),
    some.builds(Migrate, names, some.integers(0, 3), nodes, nodes),
    some.builds(AddExecutors, some.integers(1, 4)),
    some.builds(RemoveExecutor, names),
)  # fmt: skip
requests = some.builds(Request, manager=names, action=actions, score=scores, reason=some.just("because"))
proposals = some.lists(requests, max_size=8)
views = some.builds(
    View, some.floats(0, 500), some.none() | some.floats(0, 1000), some.none() | some.just(250.0), some.integers(1, 40),
    some.none() | some.integers(0, 9),
)  # fmt: skip


@pytest.mark.parametrize("policy", [*POLICIES, TokenBucket(capacity=3), Budget(executor=0.1)], ids=repr)
@settings(max_examples=80)
@given(history=some.lists(some.tuples(proposals, views), min_size=1, max_size=6))
def test_every_proposal_has_one_verdict_and_the_state_is_json(policy: Any, history: list[tuple[list[Request], View]]) -> None:
    state = policy.initial()
    for asked, shown in history:
        untouched = copy.deepcopy(state)
        after, found = policy.decide(state, asked, shown)
        assert state == untouched
        assert policy.decide(json.loads(json.dumps(state, allow_nan=False)), asked, shown) == (after, found)
        assert sorted(id(verdict.request) for verdict in found) == sorted(map(id, asked))
        assert all(verdict.reason for verdict in found)
        places = [node for one in granted(found) for node in _nodes(one)]
        assert len(set(places)) == len(places)
        changed = [one.operator for one in granted(found) if isinstance(one, Scale | Migrate)]
        assert len(set(changed)) == len(changed)
        state = after


def _nodes(action: Action) -> tuple[str, ...]:
    if isinstance(action, Migrate):
        return (action.node,)
    return action.nodes if isinstance(action, Scale) and action.kind == "scale-out" else ()


@settings(max_examples=150)
@given(some.integers(1, 4), some.lists(some.tuples(proposals, some.floats(0, 1000), some.floats(1, 200)), max_size=12))
def test_never_more_is_granted_than_there_were_tokens(capacity: int, history: list[tuple[list[Request], float, float]]) -> None:
    """Not in a round, and not over all of them: one for each period that is over, at most."""
    policy = TokenBucket(capacity=capacity)
    state, now, spent = policy.initial(), 0.0, 0
    for asked, response, passed in history:
        now += passed
        state, found = policy.decide(state, asked, view(now, response))
        paid = granted(found)
        spent += len(paid)
        assert len(paid) <= capacity
        assert len({PAID_BY[one.kind] for one in paid}) <= 1
        assert spent + state["tokens"] <= (now + 1e-6) // 60
        assert 0 <= state["tokens"] <= capacity


@settings(max_examples=150)
@given(proposals, some.integers(1, 40), some.none() | some.integers(0, 9), some.floats(0, 3), some.floats(0, 0.2))
def test_a_budget_is_never_exceeded(
    asked: list[Request], replicas: int, executors: int | None, limit: float, executor: float
) -> None:
    policy = Budget(limit=limit, replica=0.05, executor=executor)
    _, found = policy.decide({}, asked, view(replicas=replicas, executors=executors))
    before = 0.05 * replicas + executor * (executors or 0)
    more = 0.0
    for action in granted(found):
        if isinstance(action, Scale):
            more += 0.05 * (action.after - action.before)
        elif not isinstance(action, Migrate):
            more += executor * (action.count if isinstance(action, AddExecutors) else -1)
    assert before + more <= max(limit, before) + 1e-6
    for verdict in found:
        if verdict.request.action.kind == "scale-in" and not verdict.granted:
            assert verdict.reason.startswith("conflict")
