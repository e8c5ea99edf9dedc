"""Where replicas come, go and move to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from springtide.model.request import Migrate
from springtide.policy.place import Neighbourhood, NodeReport
from springtide.policy.place.busiest import busiest
from springtide.policy.place.near import near, spread
from springtide.policy.place.overload import overload

DELAYS = {"n1": {"n2": 1.0, "n3": 9.0}}


def around(*free: int, used: tuple[float | None, ...] = ()) -> Neighbourhood:
    each = (*used, *[None] * (len(free) - len(used)))
    return Neighbourhood(tuple(NodeReport(f"n{i + 1}", n, each[i]) for i, n in enumerate(free)), DELAYS)


def drawn(there: Neighbourhood, times: int = 10_000) -> dict[str, float]:
    """How often each node is chosen, as a share."""
    rng = np.random.default_rng(1)
    counted = Counter(spread("n1", 1, there, rng) for _ in range(times))
    return {node: count / times for (node,), count in counted.items()}


def test_the_closer_the_likelier() -> None:
    """Delays of 0, 1 and 9 ms: 1, 1/2 and 1/10, of 1.6 in all: 62.5 %, 31.25 % and 6.25 %."""
    assert drawn(around(1, 1, 1)) == pytest.approx({"n1": 0.625, "n2": 0.3125, "n3": 0.0625}, abs=0.015)


def test_a_full_node_gets_nothing() -> None:
    """Without n1 it is 1/2 against 1/10: 5 to 1."""
    assert drawn(around(0, 1, 1)) == pytest.approx({"n2": 5 / 6, "n3": 1 / 6}, abs=0.015)
    assert spread("n1", 1, around(0, 0, 0), np.random.default_rng(0)) == ()
    assert spread("n1", 1, around(), np.random.default_rng(0)) == ()


def test_a_node_whose_delay_is_not_known_is_no_neighbour() -> None:
    assert spread("n1", 3, around(0, 0, 0, 5), np.random.default_rng(0)) == ()


def test_without_delays_all_are_as_close() -> None:
    assert spread("n4", 1, Neighbourhood((NodeReport("n7", 1),), DELAYS), np.random.default_rng(0)) == ("n7",)


@settings(max_examples=60)
@given(some.lists(some.integers(0, 3), min_size=3, max_size=3), some.integers(0, 12), some.integers(0, 99))
def test_no_node_gets_more_than_it_has_room_for(free: list[int], count: int, seed: int) -> None:
    found = spread("n1", count, around(*free), np.random.default_rng(seed))
    assert len(found) == min(count, sum(free))
    assert all(times <= free[int(node[1]) - 1] for node, times in Counter(found).items())
    assert found == spread("n1", count, around(*free), np.random.default_rng(seed))


def test_those_who_are_not_able_are_not_chosen() -> None:
    there = around(1, 1, 1)
    able = np.array([False, False, True])
    assert {near("n1", there, able, np.random.default_rng(seed)) for seed in range(20)} == {2}


def test_the_replica_on_the_busiest_node_goes() -> None:
    assert busiest(["n1", "n2", "n3"], 1, {"n1": 0.3, "n2": 0.9, "n3": None}) == ("n2",)
    assert busiest(["n3", "n1"], 2, {"n1": 0.3}) == ("n1", "n3")


HOSTED = [("a", 0), ("b", 2)]


def test_an_overloaded_node_moves_a_replica_away() -> None:
    """U = 0.9 and U_mig = 0.8: the score is 0.1/0.2. n2 is overloaded too, so it goes to n3."""
    there = around(1, 4, 4, used=(0.9, 0.85, 0.8))
    moved = {overload(there.places[0], HOSTED, there, 0.8, np.random.default_rng(seed)) for seed in range(30)}
    found = {move[0] for move in moved if move is not None}
    assert found == {Migrate("a", 0, "n1", "n3"), Migrate("b", 2, "n1", "n3")}
    assert {round(move[1], 9) for move in moved if move is not None} == {0.5}


@pytest.mark.parametrize(
    ("free", "used"),
    [
        ((1, 4, 4), (0.8, 0.1, 0.1)),  # not above
        ((1, 4, 4), (None, 0.1, 0.1)),  # not known
        ((1, 0, 0), (0.9, 0.1, 0.1)),  # nowhere is room
        ((1, 4, 4), (0.9, 0.9, 1.0)),  # all are overloaded
        ((1, 4, 4), (0.9, None, None)),  # they may be
    ],
)
def test_nothing_moves(free: tuple[int, ...], used: tuple[float | None, ...]) -> None:
    there = around(*free, used=used)
    assert overload(there.places[0], HOSTED, there, 0.8, np.random.default_rng(0)) is None


def test_nothing_moves_from_where_nothing_is() -> None:
    there = around(1, 4, 4, used=(0.9, 0.1, 0.1))
    assert overload(there.places[0], [], there, 0.8, np.random.default_rng(0)) is None


def test_more_than_all_in_use_is_all() -> None:
    there = around(1, 4, 4, used=(1.7, 0.1, 0.1))
    found = overload(there.places[0], HOSTED, there, 0.8, np.random.default_rng(0))
    assert found is not None
    assert found[1] == pytest.approx(1.0)
