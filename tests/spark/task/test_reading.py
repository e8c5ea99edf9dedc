"""The tasks that read a source: what becomes of its records, of those that cannot be decoded, and of those that are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import springtide as st
from springtide.api import stream as streams
from springtide.errors import RunError
from springtide.model.schema import as_schema, schema_of
from springtide.model.source import Enumerator, Memory, Range, Reader, Records, Rejected, Source, SourceFailed
from springtide.policy.group import Route

pytest.importorskip("pyspark")

from spark.task.test_task import BATCH, NOWHERE, Captured, Here, Item, of
from springtide.spark.private.failures import final_error
from springtide.spark.shared import blocks
from springtide.spark.shared.program import compile_topology
from springtide.spark.shared.report import Report
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import context, staging
from springtide.spark.task.reading import ReadStage

TIMES = np.array([1_000_000, 2_000_000, 3_000_000])
ITEMS = [Item(1, "a"), Item(2, "b"), Item(3, "c")]


GONE = -1


@dataclass(frozen=True)
class Scripted(Source):
    """A source whose ranges are the numbers of these records."""

    chunks: Sequence[Records]

    def begin(self) -> Memory:
        return {}

    def enumerator(self, memory: Memory) -> Enumerator:
        raise AssertionError("no driver in these tests")

    def reader(self, schema: pa.Schema, record: type | None) -> Reader:
        return Script(self.chunks)


class Script(Reader):
    def __init__(self, chunks: Sequence[Records]) -> None:
        self._chunks = chunks

    def read(self, part: Range) -> Iterator[Records]:
        for number in part["chunks"]:
            if number == GONE:
                raise RunError("the records were deleted")
            yield self._chunks[number]


@dataclass
class Read:
    """What a task did."""

    captured: Captured
    reports: list[Report]

    @property
    def numbers(self) -> list[int]:
        return [row["n"] for row in self.captured.records("sink")]

    @property
    def letters(self) -> list[dict[str, Any]]:
        return [{**row, "record": json.loads(row["record"])} for row in self.captured.records("")]

    @property
    def report(self) -> Report:
        (only,) = self.reports
        return only


def read(*chunks: Records, ranges: Any = None, shed_before: float | None = None, mapped: bool = True) -> Read:
    """The records of one task, whose plan sheds those before some time; ``mapped``: with an operator before the sink."""
    stream = streams.source(Scripted(chunks), "source", *as_schema(Item, "scripted"))
    topology = (stream.map(same) if mapped else stream).to(st.sink.discard(), name="sink").named("t")
    program = compile_topology(topology, {}, {"sink": NOWHERE}, NOWHERE)
    routes = cast(Shipment, Here({number: Route(operator.key) for number, operator in enumerate(topology)}))
    plan = StagePlan(0, dict(program.ranges({})[0]), 1, 1, routes, shed_before)
    stage, captured = ReadStage(cast(Shipment, Here(program)), plan, 0), Captured()
    ranges = [{"chunks": list(range(len(chunks)))}] if ranges is None else ranges
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "task_context", lambda: (BATCH, 1))
        patch.setattr(staging, "write", captured.write)
        sent = list(stage(0, [json.dumps(ranges).encode()]))
    return Read(captured, [Report.decoded(blocks.payload(block)) for block in sent[1::2]])


def same(one: Item) -> Item:
    if one.n == 99:
        raise RunError("of an operator")
    return Item(one.n, one.k)


def batch_of(items: list[Item]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([vars(one) for one in items], schema=schema_of(Item))


@pytest.mark.parametrize("values", [ITEMS, [vars(one) for one in ITEMS], batch_of(ITEMS)], ids=["objects", "mappings", "arrow"])
def test_records_of_any_form_reach_the_operators_with_their_times(values: Any) -> None:
    ran = read(Records(values, TIMES))
    assert ran.numbers == [1, 2, 3]
    tally = of(ran.report, "source")
    assert (tally.rows_in, tally.rows_out, tally.failures) == (3, 3, 0)
    assert sorted(ran.report.created) == [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]


def test_all_ranges_of_a_task_are_read_in_order_and_none_twice() -> None:
    chunks = [Records([one], TIMES[i : i + 1]) for i, one in enumerate(ITEMS)]
    ran = read(*chunks, ranges=[{"chunks": [2]}, {"chunks": [0, 1]}])
    assert ran.numbers == [3, 1, 2]
    assert of(ran.report, "source").rows_in == 3


def test_a_task_without_ranges_does_nothing() -> None:
    ran = read(ranges=[])
    assert (ran.reports, ran.captured.files) == ([], {})


def test_records_without_times_have_no_age() -> None:
    ran = read(Records(ITEMS), shed_before=10.0)
    assert (ran.numbers, ran.report.shed, ran.report.created) == ([1, 2, 3], 0, ())


@pytest.mark.parametrize("values", [ITEMS, batch_of(ITEMS)], ids=["objects", "arrow"])
def test_records_that_are_too_old_are_left_out_and_counted(values: Any) -> None:
    """A record of exactly this age is young enough."""
    ran = read(Records(values, TIMES), shed_before=2.0)
    assert (ran.numbers, ran.report.shed) == ([2, 3], 1)
    tally = of(ran.report, "source")
    assert (tally.rows_in, tally.rows_out) == (3, 2)
    assert sorted(at for at, _ in ran.report.created) == [2.0, 3.0]
    assert read(Records(values, TIMES), shed_before=9.0).report.shed == 3


def test_what_cannot_be_decoded_is_a_dead_letter_with_its_place() -> None:
    bad = [Rejected({"topic": "t", "offset": 7}, b"\xff{", ValueError("no JSON")), Rejected({"offset": 8}, "{", KeyError("n"))]
    ran = read(Records(ITEMS, TIMES, rejected=bad))
    assert ran.numbers == [1, 2, 3]
    assert [(letter["operator"], letter["record"]) for letter in ran.letters] == [
        ("source", {"topic": "t", "offset": 7, "raw": "\\xff{"}),
        ("source", {"offset": 8, "raw": "{"}),
    ]
    assert "ValueError: no JSON" in ran.letters[0]["error"]
    tally = of(ran.report, "source")
    assert (tally.rows_in, tally.rows_out, tally.failures, ran.report.dead) == (5, 3, 2, 2)


def test_a_record_that_does_not_fit_is_a_dead_letter_and_its_neighbours_pass() -> None:
    ran = read(Records([ITEMS[0], Item(None, "b"), ITEMS[2]], TIMES), mapped=False)  # type: ignore[arg-type]
    assert ran.numbers == [1, 3]
    assert [letter["record"] for letter in ran.letters] == [{"n": None, "k": "b"}]
    tally = of(ran.report, "source")
    assert (tally.rows_in, tally.rows_out, tally.failures) == (3, 2, 1)


def test_records_that_are_gone_are_counted() -> None:
    ran = read(Records(ITEMS[:1], TIMES[:1], lost=40), Records([], TIMES[:0], lost=2), shed_before=0.0)
    assert (ran.numbers, ran.report.lost) == ([1], 42)
    assert of(ran.report, "source").rows_in == 1


def test_what_ends_a_source_for_good_is_told_from_what_ends_an_operator() -> None:
    """The driver repeats a batch after the one, and not after the other."""
    with pytest.raises(SourceFailed, match="the records were deleted") as caught:
        read(Records(ITEMS, TIMES), ranges=[{"chunks": [0, GONE]}])
    name = f"{type(caught.value).__module__}.{type(caught.value).__qualname__}"
    assert final_error(RuntimeError(f"PythonException: {name}: {caught.value}\n\tat org.apache")) == str(caught.value)
    ran = read(Records([Item(99, "a")], TIMES[:1]))
    assert "RunError: of an operator" in ran.letters[0]["error"]
    assert final_error(RuntimeError("springtide.errors.RunError: of an operator")) is None
