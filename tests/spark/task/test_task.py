"""What runs inside a task, without Spark: no record is lost or doubled, whatever the graph, the widths and the order."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import springtide as st
from springtide.api import stream as streams
from springtide.errors import OptionError
from springtide.model.schema import as_schema
from springtide.model.source import Enumerator, Memory, Range, Reader, Records, Source
from springtide.model.topology import Topology
from springtide.policy.group import Grouping, Route, Share, Table
from springtide.policy.group.hash import Hash
from springtide.policy.group.round_robin import RoundRobin
from springtide.policy.group.shards import OWNER, Shards
from springtide.processors.timed import Timed

pytest.importorskip("pyspark")  # blocks, programs and workers are in the package that needs it

from processors.state_machine import Machine
from springtide.model.report import TaskReport
from springtide.spark.driver import staged
from springtide.spark.shared import blocks
from springtide.spark.shared.blocks import BlockKind
from springtide.spark.shared.program import Program, Staging, compile_topology
from springtide.spark.shared.receipt import Receipt
from springtide.spark.shared.report import Report
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.state.stepping import Version
from springtide.spark.task import context, staging
from springtide.spark.task.entry import EntryStage, Port
from springtide.spark.task.reading import ReadStage
from springtide.spark.task.stage import Stage

NOWHERE = Staging("nowhere", "parquet")
BATCH = 7


@dataclass(frozen=True)
class Item:
    n: int
    k: str


@dataclass(frozen=True)
class Step:
    """A map whose output tells which operators a record came through. Every 19th record fails."""

    salt: int

    def __call__(self, item: Item) -> Item:
        if (item.n + self.salt) % 19 == 0:
            raise ValueError(f"no {item.n}")
        return Item(item.n * 31 + self.salt, item.k)


@dataclass(frozen=True)
class Sieve:
    salt: int

    def __call__(self, item: Item) -> bool:
        return (item.n + self.salt) % 5 != 0


@dataclass(frozen=True)
class Spread:
    """None, one or two out of one; fails after the first of two now and then."""

    salt: int

    def __call__(self, item: Item) -> Iterator[Item]:
        for copy in range((item.n + self.salt) % 3):
            if copy == 1 and item.n % 11 == 0:
                raise ValueError(f"no {item.n}")
            yield Item(item.n * 7 + copy + self.salt, item.k[::-1] if copy else item.k)


@dataclass(frozen=True)
class Given(Source):
    """A source whose ranges carry their records."""

    def begin(self) -> Memory:
        return {}

    def enumerator(self, memory: Memory) -> Enumerator:
        raise AssertionError("no driver in these tests")

    def reader(self, schema: pa.Schema, record: type | None) -> Reader:
        return Handing()


class Handing(Reader):
    """Hands on the records of a range, seven at a time."""

    def read(self, part: Range) -> Iterator[Records]:
        for first in range(0, len(part["items"]), 7):
            items = [Item(*values) for values in part["items"][first : first + 7]]
            yield Records(items, 1_000_000 * np.arange(first, first + len(items)))


def given_items(name: str = "source") -> st.Stream:
    return streams.source(Given(), name, *as_schema(Item, "given"))


def rows_of_spark(name: str = "source") -> st.Stream:
    return st.source.dataframe(lambda spark: None, schema=Item, ordered=True, name=name)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "n", pa.array([value * 2 for value in batch.column("n").to_pylist()], pa.int64()))


@dataclass
class Captured:
    """What sinks and dead letters got: (sink, batch, level, task) → record batches. No file is written."""

    files: dict[tuple[str, str], list[pa.RecordBatch]] = field(default_factory=dict)

    def write(self, place: Staging, sink: str, at: staging.Attempt, batches: list[pa.RecordBatch]) -> staging.Written:
        name = f"part-{at.batch:08d}-{at.level}-{at.gate}-{at.task:05d}"
        assert (sink, name) not in self.files, "the same name twice: publishing one would replace the other"
        self.files[sink, name] = batches
        return staging.Written((Receipt(sink, at.epoch, name, name, sum(batch.num_rows for batch in batches)),))

    def records(self, sink: str) -> list[dict[str, Any]]:
        return [
            row for (of, _), parts in sorted(self.files.items()) if of == sink for part in parts for row in part.to_pylist()
        ]


@dataclass(frozen=True)
class Here:
    """A shipment that stays."""

    here: Any

    def unpacked(self) -> Any:
        return self.here


@dataclass
class Ran:
    """What a batch did: the blocks that every task sent, what was staged, and the reports."""

    sent: dict[tuple[int, str, int], list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    captured: Captured = field(default_factory=Captured)
    reports: list[Report] = field(default_factory=list)

    def note(self, level: int, stage: str, task: int, pairs: Iterator[bytes]) -> list[tuple[int, bytes]]:
        elements = list(pairs)
        sent = [(int.from_bytes(key, "big"), block) for key, block in zip(elements[::2], elements[1::2], strict=True)]
        carried = [(key, block) for key, block in sent if blocks.parse(block).kind is not BlockKind.REPORT]
        self.sent[level, stage, task] = sorted(carried)
        return sent


def of(report: Report, operator: str) -> TaskReport:
    """What a task did for one operator."""
    return next(one for one in report.operators if one.operator == operator)


def compiled(topology: Topology, seed: int = 0) -> Program:
    kinds: dict[str, Grouping] = {"round-robin": RoundRobin(), "auto": RoundRobin(), "hash": Hash()}
    groupings = {o.name: kinds[o.grouping] for o in topology if o.grouping is not None}
    return compile_topology(topology, groupings, {sink.name: NOWHERE for sink in topology.sinks}, NOWHERE, seed=seed)


Rows = dict[str, list[list[Item]]]
"""For each source, its records in partitions."""


def run(topology: Topology, rows: Rows, widths: dict[str, int], order: random.Random, seed: int = 0) -> Ran:
    """The stages of a batch one after another, as Spark would run them; blocks arrive in an order of ``order``'s."""
    program, ran = compiled(topology, seed), Ran()
    ranges, sizes = program.ranges(widths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "task_context", lambda: (BATCH, order.randrange(1000)))
        patch.setattr(staging, "write", ran.captured.write)
        patch.setattr(blocks, "MAX_ROWS", 5)  # several blocks for one target
        moving = list(_enter(program, ran, rows, _plan(topology, 0, ranges, sizes)))
        for level in range(1, len(program.levels)):
            order.shuffle(moving)
            arrived: dict[int, list[bytes]] = defaultdict(list)
            for key, block in moving:
                assert 0 <= key < sizes[level], "no such task"
                arrived[key].append(block)
            stage = Stage(cast(Shipment, Here(program)), _plan(topology, level, ranges, sizes))
            moving = [
                pair for task in range(sizes[level]) for pair in ran.note(level, "stage", task, stage(task, arrived[task]))
            ]
    assert {blocks.parse(block).kind for _, block in moving} <= {BlockKind.REPORT}, "a record that arrives nowhere"
    ran.reports = [Report.decoded(blocks.payload(block)) for _, block in moving]
    return ran


def _plan(topology: Topology, level: int, ranges: Any, sizes: tuple[int, ...]) -> StagePlan:
    routes = {number: Route(operator.key) for number, operator in enumerate(topology)}
    return StagePlan(level, dict(ranges), sizes[level + 1] if level + 1 < len(sizes) else 1, 1, cast(Shipment, Here(routes)))


def _enter(program: Program, ran: Ran, rows: Rows, plan: StagePlan) -> Iterator[tuple[int, bytes]]:
    """The sources that tasks read, then those of Spark side by side, each with a struct column of its own."""
    nodes = [node for node in program.nodes if node.name in rows]
    for node in (node for node in nodes if not node.in_jvm):
        read = ReadStage(cast(Shipment, Here(program)), plan, node.number)
        for split, part in enumerate(rows[node.name]):
            ranges = [{"items": [[one.n, one.k] for one in half]} for half in (part[:14], part[14:])]
            yield from ran.note(0, node.name, split, read(split, [json.dumps(ranges).encode()]))
    kind = pa.struct([("n", pa.int64()), ("k", pa.string())])
    schema = pa.schema([(f"s{position}", kind) for position in range(len(rows))])
    ports = tuple(Port(node.number, position) for position, node in enumerate(nodes) if node.in_jvm)
    entry = EntryStage(cast(Shipment, Here(program)), plan, schema, ports)
    parts = [(position, part) for position, node in enumerate(nodes) if node.in_jvm for part in rows[node.name]]
    for split, (position, part) in enumerate(parts):
        made = [{"n": one.n, "k": one.k} for one in part]
        table = [pa.array(made if p == position else [None] * len(made), kind) for p in range(len(rows))]
        element = pa.RecordBatch.from_arrays(table, schema=schema).serialize().to_pybytes()
        yield from ran.note(0, "entry", split, entry(split, [element]))


def evaluated(topology: Topology, rows: Rows) -> tuple[dict[str, Counter[Item]], Counter[tuple[str, int]]]:
    """What each sink is to get, and which records of which operator fail, by calling the functions directly."""
    made: dict[str, list[Item]] = {}
    failed: Counter[tuple[str, int]] = Counter()
    for operator in topology:
        given = [one for name in operator.inputs for one in made[name]]
        if operator.name in rows:
            made[operator.name] = [one for part in rows[operator.name] for one in part]
        elif operator.kind in ("union", "sink"):
            made[operator.name] = given
        else:
            made[operator.name] = []
            for one in given:
                try:
                    made[operator.name] += _applied(operator.kind, operator.function, one)
                except ValueError:
                    failed[operator.name, one.n] += 1
    return {sink.name: Counter(made[sink.name]) for sink in topology.sinks}, failed


def _applied(kind: str, function: Any, one: Item) -> list[Item]:
    if kind == "map_batches":
        return [Item(one.n * 2, one.k)]
    result = function(one)
    return list(result) if kind == "flat_map" else [result] if kind == "map" else [one] if result else []


# Any graph


@some.composite
def topologies(draw: some.DrawFn) -> Topology:
    """Chains, fan-out and unions of up to eight operators on one to three sources of both kinds, with any groupings."""
    kinds = draw(some.lists(some.sampled_from([given_items, rows_of_spark]), min_size=1, max_size=3))
    streams = [source(f"source-{i}") for i, source in enumerate(kinds)]
    loose = set(range(len(streams)))
    for number in range(draw(some.integers(1, 8))):
        chosen = draw(some.integers(0, len(streams) - 1))
        kind = draw(some.sampled_from(["map", "filter", "flat_map", "map_batches", "union"]))
        if kind == "union":
            other = draw(some.integers(0, len(streams) - 1))
            if other == chosen:
                continue
            made = streams[chosen].union(streams[other], name=f"union-{number}")
            loose.discard(other)
        else:
            stream, grouping = streams[chosen], draw(some.sampled_from([None, "round-robin", "hash"]))
            if grouping == "hash":
                stream = stream.key_by(*draw(some.sampled_from([("k",), ("n",), ("k", "n")])))
            made = _added(stream, kind, number, None if grouping == "hash" else grouping)
        loose.discard(chosen)
        loose.add(len(streams))
        streams.append(made)
    return st.topology(
        "any",
        *(
            streams[i].to(st.sink.discard(), name=f"sink-{i}", grouping=draw(some.sampled_from([None, "round-robin"])))
            for i in sorted(loose)
        ),
    )


def _added(stream: st.Stream, kind: str, salt: int, grouping: str | None) -> st.Stream:
    name = f"{kind}-{salt}"
    if kind == "map":
        return stream.map(Step(salt), name=name, grouping=grouping)
    if kind == "filter":
        return stream.filter(Sieve(salt), name=name, grouping=grouping)
    if kind == "flat_map":
        return stream.flat_map(Spread(salt), name=name, grouping=grouping)
    return stream.map_batches(doubled, name=name, grouping=grouping)


def partitions(topology: Topology, source: random.Random) -> Rows:
    """Some records for every source, in some partitions, a few of them empty."""
    rows: Rows = {}
    for number, operator in enumerate(topology.sources):
        ids = range(1000 * number, 1000 * number + source.randrange(60))
        parts: list[list[Item]] = [[] for _ in range(source.randint(1, 4))]
        for n in ids:
            source.choice(parts).append(Item(n, f"k{source.randrange(6)}"))
        rows[operator.name] = parts
    return rows


def widths_of(topology: Topology, source: random.Random) -> dict[str, int]:
    return {operator.name: source.randint(1, 4) for operator in topology if operator.grouping is not None}


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(topologies(), some.randoms(use_true_random=False))
def test_stages_give_what_the_functions_give_whatever_the_graph_the_widths_and_the_order(
    topology: Topology, source: random.Random
) -> None:
    """And the same blocks and files, byte for byte, when the blocks arrive in another order."""
    rows, widths = partitions(topology, source), widths_of(topology, source)
    ran = run(topology, rows, widths, source)
    wanted, failed = evaluated(topology, rows)
    for sink, items in wanted.items():
        assert Counter(Item(**row) for row in ran.captured.records(sink)) == items
    letters = Counter((letter["operator"], json.loads(letter["record"])["n"]) for letter in ran.captured.records(""))
    assert letters == failed
    assert sum(report.dead for report in ran.reports) == sum(failed.values())
    counted: Counter[str] = Counter()
    for report in ran.reports:
        counted.update(report.sinks)
    assert counted == Counter({sink: sum(items.values()) for sink, items in wanted.items() if items})
    _check_tallies(topology, ran, rows)

    again = run(topology, rows, widths, source)
    assert again.sent == ran.sent
    assert again.captured.files == ran.captured.files


def _check_tallies(topology: Topology, ran: Ran, rows: Rows) -> None:
    """Rows out of all inputs are rows in; nothing is counted twice."""
    rows_in: Counter[str] = Counter()
    rows_out: Counter[str] = Counter()
    for report in ran.reports:
        for one in report.operators:
            assert one.rows_in is not None
            rows_in[one.operator] += one.rows_in
            rows_out[one.operator] += one.rows_out
    for operator in topology:
        if operator.kind == "source":
            assert rows_out[operator.name] == sum(map(len, rows[operator.name]))
        else:
            assert rows_in[operator.name] == sum(rows_out[name] for name in operator.inputs)


@settings(max_examples=25)
@given(topologies(), some.randoms(use_true_random=False))
def test_widths_change_nothing_but_the_tasks(topology: Topology, source: random.Random) -> None:
    rows = partitions(topology, source)
    one, other = (run(topology, rows, widths_of(topology, source), source) for _ in range(2))
    for sink in topology.sinks:
        records = [Counter(tuple(row.values()) for row in ran.captured.records(sink.name)) for ran in (one, other)]
        assert records[0] == records[1]


@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_the_seed_of_the_program_decides_which_task_gets_a_key(seed: int) -> None:
    source = given_items()
    topology = source.key_by("n").map(Step(1), name="work").to(st.sink.discard(), name="sink").named("line")
    ran = run(topology, {"source": [[Item(n, "k") for n in range(100)]]}, {"work": 4}, random.Random(1), seed)
    routed = {}
    for _, block in ran.sent[0, "source", 0]:
        for n in blocks.records(block, topology["source"].schema).column("n").to_pylist():
            routed[n] = blocks.parse(block).target
    keys = pa.record_batch({"n": range(100)})
    assert [routed[n] for n in range(100)] == Hash().route(Share.of(keys, ("n",), 4, seed=seed), {}).tolist()


def test_a_union_that_runs_in_two_stages_is_told_apart_by_the_next_one() -> None:
    """Task 0 of the first stage and task 0 of the second both send to ``after`` as ``union``: their order is fixed."""
    source = given_items("source-0")
    deep = source.map(Step(1), name="one", grouping="round-robin").map(Step(2), name="two", grouping="round-robin")
    united = source.map(Step(3), name="three", grouping="round-robin").union(deep, name="both")
    topology = united.map(Step(4), name="after", grouping="round-robin").to(st.sink.discard(), name="sink").named("t")
    rows = {"source-0": [[Item(n, "k") for n in range(40)]]}
    widths = {"one": 2, "two": 2, "three": 2, "after": 3}
    first = run(topology, rows, widths, random.Random(0))
    for seed in range(1, 6):
        assert run(topology, rows, widths, random.Random(seed)).captured.files == first.captured.files


# One task


def one_stage(stream: Callable[[st.Stream], st.Stream]) -> Topology:
    return stream(given_items()).to(st.sink.discard(), name="sink").named("t")


def fed(topology: Topology, *items: Item) -> Ran:
    return run(topology, {"source": [list(items)]}, {}, random.Random(0))


ITEMS = (Item(1, "a"), Item(2, "b"), Item(3, "c"))


def spoilt(one: Item) -> Item:
    if one.n == 2:
        raise KeyError("missing")
    return one


def of_another_type(one: Item) -> Any:
    return (one.n, one.k) if one.n == 2 else one


def without_value(one: Item) -> Item:
    return Item(None if one.n == 2 else one.n, one.k)  # type: ignore[arg-type]


def too_large(one: Item) -> Item:
    return Item(2**63 if one.n == 2 else one.n, one.k)


def of_text(one: Item) -> Item:
    return Item("two" if one.n == 2 else one.n, one.k)  # type: ignore[arg-type]


def cut(one: Item) -> Item:
    return Item(2.5 if one.n == 2 else one.n, one.k)  # type: ignore[arg-type]


def nothing(one: Item) -> Any:
    return None if one.n == 2 else one


def untold(one: Item) -> bool:
    return spoilt(one).n > 0


def midway(one: Item) -> Iterator[Item]:
    yield Item(one.n * 10, one.k)
    spoilt(one)
    yield Item(one.n * 10 + 1, one.k)


def not_many(one: Item) -> Any:
    return 5 if one.n == 2 else [one]


def with_a_stranger(one: Item) -> Any:
    return [one, "stranger"] if one.n == 2 else [one]


FAILING: dict[str, tuple[Callable[..., st.Stream], str]] = {
    "map raises": (lambda s, **o: s.map(spoilt, name="work", **o), "KeyError: 'missing'"),
    "map returns another type": (
        lambda s, **o: s.map(of_another_type, schema=Item, name="work", **o),
        "TypeError: work is to return Item, got tuple",
    ),
    "map returns nothing": (
        lambda s, **o: s.map(nothing, schema=Item, name="work", **o),
        "TypeError: work is to return Item, got NoneType",
    ),
    "a field is None": (lambda s, **o: s.map(without_value, name="work", **o), "ValueError: field 'n' is None"),
    "a field is too large": (lambda s, **o: s.map(too_large, name="work", **o), "OverflowError"),
    "a field is text": (lambda s, **o: s.map(of_text, name="work", **o), "'two'"),
    "a field would be cut": (lambda s, **o: s.map(cut, name="work", **o), "'n' is int64, got a float"),
    "filter raises": (lambda s, **o: s.filter(untold, name="work", **o), "KeyError: 'missing'"),
    "flat_map returns no list": (
        lambda s, **o: s.flat_map(not_many, schema=Item, name="work", **o),
        "'int' object is not iterable",
    ),
    "flat_map returns a stranger": (
        lambda s, **o: s.flat_map(with_a_stranger, schema=Item, name="work", **o),
        "TypeError: work is to return Item, got str",
    ),
}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("case", FAILING)
def test_a_record_that_fails_is_a_dead_letter_and_the_others_go_on(case: str, shuffled: bool) -> None:
    """With the operator, the error, the traceback and the record; counted once, before a sink and before a shuffle."""
    build, words = FAILING[case]
    topology = one_stage(lambda s: build(s).map(Step(0), name="after", grouping="round-robin") if shuffled else build(s))
    ran = fed(topology, *ITEMS)
    layout = [row["n"] for row in ran.captured.records("sink")]
    assert layout == ([31, 93] if shuffled else [1, 3])
    (letter,) = ran.captured.records("")
    assert (letter["topology"], letter["batch"], letter["operator"]) == ("t", BATCH, "work")
    assert words in letter["error"]
    assert letter["traceback"].startswith("Traceback")
    assert sum(report.dead for report in ran.reports) == 1
    work = of(ran.reports[0], "work")
    assert (work.rows_in, work.rows_out, work.failures) == (3, 2, 1)
    sink = next(one for report in ran.reports for one in report.operators if one.operator == "sink")
    assert (sink.rows_in, sink.rows_out) == (2, 2)


def test_the_record_of_a_dead_letter_is_what_the_function_got_or_what_did_not_fit() -> None:
    (letter,) = fed(one_stage(lambda s: s.map(spoilt)), *ITEMS).captured.records("")
    assert json.loads(letter["record"]) == {"n": 2, "k": "b"}
    (letter,) = fed(one_stage(lambda s: s.map(of_text)), *ITEMS).captured.records("")
    assert json.loads(letter["record"]) == {"n": "two", "k": "b"}


def test_of_a_flat_map_that_fails_midway_nothing_leaks() -> None:
    ran = fed(one_stage(lambda s: s.flat_map(midway)), *ITEMS)
    assert [row["n"] for row in ran.captured.records("sink")] == [10, 11, 30, 31]
    assert [json.loads(letter["record"])["n"] for letter in ran.captured.records("")] == [2]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: 1 / 0, "ZeroDivisionError"),
        (lambda batch: batch.to_pylist(), "wants a pyarrow.RecordBatch back, got list"),
        (lambda batch: batch.drop_columns(["n"]), "n"),
        (lambda batch: batch.set_column(0, "n", pa.array([1, None, 3])), "n"),
        (lambda batch: batch.set_column(0, "n", pa.array(["x", "y", "z"])), "int64"),
    ],
)
def test_a_batch_that_fails_takes_all_its_records_to_the_dead_letters(function: Any, words: str) -> None:
    ran = fed(one_stage(lambda s: s.map_batches(function, name="work")), *ITEMS)
    assert ran.captured.records("sink") == []
    letters = ran.captured.records("")
    assert [json.loads(letter["record"])["n"] for letter in letters] == [1, 2, 3]
    assert words in letters[0]["error"]
    assert of(ran.reports[0], "work").failures == 3


@dataclass(frozen=True)
class Maybe:
    n: int
    k: str | None


def maybe(one: Item) -> Maybe:
    return Maybe(one.n, None if one.n == 2 else one.k)


def test_records_without_a_time_go_to_the_dead_letters_alone() -> None:
    ran = fed(one_stage(lambda s: s.map(maybe).map_batches(Timed("k"), name="work")), *ITEMS)
    assert [row["n"] for row in ran.captured.records("sink")] == [1, 3]
    (letter,) = ran.captured.records("")
    assert (letter["operator"], json.loads(letter["record"])) == ("work", {"n": 2, "k": None})
    assert letter["error"].startswith("ValueError: its time, 'k', is null")
    work = of(ran.reports[0], "work")
    assert (work.rows_in, work.rows_out, work.failures) == (3, 2, 1)
    assert sum(report.dead for report in ran.reports) == 1
    (report,) = fed(one_stage(lambda s: s.map(maybe).map_batches(Timed("k"), name="work", on_error="stop")), *ITEMS).reports
    assert report.stopped is not None and report.stopped.operator == "work"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def speechless(one: Item) -> Item:
    raise Unspeakable


def lone_surrogate(one: Item) -> Item:
    raise ValueError("\ud800")


def out_of_turn(one: Item) -> Item:
    raise StopIteration


@pytest.mark.parametrize("function", [speechless, lone_surrogate, out_of_turn])
def test_whatever_a_function_raises_can_be_written_down(function: Callable[[Item], Item]) -> None:
    ran = fed(one_stage(lambda s: s.map(function, name="work")), Item(1, "a"))
    (letter,) = ran.captured.records("")
    assert letter["operator"] == "work"
    assert letter["error"]


@pytest.mark.parametrize("case", FAILING)
def test_on_error_stop_ends_the_task_and_stages_nothing(case: str) -> None:
    build, words = FAILING[case]

    ran = fed(one_stage(lambda s: build(s, on_error="stop")), *ITEMS)
    (report,) = ran.reports
    assert report.stopped is not None and report.stopped.operator == "work"
    assert words in report.stopped.error
    assert "Traceback" in report.stopped.traceback
    assert report.receipts == ()
    assert ran.captured.files == {}


class Alarm(st.Processor):
    """Has a timer in the batch after, which fails."""

    def process(self, key: str, records: list[Item], state: st.State) -> Iterator[Item]:
        state.set_timer(state.now, "processing")
        return iter(())

    def on_timer(self, key: str, timer: st.Timer, state: st.State) -> Iterator[Item]:
        raise ValueError("alarm")


def rung(folder: Path, **options: Any) -> Ran:
    """The batch in which the timers of two keys come, and no record."""
    topology = one_stage(lambda s: s.key_by("k").stateful(Alarm, shards=2, name="work", **options))
    machine = Machine.of(topology, folder)
    machine.run([vars(Item(1, "a")), vars(Item(2, "b"))])
    program = compile_topology(topology, {"work": Shards()}, {"sink": NOWHERE}, NOWHERE, {"work": machine.layout})
    ranges, _ = program.ranges({})
    routes = {number: Route(operator.key, {OWNER: np.zeros(2, dtype=np.int64)}) for number, operator in enumerate(topology)}
    plan = StagePlan(1, dict(ranges), 1, 1, cast(Shipment, Here(routes)))
    ran = Ran()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "task_context", lambda: (BATCH, 0))
        patch.setattr(context, "versions", lambda: {"work": Version(machine.files, machine.now)})
        patch.setattr(staging, "write", ran.captured.write)
        sent = ran.note(1, "stage", 0, Stage(cast(Shipment, Here(program)), plan)(0, []))
    ran.reports = [Report.decoded(blocks.payload(block)) for _, block in sent]
    return ran


def test_a_timer_that_fails_is_a_dead_letter_with_its_key(tmp_path: Path) -> None:
    ran = rung(tmp_path)
    letters = ran.captured.records("")
    assert sorted(json.loads(letter["record"])["k"] for letter in letters) == ["a", "b"]
    assert {(letter["operator"], letter["error"]) for letter in letters} == {("work", "ValueError: alarm")}
    (report,) = ran.reports
    assert (report.dead, of(report, "work").failures) == (2, 2)
    (receipt,) = report.state
    assert receipt.removed == 2  # there was nothing but the timers


def test_a_timer_that_fails_can_stop_the_run(tmp_path: Path) -> None:
    (report,) = rung(tmp_path, on_error="stop").reports
    assert report.stopped is not None
    assert (report.stopped.operator, report.stopped.error) == ("work", "ValueError: alarm")
    assert not report.state and not report.receipts


# Records as they travel


@dataclass(frozen=True)
class Inner:
    x: int
    names: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Named:
    n: int
    k: str = "unknown"


@dataclass(frozen=True)
class Strict:
    n: int
    k: str

    def __post_init__(self) -> None:
        if self.n == 2:
            raise ValueError("two is not allowed")


@dataclass(frozen=True)
class Everything:
    flag: bool
    whole: int
    real: float
    text: str
    raw: bytes
    moment: datetime.datetime
    day: datetime.date
    money: decimal.Decimal
    tags: list[str | None]
    scores: dict[str, int | None]
    days: dict[datetime.date, int]
    inner: Inner
    inners: list[Inner]
    named: dict[str, Inner]
    maybe: Inner | None
    deep: list[list[int]]


FULL = Everything(
    True, -(2**63), float("inf"), "é\x00𝄞", b"\x00\xff", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC),
    datetime.date(1, 1, 1), decimal.Decimal("-0.000000000000000001"), ["a", None], {"a": 1, "b": None},
    {datetime.date(2024, 2, 29): 1}, Inner(1, {"p": 2}), [Inner(2, {}), Inner(3, {"q": 1})], {"z": Inner(4, {"r": 5})},
    None, [[1], [], [2, 3]],
)  # fmt: skip
BARE = Everything(
    False, 0, -0.0, "", b"", datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC), datetime.date(9999, 12, 31),
    decimal.Decimal("12345678901234567890"), [], {}, {}, Inner(0, {}), [], {}, Inner(9, {"m": -1}), [],
)  # fmt: skip


def filled(one: Item) -> Everything:
    return FULL if one.n else BARE


def unchanged(one: Everything) -> Everything:
    wanted = FULL if one.flag else BARE
    if one != wanted:
        raise ValueError(f"{one!r} is not {wanted!r}")
    return one


def failing(one: Everything) -> Everything:
    raise ValueError("as told")


@pytest.mark.parametrize("grouping", [None, "round-robin"])
def test_a_record_of_all_types_is_the_same_behind_a_shuffle(grouping: str | None) -> None:
    topology = one_stage(lambda s: s.map(filled).map(unchanged, grouping=grouping))
    ran = fed(topology, Item(0, ""), Item(1, ""))
    assert ran.captured.records("") == []
    assert len(ran.captured.records("sink")) == 2


def test_a_record_of_all_types_can_be_a_dead_letter_and_a_key() -> None:
    """JSON has no form for bytes, dates as keys and infinity; the letter is written all the same."""
    topology = one_stage(lambda s: s.map(filled).key_by("inners", "scores", "money", "moment").map(failing))
    ran = fed(topology, Item(0, ""), Item(1, ""))
    records = [json.loads(letter["record"]) for letter in ran.captured.records("")]
    assert sorted(record["whole"] for record in records) == [-(2**63), 0]
    assert {letter["error"] for letter in ran.captured.records("")} == {"ValueError: as told"}


@dataclass(frozen=True)
class Tagged:
    n: int
    tags: list[str]


def tagged(one: Item) -> Tagged:
    return Tagged(one.n, [])


def scribbled(one: Tagged) -> Tagged:
    one.tags.append("scribble")
    return one


def test_what_one_branch_does_to_a_record_the_other_does_not_see() -> None:
    shared = given_items().map(tagged)
    branches = [shared.map(scribbled, name=name).to(st.sink.discard(), name=f"{name}-sink") for name in ("one", "two")]
    plain = shared.to(st.sink.discard(), name="plain")
    ran = run(st.topology("t", *branches, plain), {"source": [list(ITEMS)]}, {}, random.Random(0))
    assert [len(ran.captured.records(sink)[0]["tags"]) for sink in ("one-sink", "two-sink", "plain")] == [1, 1, 0]


def by_keyword(one: Item) -> Named:
    return Named(n=one.n, k=one.k)


def read_by_keyword(one: Named) -> Named:
    return one


def test_dataclasses_with_keywords_only_travel_too() -> None:
    ran = fed(one_stage(lambda s: s.map(by_keyword).map(read_by_keyword, grouping="round-robin")), *ITEMS)
    assert [row["n"] for row in ran.captured.records("sink")] == [1, 2, 3]


def strictly(one: Strict) -> Strict:
    return one


def test_a_record_that_its_own_class_refuses_is_a_dead_letter() -> None:
    """As when a file holds what ``__post_init__`` does not allow: that is the record's fault, not the run's."""
    ran = fed(one_stage(lambda s: s.map(strictly, name="work")), *ITEMS)
    assert [row["n"] for row in ran.captured.records("sink")] == [1, 3]
    (letter,) = ran.captured.records("")
    assert (letter["operator"], letter["error"]) == ("work", "ValueError: two is not allowed")
    assert json.loads(letter["record"]) == {"n": 2, "k": "b"}


@dataclass(frozen=True)
class Holder:
    inner: Inner
    tags: list[str]


def hollow(one: Item) -> Holder:
    inner = Inner(None if one.n == 2 else 1, {})  # type: ignore[arg-type]
    return Holder(inner, [None] if one.n == 3 else [])  # type: ignore[list-item]


def test_a_missing_value_deep_in_a_record_is_a_dead_letter() -> None:
    """Arrow lets a null pass inside structs and lists that allow none, and Parquet fails on it, too late for the record."""
    ran = fed(one_stage(lambda s: s.map(hollow, name="work")), *ITEMS)
    assert len(ran.captured.records("sink")) == 1
    assert [json.loads(letter["record"])["inner"]["x"] for letter in ran.captured.records("")] == [None, 1]


# What enters from the JVM


def entered(topology: Topology, schema: pa.Schema, parts: Iterable[pa.RecordBatch], port: Port, level: int) -> list[bytes]:
    program = compiled(topology)
    ranges, sizes = program.ranges({"work": 3})
    entry = EntryStage(cast(Shipment, Here(program)), _plan(topology, level, ranges, sizes), schema, (port,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "task_context", lambda: (BATCH, 1))
        patch.setattr(staging, "write", Captured().write)
        sent = list(entry(0, [part.serialize().to_pybytes() for part in parts]))
    return [block for block in sent[1::2] if blocks.parse(block).kind is BlockKind.DATA]


@settings(max_examples=20)
@given(some.randoms(use_true_random=False), some.integers(1, 4))
def test_rows_of_an_unordered_source_are_routed_by_their_content_alone(order: random.Random, parts: int) -> None:
    topology = (
        st.source.dataframe(lambda spark: None, schema=Item).map(Step(0), name="work", grouping="round-robin")
        .to(st.sink.discard()).named("t")
    )  # fmt: skip
    schema = pa.schema({"n": pa.int64(), "k": pa.string()})
    rows = [{"n": n % 7, "k": "x" * (n % 3)} for n in range(40)]
    wanted = entered(topology, schema, [pa.RecordBatch.from_pylist(rows, schema=schema)], Port(0), 0)
    order.shuffle(rows)
    cuts = [rows[i::parts] for i in range(parts)]
    made = [pa.RecordBatch.from_pylist(part, schema=schema) for part in cuts]
    assert entered(topology, schema, made, Port(0), 0) == wanted


def test_staged_files_hold_what_was_staged(tmp_path: Path) -> None:
    """The formats' own forms: JSON lines with maps as objects and no NaN, CSV with a header, Parquet with the schema."""
    schema = pa.schema({"n": pa.int64(), "m": pa.map_(pa.string(), pa.float64())})
    rows = pa.RecordBatch.from_pylist([{"n": 1, "m": {"a": float("nan")}}, {"n": None, "m": {}}], schema=schema)
    at = staging.Attempt(epoch=1, batch=2, level=0, gate=0, task=3, attempt=4)

    def written(format: str, *batches: pa.RecordBatch) -> staged.Output:
        place = Staging(str(tmp_path), format)
        (receipt,) = staging.write(place, "out", at, list(batches)).receipts
        return staged.located(vars(receipt), place, None, batch=2)

    json_lines = written("json", rows)
    assert json_lines.receipt.rows == 2
    lines = json_lines.staged.read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"n": 1, "m": {"a": None}},
        {"n": None, "m": {}},
    ]
    assert written("csv", rows.select(["n"])).staged.read_text().splitlines()[0] == '"n"'
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(written("parquet", rows, rows).staged).num_rows == 4


def short(self: RoundRobin, share: Share, table: Table) -> npt.NDArray[np.int64]:
    """A route that forgets the last record."""
    return np.zeros(share.rows - 1, dtype=np.int64)


def test_a_route_that_would_lose_records_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundRobin, "route", short)
    topology = one_stage(lambda s: s.map(Step(1), schema=Item, name="work", grouping="round-robin"))
    with pytest.raises(OptionError, match="of operator 'work' must return a target"):
        run(topology, {"source": [[Item(n, "k") for n in range(4)]]}, {"work": 2}, random.Random(1))
