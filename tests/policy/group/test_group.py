"""Round-robin and hash: in range, balanced, and a pure function of what they are handed."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.policy.group import Grouping, Share, checked
from springtide.policy.group.hash import Hash
from springtide.policy.group.keys import key_hashes
from springtide.policy.group.round_robin import RoundRobin

UTC = datetime.UTC
D = decimal.Decimal

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "float16": (pa.float16(), st.floats(width=16)),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    "decimal": (pa.decimal128(38, 18), st.decimals(-(10**18), 10**18, places=18, allow_nan=False)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-5, 5), max_size=4)),
    "map": (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 3), "b": st.lists(st.sampled_from("xy"), max_size=2)}),
    ),
}


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([list(v.items()) if isinstance(v, dict) and pa.types.is_map(kind) else v for v in values], kind)


def hashed(*columns: pa.Array) -> list[int]:
    batch = pa.record_batch(list(columns), names=[str(i) for i in range(len(columns))])
    return [int(h) for h in key_hashes(batch, tuple(batch.schema.names))]


def hash_of(value: Any, kind: pa.DataType) -> int:
    return hashed(column([value], kind))[0]


def routed(grouping: Grouping, batch: pa.RecordBatch, key: tuple[str, ...], origin: int, width: int) -> npt.NDArray[np.int64]:
    return grouping.route(Share.of(batch, key, width, origin), {})


# Round-robin


def test_round_robin_takes_turns_from_its_origin() -> None:
    batch = pa.record_batch({"a": range(7)})
    assert routed(RoundRobin(), batch, (), 0, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert routed(RoundRobin(), batch, (), 5, 3).tolist() == [2, 0, 1, 2, 0, 1, 2]


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), width=st.integers(1, 20))
def test_round_robin_totals_differ_by_at_most_the_number_of_origins(sizes: list[int], width: int) -> None:
    totals = np.zeros(width, dtype=np.int64)
    for origin, rows in enumerate(sizes):
        route = routed(RoundRobin(), pa.record_batch({"a": range(rows)}), (), origin, width)
        own = np.bincount(route, minlength=width)
        assert own.max() - own.min() <= 1
        totals += own
    assert totals.sum() == sum(sizes)
    assert totals.max() - totals.min() <= len(sizes)


@given(width=st.integers(1, 20), rows=st.integers(0, 9), rounds=st.integers(1, 3))
def test_round_robin_is_even_for_equal_shares(width: int, rows: int, rounds: int) -> None:
    routes = [routed(RoundRobin(), pa.record_batch({"a": range(rows)}), (), origin, width) for origin in range(width * rounds)]
    assert (np.bincount(np.concatenate(routes), minlength=width) == rows * rounds).all()


# Hash


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=25)
@given(data=st.data())
def test_hash_is_the_same_for_a_key_whatever_the_split(name: str, data: st.DataObject) -> None:
    kind, strategy = VALUES[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=12))
    width, seed = data.draw(st.integers(1, 300)), data.draw(st.integers(0, 2**63 - 1))
    cut = data.draw(st.integers(0, len(values)))
    batch = pa.record_batch({"k": column(values, kind)})
    grouping = Hash(seed)
    whole = routed(grouping, batch, ("k",), 0, width)
    assert whole.dtype == np.int64
    assert ((whole >= 0) & (whole < width)).all()
    parts = [routed(grouping, part, ("k",), 3, width) for part in (batch.slice(0, cut), batch.slice(cut))]
    assert np.concatenate(parts).tolist() == whole.tolist()
    alone = [int(routed(grouping, pa.record_batch({"k": column([v], kind)}), ("k",), 0, width)[0]) for v in values]
    assert alone == whole.tolist()


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=25)
@given(data=st.data())
def test_different_values_have_different_hashes(name: str, data: st.DataObject) -> None:
    kind, strategy = VALUES[name]
    array = column([None, *data.draw(st.lists(strategy, max_size=12))], kind)
    values = array.to_pylist(maps_as_pydicts="strict") if name == "map" else array.to_pylist()
    distinct = {repr(sorted(v.items()) if name == "map" and v is not None else v) for v in values}
    if "0.0" in distinct:
        distinct.discard("-0.0")
    assert len(set(hashed(array))) == len(distinct)


def test_equal_keys_of_different_types() -> None:
    numbers = [0, 1, -1, 127, None]
    kinds = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    assert len({tuple(hashed(pa.array(numbers, kind))) for kind in kinds}) == 1
    assert hash_of(200, pa.uint8()) == hash_of(200, pa.int64())
    assert hash_of(2**64 - 1, pa.uint64()) != hash_of(2**63, pa.uint64())
    assert hash_of(1.5, pa.float16()) == hash_of(1.5, pa.float32()) == hash_of(1.5, pa.float64())
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    units = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in ("UTC", "+02:00")]
    assert len({hash_of(at, kind) for kind in units}) == 1
    assert hash_of(datetime.date(1969, 12, 31), pa.date32()) == hash_of(datetime.date(1969, 12, 31), pa.date64())
    assert hash_of(datetime.time(1, 2, 3), pa.time32("s")) == hash_of(datetime.time(1, 2, 3), pa.time64("ns"))
    assert hash_of(datetime.timedelta(1), pa.duration("s")) == hash_of(datetime.timedelta(1), pa.duration("ns"))
    strings = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    assert len({hash_of("ä", kind) for kind in strings}) == 1
    assert len({hash_of(b"abc", kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(3))}) == 1
    lists = (pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 2))
    assert len({hash_of([1, 2], kind) for kind in lists}) == 1


def test_equal_decimals_of_any_scale() -> None:
    kinds = (
        pa.decimal128(38, 18),
        pa.decimal128(5, 1),
        pa.decimal256(50, 3),
        pa.decimal32(6, 2),
        pa.decimal64(9, 1),
    )
    for value in (D("1.5"), D("-10"), D("0"), D("100")):
        assert len({hash_of(value, kind) for kind in kinds}) == 1
    assert len({hash_of(v, kinds[0]) for v in (D("1"), D("10"), D("-1"), D("0.1"), D("0"))}) == 5
    long = [D("12345678901234567890.123456789012345678"), D("12345678901234567890.123456789012345679")]
    assert len(set(hashed(pa.array(long, kinds[0])))) == 2


def test_zeros_nans_and_nulls() -> None:
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    assert hash_of(0.0, pa.float64()) == hash_of(-0.0, pa.float64())
    assert len({*hashed(pa.array(other_nan, from_pandas=False)), hash_of(float("nan"), pa.float64())}) == 1
    nan_or_null = pa.array([float("nan"), None], pa.float64(), from_pandas=False)
    assert len(set(hashed(nan_or_null))) == 2
    nulls = {hash_of(None, kind) for kind in (pa.int64(), pa.string(), pa.null(), pa.list_(pa.int8()), pa.bool_())}
    assert len(nulls) == 1
    empty = [hash_of(0, pa.int64()), hash_of("", pa.string()), hash_of([], pa.list_(pa.int8())), hash_of(0.0, pa.float64())]
    assert nulls.isdisjoint(empty)
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert hashed(coded) == [hash_of("a", pa.string()), *nulls, *nulls]


def test_the_order_counts_in_lists_and_columns_but_not_in_maps() -> None:
    assert hash_of([1, 2], pa.list_(pa.int64())) != hash_of([2, 1], pa.list_(pa.int64()))
    assert hash_of([[1], []], pa.list_(pa.list_(pa.int64()))) != hash_of([[], [1]], pa.list_(pa.list_(pa.int64())))
    assert hash_of([None], pa.list_(pa.int64())) != hash_of([], pa.list_(pa.int64()))
    kind = pa.map_(pa.string(), pa.int64())
    assert hash_of({"a": 1, "b": 2}, kind) == hash_of({"b": 2, "a": 1}, kind)
    assert hash_of({"a": 1, "b": 2}, kind) != hash_of({"a": 2, "b": 1}, kind)
    a, b = pa.array([1]), pa.array([2])
    assert hashed(a, b) != hashed(b, a)
    assert hashed(a, a) != hashed(b, b)


def test_what_lies_under_a_null_does_not_count() -> None:
    mask = pa.array([True, False]).buffers()[1]
    numbers = pa.Array.from_buffers(pa.int64(), 2, [mask, pa.array([5, 77]).buffers()[1]])
    assert hashed(numbers) == hashed(pa.array([5, None]))
    children = [pa.array([1, 2])]
    structs = pa.StructArray.from_arrays(children, ["a"], mask=pa.array([False, True]))
    assert hashed(structs) == hashed(pa.array([{"a": 1}, None], structs.type))


def test_an_extension_type_is_hashed_by_its_storage() -> None:
    key = uuid.UUID(int=7).bytes
    assert hashed(pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key], pa.binary(16)))) == [hash_of(key, pa.binary())]


def test_a_type_that_cannot_be_a_key_is_named() -> None:
    for kind in (pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.int64())):
        array = pa.nulls(1, kind) if kind == pa.month_day_nano_interval() else pa.RunEndEncodedArray.from_arrays([1], [5])
        with pytest.raises(OptionError, match="cannot be a key"):
            hashed(array)


def test_keys_that_are_missing() -> None:
    batch = pa.record_batch({"route": [1]})
    with pytest.raises(OptionError, match="did you mean 'route'"):
        routed(Hash(), batch, ("rout",), 0, 2)
    with pytest.raises(OptionError, match="grouping by key needs a key: name its columns"):
        routed(Hash(), batch, (), 0, 2)


def test_empty_batches() -> None:
    for kind, _ in VALUES.values():
        empty = pa.record_batch({"k": pa.array([], kind)})
        assert routed(Hash(), empty, ("k",), 0, 5).shape == (0,)


def uniform(route: npt.NDArray[np.int64], width: int) -> bool:
    """Chi-square against the uniform distribution, as a normal deviate (Wilson and Hilferty, 1931)."""
    expected, freedom = len(route) / width, width - 1
    chi2 = float(np.sum((np.bincount(route, minlength=width) - expected) ** 2) / expected)
    spread = 2 / (9 * freedom)
    return bool(abs((chi2 / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5 < 4.5)  # fails with a probability of 1 in 150,000


@pytest.mark.parametrize("width", [2, 7, 16, 256])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_hash_is_uniform(width: int, seed: int) -> None:
    rows = 20_000
    numbers = np.arange(rows)
    keys = {
        "in turn": pa.array(numbers),
        "multiples": pa.array(numbers * 1024),
        "floats": pa.array(numbers / 8),
        "strings": pa.array([f"key-{n}" for n in numbers]),
        "times": pa.array(numbers * 60_000_000, pa.timestamp("us", "UTC")),
        "lists": pa.array([[n % 200, n // 200] for n in numbers.tolist()]),
    }
    for name, values in keys.items():
        assert uniform(routed(Hash(seed), pa.record_batch({"k": values}), ("k",), 0, width), width), name
    pairs = pa.record_batch({"a": numbers % 200, "b": numbers // 200})
    assert uniform(routed(Hash(seed), pairs, ("a", "b"), 0, width), width)


def test_seeds_are_independent() -> None:
    for values in (pa.array(range(10_000)), pa.array([str(n) for n in range(10_000)])):
        batch = pa.record_batch({"k": values})
        routes = [routed(Hash(seed), batch, ("k",), 0, 8) for seed in (0, 1)]
        assert uniform(routes[0] * 8 + routes[1], 64)


PINNED = """
import datetime, decimal, pyarrow as pa
from springtide.policy.group.keys import key_hashes
batch = pa.record_batch({
    "i": pa.array([7, None]), "f": pa.array([0.5, -0.0]), "s": ["Graz", ""], "b": [b"x", None],
    "t": pa.array([0, 1], pa.timestamp("us", "UTC")), "d": [decimal.Decimal("1.50"), None],
    "l": [[1, 2], []], "r": [{"a": "x"}, None],
})
print([hex(h) for h in key_hashes(batch, tuple(batch.schema.names)).tolist()])
"""


def test_hash_never_changes() -> None:
    """A checkpoint outlives a release: with another hash, keys would part from their state."""
    made = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "['0x637230a76ac3a536', '0x7dc7c7678573210d']"


def test_a_route_that_would_lose_records_is_refused() -> None:
    share = Share(3, width=2)
    for wrong in ([0, 1], [0, 1, 2], [0, -1, 1], [[0, 1, 1]]):
        with pytest.raises(OptionError, match=r"'mine' of operator 'work' must return a target from 0 to 1 for each of 3"):
            checked(np.array(wrong), share, "mine", "work")
    right = np.array([0, 1, 1])
    assert checked(right, share, "mine", "work") is right
    assert checked(np.zeros(0, dtype=np.int64), Share(0, width=1), "mine", "work").shape == (0,)
