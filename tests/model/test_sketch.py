"""Quantiles in bounded memory: within 1 % of the exact ones, whatever comes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.model.report import latency_of
from springtide.model.sketch import ACCURACY, Sketch

WAITS = st.lists(st.tuples(st.floats(1e-6, 1e9) | st.floats(-1e9, -1e-6) | st.just(0.0), st.integers(1, 1_000)), min_size=1)


def sketch_of(waits: list[tuple[float, int]]) -> Sketch:
    sketch = Sketch()
    for value, weight in waits:
        sketch.add(value, weight)
    return sketch


@given(WAITS)
def test_quantiles_are_within_the_accuracy_of_the_exact_ones(waits: list[tuple[float, int]]) -> None:
    sketch, exact = sketch_of(waits), latency_of([(value, float(weight)) for value, weight in waits])
    assert exact is not None
    for share, wanted in ((0.5, exact.p50), (0.95, exact.p95), (0.99, exact.p99)):
        assert sketch.quantile(share) * 1000 == pytest.approx(wanted, rel=ACCURACY * 1.0001, abs=0.002)
    largest = max(abs(value) for value, _ in waits)
    assert sketch.mean * 1000 == pytest.approx(exact.mean, rel=1e-9, abs=largest * 1e-6 + 0.001)


@given(st.floats(-1e6, 1e6), st.integers(1, 10**9))
def test_a_single_value_is_returned_as_it_came(value: float, weight: int) -> None:
    assert sketch_of([(value, weight)]).quantile(0.5) == pytest.approx(value, rel=1e-12)


def test_memory_is_bounded_for_any_number_of_values() -> None:
    sketch = Sketch()
    for step in range(200_000):
        sketch.add(10 ** (-7 + 16 * (step % 99_991) / 99_991))
    assert sketch.size <= 1 + math.ceil(math.log(1e9 / 1e-6) / math.log1p(ACCURACY))
    assert sketch.weight == 200_000


def test_larger_values_never_come_into_lower_buckets() -> None:
    sketch = sketch_of([(value, 1) for value in (-3.0, -0.001, 0.0, 1e-7, 0.001, 3.0)])
    found = [sketch.quantile((place + 0.5) / 6) for place in range(6)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (-3.0, 3.0)
