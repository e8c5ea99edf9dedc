"""Erlang's formulas against closed forms, factorials and the plain recursion."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.policy.scale.erlang import erlang_b, erlang_b_next, least_stable, queue_length, waiting_share


def waiting(offered: float, servers: int) -> float:
    return waiting_share(offered, servers, erlang_b(offered, servers))


def queue(offered: float, servers: int) -> float:
    return queue_length(offered, servers, erlang_b(offered, servers))


def by_factorials(offered: Fraction, servers: int) -> tuple[Fraction, Fraction]:
    """B and C as the books have them, without a rounding error."""
    terms = [offered**j / math.factorial(j) for j in range(servers + 1)]
    blocked = terms[-1] / sum(terms)
    last = terms[-1] * servers / (servers - offered)
    return blocked, last / (sum(terms[:-1]) + last)


def by_recursion(offered: float, servers: int) -> float:
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = erlang_b_next(offered, k, blocking)
    return blocking


@pytest.mark.parametrize("load", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_one_server_is_mm1(load: float) -> None:
    # B = a/(1 + a); C = ρ; queue = ρ²/(1 - ρ)
    assert erlang_b(load, 1) == pytest.approx(load / (1 + load), rel=1e-12)
    assert waiting(load, 1) == pytest.approx(load, rel=1e-12)
    assert queue(load, 1) == pytest.approx(load**2 / (1 - load), rel=1e-9)


@pytest.mark.parametrize("offered", [0.02, 0.6, 1.0, 1.8, 1.998])
def test_two_servers_have_a_closed_form(offered: float) -> None:
    # C = a²/(2 + a); response = s/(1 - ρ²), so that by Little's law a/(1 - ρ²) are there and all but a wait
    assert waiting(offered, 2) == pytest.approx(offered**2 / (2 + offered), rel=1e-12)
    assert queue(offered, 2) + offered == pytest.approx(offered / (1 - (offered / 2) ** 2), rel=1e-9)


@given(st.integers(1, 40), st.integers(1, 99))
def test_few_servers_as_factorials_say(servers: int, percent: int) -> None:
    offered = Fraction(servers * percent, 100)
    blocked, waits = by_factorials(offered, servers)
    assert erlang_b(float(offered), servers) == pytest.approx(float(blocked), rel=1e-11)
    assert waiting(float(offered), servers) == pytest.approx(float(waits), rel=1e-11)


@pytest.mark.parametrize("servers", [100, 1_000, 10_000])
@pytest.mark.parametrize("load", [0.5, 0.9, 0.99, 0.9999, 1.0, 1.1, 5.0])
def test_many_servers_as_the_recursion_says(servers: int, load: float) -> None:
    expected = by_recursion(load * servers, servers)
    assert erlang_b(load * servers, servers) == pytest.approx(expected, rel=1e-11, abs=1e-300)


def test_ten_thousand_servers_near_their_limit() -> None:
    # Halfin and Whitt: with k = a + β√a, β = 1, the share that waits tends to 1/(1 + β·Φ(β)/φ(β)) = 1/(1 + 0.8413/0.2420).
    servers, offered = 10_000, 9_900.5  # β = 99.5/√9900.5 = 1.0000
    assert waiting(offered, servers) == pytest.approx(1 / (1 + 0.8413447 / 0.2419707), rel=0.01)
    assert 0.98 < waiting(9_999.9, 10_000) < 1
    assert erlang_b(1.0, 10_000) == 0.0 == waiting(1.0, 10_000)


def test_no_load_no_servers_and_too_much_load() -> None:
    assert erlang_b(0.0, 3) == waiting(0.0, 3) == queue(0.0, 3) == 0.0
    assert erlang_b(2.0, 0) == 1.0
    assert waiting(3.0, 3) == waiting(99.0, 3) == 1.0
    assert queue(3.0, 3) == queue(4.0, 3) == math.inf


@given(st.floats(0.01, 200), st.integers(1, 60))
def test_each_server_takes_off_less_than_the_one_before(offered: float, more: int) -> None:
    first = least_stable(offered)
    queues = [queue(offered, k) for k in (first + more, first + more + 1, first + more + 2)]
    assert queues[0] >= queues[1] >= queues[2] >= 0
    assert queues[0] - queues[1] >= (queues[1] - queues[2]) * (1 - 1e-9)


def test_a_load_that_is_whole_but_for_rounding_is_whole() -> None:
    assert least_stable(0.1 * 3 / 0.1) == least_stable(3.0) == least_stable(3 - 1e-12) == 4
    assert least_stable(2.99) == 3
    assert least_stable(0.0) == 1
