"""Keys that are meant to be taken for one another, against plain Python dictionaries: nothing is mixed, whatever the hash."""

from __future__ import annotations

import datetime
import decimal
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from hostile.key_values import KINDS, plain, stored, values
from processors.state_machine import SECOND, Machine
from spark.state.test_reading import Case, Event, imported, invoked, topology
from springtide.errors import OptionError
from springtide.model.costs import Hashes
from springtide.model.state import Group, Step
from springtide.policy.group.keys import key_hashes, mix
from springtide.policy.group.same import comparable, same_keys
from springtide.spark.state.reading import reading
from springtide.spark.state.stepping import StateLayout

SEEDS = some.integers(0, 2**64 - 1)
TTL_US = 5 * SECOND // 2
RING, FORGET = 7, -1
RANG = 1_000


class Sums:
    """The sum of a key's numbers. RING sets a timer that adds RANG, FORGET forgets the key."""

    variables = pa.schema([("total", pa.int64()), ("due", pa.int64())])
    event_timer = None
    clock_timer = "due"

    def step(self, group: Group) -> Step:
        totals = group.old.column("total").fill_null(0).to_pylist()
        due: list[int | None] = group.old.column("due").to_pylist()
        for key in np.flatnonzero(group.due).tolist():
            totals[key], due[key] = totals[key] + RANG, None
        for key, number in zip(group.of.tolist(), group.records.column("number").to_pylist(), strict=True):
            totals[key], due[key] = changed(totals[key], due[key], number, group.now)
        new = pa.RecordBatch.from_arrays([pa.array(totals, pa.int64()), pa.array(due, pa.int64())], schema=self.variables)
        gone = np.array([total == 0 and at is None for total, at in zip(totals, due, strict=True)], dtype=np.bool_)
        output = pa.RecordBatch.from_arrays([*group.keys.columns, new.column(0)], names=[*group.keys.schema.names, "total"])
        return Step(np.ones(len(gone), dtype=np.bool_), gone, new, output, None, ())


def changed(total: int, due: int | None, number: int, now: int) -> tuple[int, int | None]:
    if number == FORGET:
        return 0, None
    return total + number, now + 3 * SECOND // 2 if number == RING else due


class Model:
    """The same with a dictionary."""

    def __init__(self, ttl_us: int | None) -> None:
        self._ttl_us = ttl_us
        self._layout: dict[Hashable, tuple[int, int | None, int]] = {}

    def run(self, records: list[tuple[Hashable, int]], now: int) -> Counter[Any]:
        """What each key tells in a batch."""
        states = self.living(now)
        worked: dict[Hashable, tuple[int, int | None]]
        worked = {key: (RANG + total, None) for key, (total, at) in states.items() if at is not None and at <= now}
        for key, number in records:
            total, due = worked.get(key) or states.get(key, (0, None))
            worked[key] = changed(total, due, number, now)
        for key, (total, due) in worked.items():
            self._layout.pop(key, None)
            if total or due is not None:
                self._layout[key] = total, due, now
        return Counter((key, total) for key, (total, _) in worked.items())

    def living(self, now: int) -> dict[Hashable, tuple[int, int | None]]:
        ttl = self._ttl_us
        return {key: (total, due) for key, (total, due, at) in self._layout.items() if ttl is None or at + ttl >= now}


def machine(folder: Path, kinds: list[pa.DataType], seeds: tuple[int, int], ttl_us: int | None = None) -> Machine:
    names = [f"k{i}" for i in range(len(kinds))]
    schema = pa.schema([*zip(names, kinds, strict=True), ("number", pa.int64())])
    return Machine(StateLayout("sums", Sums(), tuple(names), schema, 8, seeds, str(folder), ttl_us))


def row(key: tuple[Any, ...], number: int) -> dict[str, Any]:
    return {**{f"k{i}": value for i, value in enumerate(key)}, "number": number}


def constant(batch: pa.RecordBatch, key: tuple[str, ...], seed: int = 0) -> Hashes:
    return np.full(batch.num_rows, 5, dtype=np.uint64)


def one_bit(batch: pa.RecordBatch, key: tuple[str, ...], seed: int = 0) -> Hashes:
    return key_hashes(batch, key, seed) >> np.uint64(63) << np.uint64(63)


HASHES: dict[str, Callable[..., Hashes]] = {"as it is": key_hashes, "constant": constant, "of one bit": one_bit}


def compared(folder: Path, data: some.DataObject) -> None:
    """One set of keys in state and in a dictionary, through batches, timers, merges and a time to live."""
    kinds = data.draw(some.lists(KINDS, min_size=1, max_size=2))
    keys = data.draw(some.lists(some.tuples(*map(values, kinds)), min_size=1, max_size=8))
    records = some.tuples(some.sampled_from(keys), some.sampled_from([FORGET, 1, 2, 3, RING]))
    batches = data.draw(some.lists(some.lists(records, max_size=10), min_size=1, max_size=4))
    ttl_us = data.draw(some.sampled_from([None, TTL_US]))
    tested = machine(folder, kinds, (data.draw(SEEDS), data.draw(SEEDS)), ttl_us)
    model = Model(ttl_us)

    def key_of(found: dict[str, Any], prefix: str = "") -> Hashable:
        return tuple(plain(stored(found[f"{prefix}k{i}"], kind), kind) for i, kind in enumerate(kinds))

    with mock.patch("springtide.spark.state.stepping.key_hashes", data.draw(some.sampled_from(list(HASHES.values())))):
        for batch in batches:
            now, rows = tested.now, [row(*record) for record in batch]
            output = tested.run(rows, width=data.draw(some.integers(1, 2)))
            assert Counter((key_of(one), one["total"]) for one in output) == model.run(
                [(key_of(r), r["number"]) for r in rows], now
            )
            tested.merge(data.draw(some.integers(0, len(tested.catalog.runs))))
        assert {key_of(one, "key."): (one["state.total"], one["state.due"]) for one in tested.rows()} == model.living(
            tested.now
        )


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(some.data())
def test_state_equals_a_dictionary_for_keys_of_any_type_and_any_seed(data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own look through all earlier ones for a number
        compared(Path(folder), data)


@pytest.mark.soak
@settings(max_examples=int(os.environ.get("SPRINGTIDE_KEY_SETS", "10000")), suppress_health_check=list(HealthCheck))
@given(some.data())
def test_state_equals_a_dictionary_for_ten_thousand_sets_of_keys(data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own look through all earlier ones for a number
        compared(Path(folder), data)


@settings(max_examples=150)
@given(some.data(), SEEDS)
def test_hashes_and_comparisons_agree_on_what_is_the_same_key(data: some.DataObject, seed: int) -> None:
    kind = data.draw(KINDS)
    drawn = data.draw(some.lists(values(kind), min_size=1, max_size=6))
    column = pa.array(drawn, kind, from_pandas=False)
    keys = [plain(value, kind) for value in column.to_pylist()]
    hashes = key_hashes(pa.record_batch({"k": column}), ("k",), seed).tolist()
    known = comparable(pa.record_batch({"k": column}))
    for shift in range(len(keys)):
        places = [(i + shift) % len(keys) for i in range(len(keys))]
        same = [one == keys[other] for one, other in zip(keys, places, strict=True)]
        ours, theirs = pa.record_batch({"k": column}), pa.record_batch({"k": column.take(pa.array(places))})
        assert same_keys(ours, theirs).tolist() == same
        assert [hashes[i] == hashes[other] for i, other in enumerate(places)] == same
        assert [known[i] == known[other] for i, other in enumerate(places)] == same


def test_what_is_equal_under_one_type_is_another_key_under_another() -> None:
    day = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
    ones = [
        pa.array([1], pa.int64()), pa.array([1.0]), pa.array(["1"]), pa.array([b"1"]), pa.array([True]), pa.array([[1]]),
        pa.array([{"a": 1}]), pa.array([{"a": {"a": 1}}]), pa.array([[[1]]]), pa.array([decimal.Decimal(1)]),
        pa.array([day.date()]), pa.array([day]), pa.array([datetime.timedelta(1)]), pa.array([datetime.time(1)]),
        pa.array([[("1", 1)]], pa.map_(pa.string(), pa.int64())), pa.array([None], pa.int64()),
    ]  # fmt: skip
    for seed in (0, 1, 2**64 - 1):
        assert len({int(key_hashes(pa.record_batch({"k": one}), ("k",), seed)[0]) for one in ones}) == len(ones)
        signs = [pa.array([-1], pa.int64()), pa.array([2**64 - 1], pa.uint64())]
        assert len({int(key_hashes(pa.record_batch({"k": one}), ("k",), seed)[0]) for one in signs}) == 2


# What an outsider could compute while numbers in structs, and nulls, were hashed without the seed


def unmixed(mixed: int) -> int:
    """The number that splitmix64 makes this of."""
    bits = 2**64

    def unshifted(x: int, by: int) -> int:
        y = x
        for _ in range(64 // by):
            y = x ^ (y >> by)
        return y

    x = unshifted(mixed, 31) * pow(0x94D049BB133111EB, -1, bits) % bits
    x = unshifted(x, 27) * pow(0xBF58476D1CE4E5B9, -1, bits) % bits
    return (unshifted(x, 30) - 0x9E3779B97F4A7C15) % bits


def mixed(x: int) -> int:
    return int(mix(np.array([x], dtype=np.uint64))[0])


def signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def colliding_places(count: int) -> list[dict[str, int]]:
    """Structs that all had one hash, whatever the seed: 3 was the mark of a struct."""
    found = []
    for x in range(count):
        chained = mixed(mixed(mixed(3) ^ mixed(x)))
        found.append({"x": x, "y": signed(unmixed(0xC0FFEE ^ chained))})
    return found


PLACE = pa.struct([("x", pa.int64()), ("y", pa.int64())])


def test_the_numbers_are_inverted() -> None:
    for number in (0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF):
        assert mixed(unmixed(number)) == number


def test_five_structs_that_were_crafted_for_one_hash_stay_five_keys(tmp_path: Path) -> None:
    tested = machine(tmp_path, [PLACE], (11, 22))
    places = colliding_places(5)
    for _ in range(4):
        tested.run([row((place,), 1) for place in places for _ in range(5)])
    assert sorted((one["key.k0"]["x"], one["state.total"]) for one in tested.rows()) == [(x, 20) for x in range(5)]
    assert tested.catalog.keys == 5


def test_a_null_does_not_share_the_state_of_any_integer(tmp_path: Path) -> None:
    null = 0x6E756C6C6E756C6C  # the hash that every null had
    tested = machine(tmp_path, [pa.int64()], (11, 22))
    twin = signed(unmixed(null))
    tested.run([row((None,), 1), row((twin,), 2)])
    tested.run([row((twin,), 2), row((None,), 1)])
    assert {one["key.k0"]: one["state.total"] for one in tested.rows()} == {None: 2, twin: 4}


def routes(keys: list[Any], kind: pa.DataType, seed: int) -> npt.NDArray[np.int64]:
    hashes = key_hashes(pa.record_batch({"k": pa.array(keys, kind)}), ("k",), seed)
    return (hashes % np.uint64(8)).astype(np.int64)


@pytest.mark.parametrize("seed", [1, 2**40, 2**64 - 1])
def test_keys_that_were_chosen_for_one_task_are_spread_by_a_secret(seed: int) -> None:
    numbers = [n for n, target in enumerate(routes(list(range(8_000)), pa.int64(), 0).tolist()) if target == 3]
    assert np.bincount(routes(numbers, pa.int64(), seed), minlength=8).max() < len(numbers) / 4
    places = colliding_places(64)
    assert len(set(key_hashes(pa.record_batch({"k": pa.array(places, PLACE)}), ("k",), seed).tolist())) == 64


# What reads state without a run


def test_keys_that_share_all_hashes_are_shown_exported_and_imported_apart(tmp_path: Path) -> None:
    names = [None, "", "a", "b", "c"]
    with (
        mock.patch("springtide.spark.state.stepping.key_hashes", constant),
        mock.patch("springtide.spark.state.reading.key_hashes", constant),
    ):
        case = Case(tmp_path / "checkpoint", topology())
        for numbers in ((1, 2, 3, 4, 5), (10, 20, 30, 40, 50), (100, -1, 300, -1, 500)):
            case.run(*(Event(name, 0, number) for name, number in zip(names, numbers, strict=True)))
        totals = {(None, 0): 111, ("a", 0): 333, ("c", 0): 555}
        with reading(case.root, "keep") as state:
            rows = [one for part in state.rows() for one in part.to_pylist()]
            assert {(one["key.route"], one["key.day"]): one["state.total"] for one in rows} == totals
            for name in names:
                found = state.row(pa.RecordBatch.from_pylist([{"route": name, "day": 0}], schema=state.key_schema()))
                assert (None if found is None else found.column("state.total")[0].as_py()) == totals.get((name, 0))
        for suffix in (".json", ".parquet"):
            file = tmp_path / f"exported{suffix}"
            invoked("export", case.root, "keep", file)
            other = imported(topology(), file, tmp_path / f"other{suffix}")
            assert other.state() == case.state() and other.machine.catalog.keys == len(totals)
        file = tmp_path / "exported.json"
        file.write_text(file.read_text() + file.read_text().splitlines()[0])  # the first key once more, behind the others
        with pytest.raises(OptionError, match="two rows have the key"):
            imported(topology(), file, tmp_path / "twice")
