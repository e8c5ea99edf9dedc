"""Functions that raise, allocate or return anything, in a task without Spark: each record has its own fate."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from processors.state_machine import SECOND, Machine
from springtide.errors import OptionError, TopologyError
from springtide.spark.shared.program import Staging, compile_topology
from springtide.spark.shared.progress import Crashed
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import task as tasks
from springtide.spark.task.account import Stop
from springtide.spark.task.chunk import Chunk
from springtide.spark.task.task import Task

NOTHING = Shipment("nothing", cloudpickle.dumps({}))
PLAN = StagePlan(0, {}, 1, 1, NOTHING)


@dataclass(frozen=True)
class Item:
    n: int


class Untellable(BaseException):
    def __str__(self) -> str:
        raise SystemExit("not even this")


def item(draw: st.Draw) -> Item:
    return Item(draw.index)


def recurse(depth: int = 0) -> int:
    return 1 + recurse(depth + 1)


def throw(error: BaseException) -> Any:
    raise error


FATES: dict[str, Callable[[], Any]] = {
    "sys.exit": lambda: throw(SystemExit(3)),
    "Ctrl-C": lambda: throw(KeyboardInterrupt()),
    "generator's end": lambda: throw(GeneratorExit()),
    "iterator's end": lambda: throw(StopIteration()),
    "an error without a text": lambda: throw(Untellable()),
    "more memory than there is": lambda: bytearray(2**46),
    "endless recursion": recurse,
    "no record": lambda: None,
    "the class of one": lambda: Item,
    "a record with nonsense in it": lambda: Item("x"),  # type: ignore[arg-type]
    "what fits no column": lambda: Item(2**70),
}


def task_of(kind: str, function: Callable[[Item], Any], **options: Any) -> tuple[Task, Any]:
    stream = st.source.generate(item, rate=1.0)
    made = (
        stream.filter(function, name="work", **options)
        if kind == "filter"
        else (getattr(stream, kind)(function, name="work", schema=Item, **options))
    )
    program = compile_topology(made.to(st.sink.discard()).named("job"), {}, {}, Staging("nowhere", "json"))
    return Task(program, PLAN, 0, 0, 0), program.nodes[1]


def hostile(kind: str, fate: Callable[[], Any]) -> Callable[[Item], Any]:
    """Does the worst at record 2, and passes on the others."""

    def work(one: Item) -> Any:
        if one.n != 2:
            return one
        return fate()

    def many(one: Item) -> Iterator[Any]:
        yield one
        if one.n == 2:
            yield fate()

    return many if kind == "flat_map" else work


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("kind", ["map", "flat_map"])
def test_whatever_a_function_does_is_the_fate_of_its_record_alone(kind: str, fate: str) -> None:
    task, node = task_of(kind, hostile(kind, FATES[fate]))
    task.receive(node, Chunk(node.input_schema, records=[Item(n) for n in range(5)]))
    assert len(task.account.letters) == 1
    assert task.account.letters[0].operator == "work"
    assert task.account.sinks == {"discard": 4 + (kind == "flat_map" and fate in MISFITS)}


MISFITS = ("a record with nonsense in it", "what fits no column")
"""Found when the records become columns: of a flat_map's records then, the others pass."""


@pytest.mark.parametrize("fate", [fate for fate in FATES if fate.endswith(("exit", "C", "end", "text", "is", "recursion"))])
def test_a_filter_that_fails_keeps_its_record_out(fate: str) -> None:
    task, node = task_of("filter", hostile("filter", FATES[fate]))
    task.receive(node, Chunk(node.input_schema, records=[Item(n) for n in range(1, 5)]))
    assert [json.loads(letter.record) for letter in task.account.letters] == [{"n": 2}]
    assert task.account.sinks == {"discard": 3}


@pytest.mark.parametrize(("kind", "left"), [("map", [0, 1, 3, 4]), ("filter", [1, 3, 4]), ("flat_map", [0, 1, 3, 4])])
def test_a_record_that_is_put_aside_is_not_processed_and_the_others_are(
    kind: str, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second of two chunks, also where an error would stop the run."""
    seen: list[int] = []

    def work(one: Item) -> Any:
        seen.append(one.n)
        return [one] if kind == "flat_map" else one.n > 0 if kind == "filter" else one

    monkeypatch.setattr(tasks, "aside", lambda *_: {1: {7: 4}})
    task, node = task_of(kind, work, on_error="stop")
    for _ in range(2):
        task.receive(node, Chunk(node.input_schema, records=[Item(n) for n in range(5)]))
    assert seen == [0, 1, 2, 3, 4, 0, 1, 3, 4]
    (letter,) = task.account.letters
    assert letter.error == "Crashed: this record killed its Python worker 4 times"
    assert json.loads(letter.record) == {"n": 2}
    assert task.account.sinks == {"discard": 4 + (kind != "filter") + len(left)}


def test_sys_exit_stops_a_run_whose_errors_do() -> None:
    task, node = task_of("map", hostile("map", FATES["sys.exit"]), on_error="stop")
    with pytest.raises(Stop, match="SystemExit: 3"):
        task.receive(node, Chunk(node.input_schema, records=[Item(n) for n in range(5)]))


def test_on_crash_is_checked_where_it_is_written() -> None:
    stream = st.source.generate(item, rate=1.0)
    with pytest.raises(OptionError, match="on_crash='dead'; did you mean 'dead-letter'"):
        stream.map(lambda one: one, schema=Item, name="work", on_crash="dead")
    with pytest.raises(TopologyError, match="on_crash= is not allowed, because Spark plans it"):
        stream.sql(lambda frame: frame, schema=Item, on_crash="stop")


class Later(st.Processor):
    """Counts records; each sets a timer a second later, which tells the count."""

    count = st.value(int, default=0)

    def process(self, key: int, records: list[Item], state: st.State) -> Iterator[Item]:
        state.count += len(records)
        state.set_timer(state.now + datetime.timedelta(seconds=1), "processing")
        return iter(())

    def on_timer(self, key: int, timer: st.Timer, state: st.State) -> Iterator[Item]:
        yield Item(state.count)


def fail_call(number: int) -> Callable[[], None]:
    """What a task does before a processor's calls if this one killed its worker."""
    calls = iter(range(1_000))

    def before_call() -> None:
        if next(calls) == number:
            raise Crashed(4)

    return before_call


def later(folder: Path) -> Machine:
    stream = st.source.generate(item, rate=1.0).key_by("n").stateful(Later, on_crash="dead-letter")
    return Machine.of(stream.to(st.sink.discard()).named("job"), folder)


def test_of_a_call_that_is_put_aside_the_keys_records_fail_and_its_state_stays(tmp_path: Path) -> None:
    tested = later(tmp_path)
    tested.run([{"n": 1}, {"n": 1}], width=1)
    tested.before_call = fail_call(1)  # after that of its timer
    assert tested.run([{"n": 1}, {"n": 1}], width=1) == []
    assert [(row, str(error)) for row, error in tested.failed] == [
        ({"n": 1}, "this record killed its Python worker 4 times")
    ] * 2
    tested.before_call = fail_call(-1)
    assert tested.run([], width=1) == [{"n": 2}], "as if the two had never come"


def test_a_timer_that_is_put_aside_does_not_come_again(tmp_path: Path) -> None:
    tested = later(tmp_path)
    tested.run([{"n": 1}, {"n": 2}], width=1)
    tested.now += SECOND
    tested.before_call = fail_call(0)
    assert tested.run([], width=1) == [{"n": 1}], "the timer of the other key"
    assert len(tested.failed) == 1
    tested.before_call = fail_call(-1)
    tested.now += SECOND
    assert (tested.run([], width=1), tested.failed) == ([], [])
