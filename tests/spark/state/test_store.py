"""State in segments against a plain dict: random batches, widths, shard maps, retries, lost attempts, merges and damage."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import springtide as st
from processors.state_machine import Machine
from springtide.errors import CheckpointError, RunError, SetupError
from springtide.model import schema as schemas
from springtide.policy.group.shards import shards_of
from springtide.policy.shard import spread
from springtide.spark.state import lookup, segment
from springtide.spark.state.per_key import PerKey
from springtide.spark.state.stepping import StateLayout, Stepping, Version


@dataclasses.dataclass(frozen=True)
class Event:
    key: str
    number: int


@dataclasses.dataclass(frozen=True)
class Seen:
    key: str
    total: int
    numbers: list[int]


class Remember(st.Processor):
    """Everything that came, in order; a negative number forgets the key."""

    total = st.value(int, default=0)
    numbers = st.list_of(int)
    times = st.map_of(int, int)

    def process(self, key: str, records: list[Event], state: Any) -> Iterator[Seen]:
        for record in records:
            if record.number < 0:
                state.clear()
                continue
            state.total += record.number
            state.numbers.append(record.number)
            state.times[record.number] = state.times.get(record.number, 0) + 1
        yield Seen(key, state.total, list(state.numbers))


EVENTS = schemas.schema_of(Event)


def layout_in(folder: Path, processor: Any = None, **options: Any) -> StateLayout:
    function = PerKey(processor or Remember(), Event, schemas.readers(Event, EVENTS), schemas.schema_of(Seen), Seen)
    return StateLayout("remember", function, ("key",), EVENTS, options.pop("shards", 16), (11, 22), str(folder), **options)


def contents(machine: Machine) -> dict[str, Any]:
    return {
        row["key.key"]: (row["state.total"], row["state.numbers"], dict(row["state.times"])) for row in machine.rows()
    }  # fmt: skip


def rows_of(events: list[Event]) -> list[dict[str, Any]]:
    return [vars(event) for event in events]


def expected(model: dict[str, list[int]], events: list[Event]) -> list[tuple[str, int]]:
    """The same with a dict; the output of each key."""
    reported = []
    for key in dict.fromkeys(event.key for event in events):
        numbers = model.setdefault(key, [])
        for event in (event for event in events if event.key == key):
            numbers[:] = [] if event.number < 0 else [*numbers, event.number]
        reported.append((key, sum(numbers)))
        if not numbers:
            del model[key]
    return sorted(reported)


def as_stored(model: dict[str, list[int]]) -> dict[str, Any]:
    return {key: (sum(n), n, {one: n.count(one) for one in n}) for key, n in model.items()}


events = some.lists(some.builds(Event, some.sampled_from([f"k{i}" for i in range(40)]), some.integers(-1, 9)), max_size=30)
fates = some.sampled_from(["commit", "lost", "retried", "merge"])
steps = some.lists(some.tuples(events, some.integers(1, 5), fates, some.integers(0, 2**32)), min_size=1, max_size=14)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_random_plans_crashes_and_retries_leave_what_a_dict_has(tmp_path_factory: Any, history: list[Any]) -> None:
    machine, model = Machine(layout_in(tmp_path_factory.mktemp("state"))), dict[str, list[int]]()
    for batch, width, fate, seed in history:
        owner = np.array([random.Random(seed + i).randrange(width) for i in range(16)])
        if fate == "lost":  # the attempt wrote its files, and then everything died
            machine.attempt(rows_of(batch), owner, width)
            owner = spread(16, width)
        receipts, output = machine.attempt(rows_of(batch), owner, width)
        if fate == "retried":  # both wrote the same; the second counts
            assert machine.attempt(rows_of(batch), owner, width)[1] == output
            receipts, output = machine.attempt(rows_of(batch), owner, width)
        reported = sorted((row["key"], row["total"]) for row in output)
        assert reported == expected(model, batch)
        machine.commit(receipts)
        if fate == "merge":
            machine.merge(seed % (len(machine.catalog.runs) + 1))
        assert machine.catalog.keys == len(model)
    assert contents(machine) == as_stored(model)


def test_merging_as_it_is_due_keeps_the_runs_few(tmp_path: Path) -> None:
    machine, model, chance = Machine(layout_in(tmp_path)), dict[str, list[int]](), random.Random(3)
    for _ in range(150):
        batch = [Event(f"k{chance.randrange(60)}", chance.randrange(5)) for _ in range(8)]
        receipts, _ = machine.attempt(rows_of(batch), spread(16, 2), 2)
        machine.commit(receipts)
        expected(model, batch)
        due = machine.catalog.merge_due()
        machine.merge(len(due))
        assert len(machine.catalog.runs) <= 20
    assert contents(machine) == as_stored(model)


def test_a_record_in_a_task_that_does_not_own_its_shard_is_refused(tmp_path: Path) -> None:
    machine = Machine(layout_in(tmp_path))
    rows = machine.arriving(rows_of([Event("a", 1)]))
    stepping = Stepping(machine.layout, Version((), 0), np.zeros(16, dtype=np.bool_), "x.state", 3)
    with pytest.raises(RunError, match=r"'remember': task 3 got a record of shard \d+, which is another task's"):
        list(stepping.run(rows))
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_nothing_came_for_is_forgotten(tmp_path: Path) -> None:
    machine = Machine(layout_in(tmp_path, ttl_us=3_000_000))
    for batch in (
        [Event("a", 1), Event("b", 5)],
        [Event("a", 1)],
        [Event("a", 1)],
        [Event("a", 1)],
        [Event("a", 1), Event("b", 5)],
    ):
        receipts, output = machine.attempt(rows_of(batch), spread(16, 1), 1)
        machine.commit(receipts)
    assert {row["key"]: row["total"] for row in output} == {"a": 5, "b": 5}  # b began anew, 4 s after its first record
    assert machine.catalog.keys == 2
    machine.now += 60_000_000
    machine.merge(len(machine.catalog.runs))
    assert machine.catalog.keys == 0 and machine.catalog.runs == ()


def test_a_failing_key_keeps_its_state_and_the_others_go_on(tmp_path: Path) -> None:
    class Fussy(Remember):
        def process(self, key: str, records: list[Event], state: Any) -> Iterator[Seen]:
            yield from super().process(key, records, state)
            if records[0].number == 7:
                raise ValueError("seven")
            if records[0].number == 8:
                state.total = "eight"

    machine = Machine(layout_in(tmp_path, Fussy()))
    machine.commit(machine.attempt(rows_of([Event("a", 1), Event("b", 1), Event("c", 1)]), spread(16, 1), 1)[0])
    receipts, output = machine.attempt(rows_of([Event("a", 7), Event("b", 2), Event("c", 8)]))
    assert {row["key"] for row, _ in machine.failed} == {"a", "c"}
    assert [row["key"] for row in output] == ["b"]
    machine.commit(receipts)
    assert {key: total for key, (total, _, _) in contents(machine).items()} == {"a": 1, "b": 3, "c": 1}


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    machine = Machine(layout_in(tmp_path))
    machine.commit(machine.attempt(rows_of([Event(f"k{i}", i) for i in range(50)]), spread(16, 1), 1)[0])
    (file,) = machine.catalog.runs[0].files
    whole = (tmp_path / file.name).read_bytes()
    for damaged in (
        whole[:-1],
        whole[: len(whole) // 2],
        b"",
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
        whole + b"x",
    ):
        path = tmp_path / f"damaged-{len(damaged)}-{hash(damaged)}.state"
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=str(path)):
            segment.verify(str(path))
    with pytest.raises(CheckpointError, match="it is gone"):
        segment.verify(str(tmp_path / "nowhere.state"))


class Alarmed(Remember):
    """Has a timer for every key."""

    def process(self, key: str, records: list[Event], state: Any) -> Iterator[Seen]:
        state.set_timer(state.now, "processing")
        yield from super().process(key, records, state)

    def on_timer(self, key: str, timer: st.Timer, state: Any) -> Iterator[Seen]:
        yield Seen(key, state.total, [])


def test_timers_of_other_tasks_shards_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "CHUNK_BYTES", 1)  # a chunk for each shard
    machine = Machine(layout_in(tmp_path, Alarmed()))
    machine.run(rows_of([Event(f"k{n}", 1) for n in range(100)]), width=1)
    (file,) = (segment.Segment(f"{tmp_path}/{name}") for name in machine.files)
    read = []

    def watched(number: int) -> Any:
        read.append(number)
        return segment.Segment.read(file, number)

    monkeypatch.setattr(file, "read", watched)
    found = lookup.due([file], str(machine.layout.timers[1]), machine.now, True, np.arange(16) == 3)
    assert set(shards_of(pa.Table.from_batches(found)[segment.HASH].to_numpy(), 16).tolist()) == {3}
    assert [file.chunks[number].first_shard for number in read] == [3]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(layout_in(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment.Writer, "finish", full)
    with pytest.raises(OSError, match="No space left"):
        machine.run(rows_of([Event("a", 1)]))
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_the_folder_does_not_make_its_own(tmp_path: Path) -> None:
    machine = Machine(layout_in(tmp_path / "mount"))
    (tmp_path / "mount").rmdir()
    with pytest.raises(SetupError, match=r"mount, where state lies, is not there on node .*; mount it"):
        machine.run(rows_of([Event("a", 1)]))
    assert list(tmp_path.iterdir()) == []


def test_a_merge_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(layout_in(tmp_path))
    machine.run(rows_of([Event("a", 1)]))
    machine.run(rows_of([Event("a", 2)]))
    before = sorted(tmp_path.iterdir())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment.Writer, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        machine.merge(2)
    assert sorted(tmp_path.iterdir()) == before
