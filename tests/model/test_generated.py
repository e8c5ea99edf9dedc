"""Draws: the same for the same seed and index, whatever came before, and random enough."""

from __future__ import annotations

import copy
import datetime
import pickle
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.model.generated import Draw, RecordRandom, base_of, draws

seeds = st.integers()
indices = st.integers(min_value=0, max_value=2**63)


def _values(draw: Draw) -> tuple[object, ...]:
    """Something from every way in which the standard library takes numbers from a generator."""
    return (
        draw.random.random(),
        draw.random.getrandbits(70),
        draw.random.randrange(10**30),
        draw.random.choice("abc"),
        draw.random.gauss(0.0, 1.0),
        draw.random.sample(range(100), 5),
        draw.random.randbytes(3),
    )


@given(seeds, indices)
def test_a_record_depends_on_seed_and_index_only(seed: int, index: int) -> None:
    alone = [_values(draw) for draw in draws(seed, index + 1, [0])]
    after_another = [_values(draw) for draw in draws(seed, index, [0, 5])]
    assert after_another[1:] == alone
    assert after_another[0] != alone[0]


def test_a_record_is_untouched_by_what_the_function_did_to_the_one_before() -> None:
    """``gauss`` buffers a second number, and a user may seed again: neither may affect the next record."""
    made = []
    for draw in draws(1, 0, [0, 0]):
        made.append(draw.random.gauss(0.0, 1.0))
        draw.random.seed(99)
        draw.random.gauss(0.0, 1.0)
    assert made[1] == next(iter(draws(1, 1, [0]))).random.gauss(0.0, 1.0)


def test_the_numbers_are_the_same_in_another_process() -> None:
    code = "from springtide.model.generated import draws\n"
    code += "print([d.random.random() for d in draws(3, 5, [0] * 2)])"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert other.strip() == str([draw.random.random() for draw in draws(3, 5, [0, 0])])


def test_the_numbers_are_those_of_splitmix64() -> None:
    """The first outputs from the state 1234567, as the reference implementation in C gives them."""
    generator = RecordRandom()
    generator.setstate((1234567, None))
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [generator.getrandbits(64) for _ in reference] == reference


def test_the_numbers_never_change() -> None:
    """A stream that began with an earlier version continues with this one."""
    assert [draw.random.getrandbits(64) for draw in draws(0, 0, [0] * 3)] == [
        9309681118505658692,
        13771991029614313458,
        14143438700178003124,
    ]


@given(seeds, st.integers(min_value=0, max_value=300))
def test_getrandbits_gives_so_many_bits(seed: int, bits: int) -> None:
    assert 0 <= RecordRandom(seed).getrandbits(bits) < 2**bits


def test_getrandbits_refuses_a_negative_number() -> None:
    with pytest.raises(ValueError, match="-1"):
        RecordRandom(0).getrandbits(-1)


@pytest.mark.parametrize("cells", [10, 64])
def test_first_and_second_numbers_are_uniform_over_the_records(cells: int) -> None:
    """χ² of the first and of the second number of 20,000 records: cells - 1 ± 6 standard deviations."""
    total = 20_000
    counts = [[0] * cells, [0] * cells]
    for draw in draws(42, 0, [0] * total):
        for count in counts:
            count[int(draw.random.random() * cells)] += 1
    for count in counts:
        chi = sum((n - total / cells) ** 2 / (total / cells) for n in count)
        assert abs(chi - (cells - 1)) < 6 * (2 * (cells - 1)) ** 0.5


def test_neighbours_share_no_numbers() -> None:
    """Counters that start at neighbouring states would give the records the same sequence, shifted by one."""
    numbers = [draw.random.getrandbits(64) for draw in draws(0, 0, [0] * 1000) for _ in range(10)]
    assert len(set(numbers)) == len(numbers)


def test_bits_of_neighbours_are_independent() -> None:
    """Each bit of the first number differs between neighbours half of the time: 5,000 ± 6 × 50 of 10,000."""
    first = [draw.random.getrandbits(64) for draw in draws(0, 0, [0] * 10_001)]
    for bit in range(64):
        flips = sum((a ^ b) >> bit & 1 for a, b in pairwise(first))
        assert abs(flips - 5_000) < 300


@given(st.integers(min_value=0, max_value=4 * 10**15))
def test_the_creation_time_is_exact_and_in_utc(micros: int) -> None:
    (draw,) = draws(0, 7, [micros])
    since = draw.created - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert since // datetime.timedelta(microseconds=1) == micros
    assert draw.index == 7


def test_the_generator_can_be_copied_and_pickled() -> None:
    generator = RecordRandom("seed")
    generator.gauss(0.0, 1.0)
    others = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), RecordRandom()]
    others[2].setstate(generator.getstate())
    wanted = (generator.gauss(0.0, 1.0), generator.random())
    assert [(other.gauss(0.0, 1.0), other.random()) for other in others] == [wanted] * 3


@given(st.one_of(seeds, st.text(), st.none()))
def test_any_seed_has_a_base_of_64_bits(seed: object) -> None:
    assert 0 <= base_of(seed) < 2**64
    assert base_of(seed) == base_of(seed)
