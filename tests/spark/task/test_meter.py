"""What a record costs: all that its task does for it, in the operator it was sent to and in those behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import springtide as st
from springtide.model.costs import TaskCosts
from springtide.model.topology import Topology
from springtide.policy.group import Route
from springtide.policy.group.keys import key_hashes
from springtide.policy.group.tide import Tide
from springtide.spark.shared import blocks, costs
from springtide.spark.shared.blocks import BlockKind
from springtide.spark.shared.program import Staging, compile_topology
from springtide.spark.shared.report import Report
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import context, staging
from springtide.spark.task.stage import Stage

SLOW = {3: 0.02, 5: 0.04}


@dataclass(frozen=True)
class Item:
    key: int


@dataclass(frozen=True)
class Checked:
    key: int

    def __post_init__(self) -> None:
        if self.key < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Here:
    """A shipment that stays."""

    here: Any

    def unpacked(self) -> Any:
        return self.here


def item(draw: st.Draw) -> Item:
    return Item(draw.index)


def same(one: Item) -> Item:
    return one


def slow(one: Item) -> Item:
    time.sleep(SLOW.get(one.key, 0.0))
    return one


def fails(one: Item) -> Item:
    if one.key % 2 == 0:
        raise ValueError("even")
    return one


def odd(one: Item) -> bool:
    return one.key % 2 == 1


def some(one: Item) -> Iterator[Item]:
    for _ in range(one.key % 3):
        yield one


def slowly_some(one: Item) -> Iterator[Item]:
    time.sleep(SLOW.get(one.key, 0.0))
    yield one


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.01 * batch.num_rows)
    return batch


def checked(one: Checked) -> Item:
    time.sleep(SLOW.get(one.key, 0.0))
    return Item(one.key)


def measured(
    stream: st.Stream, keys: list[int], key: tuple[str, ...] | None = ("key",), seed: int = 0
) -> tuple[TaskCosts | None, Report]:  # fmt: skip
    """Run a stage of one task on records with these keys; what it tells of their costs, and its report."""
    topology: Topology = stream.to(st.sink.discard(), name="sink").named("line")
    program = compile_topology(topology, {"work": Tide()}, {"sink": None}, Staging("nowhere", "json"), seed=seed)
    head = next(node for node in program.nodes if node.name == "work")
    batch = pa.record_batch({"key": pa.array(keys, pa.int64())}, schema=head.input_schema)
    header = blocks.Header(BlockKind.DATA, 1, head.number, 0, 2, 0, 0, 0, 0)
    routes = {head.number: Route(key)}
    plan = StagePlan(1, {head.number: (0, 4)}, 1, 1, cast(Shipment, Here(routes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "task_context", lambda: (0, 1))
        patch.setattr(staging, "write", lambda *_: staging.Written(()))
        sent = list(Stage(cast(Shipment, Here(program)), plan)(2, [header.block(batch.serialize().to_pybytes())]))[1::2]
    payloads = {blocks.parse(block).kind: bytes(blocks.payload(block)) for block in sent}
    found = costs.unpack(payloads[BlockKind.COSTS]) if BlockKind.COSTS in payloads else None
    return found, Report.decoded(payloads[BlockKind.REPORT])


def source() -> st.Stream:
    return st.source.generate(item, rate=1)


def head(stream: st.Stream, function: Any = same, kind: str = "map", **options: Any) -> st.Stream:
    return getattr(stream, kind)(function, name="work", grouping="tide", by="key", **options)  # type: ignore[no-any-return]


def seconds_of(found: TaskCosts | None) -> dict[int, float]:
    assert found is not None
    names = {int(key_hashes(pa.record_batch({"key": [k]}), ("key",))[0]): k for k in range(-20, 20)}
    return {names[int(h)]: float(s) for h, s in zip(found.keys, found.seconds, strict=True)}


def test_costs_are_reported_by_the_hash_that_records_are_routed_by() -> None:
    for seed in (0, 5, 2**64 - 1):
        found, _ = measured(head(source()), [1, 2, 3], seed=seed)
        assert found is not None
        assert found.keys.tolist() == sorted(key_hashes(pa.record_batch({"key": [1, 2, 3]}), ("key",), seed).tolist())


STREAMS = {
    "in the operator itself": lambda: head(source(), slow),
    "in one chained behind it": lambda: head(source()).map(slow, name="behind"),
    "behind a filter": lambda: head(source()).filter(odd, name="odd").map(slow, name="behind"),
    "behind records that fail": lambda: head(source()).map(fails, name="fails").map(slow, name="behind"),
    "behind a flat_map": lambda: head(source()).flat_map(slowly_some, name="some").map(same, name="behind"),
    "in a generator": lambda: head(source(), slowly_some, "flat_map"),
    "in a filter": lambda: head(source(), lambda one: bool(slow(one)), "filter"),
    "in records that are checked": lambda: head(source(), checked),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_cost_is_noted_where_it_arises(name: str) -> None:
    """The least of three times: a machine that stalls for 0.1 s, as one did, does so during any record, but not each time."""
    each = []
    for _ in range(3):
        found, _ = measured(STREAMS[name](), [1, 3, 1, 2, 5, -1, 3])
        each.append(seconds_of(found))
        assert found is not None
        assert found.task == 2
        assert found.rows == 7
    seconds = {key: min(one[key] for one in each) for key in each[0]}
    assert min(seconds[5], seconds[3]) >= 0.0399  # as they slept; a busy machine may let them sleep longer
    assert max(seconds[1], seconds[2], seconds[-1]) < 0.5 * min(seconds[5], seconds[3])


def test_records_that_are_doubled_cost_what_all_their_copies_cost() -> None:
    found, _ = measured(head(source()).flat_map(some, name="some").map(slow, name="behind"), [3, 5, 5, 4])
    seconds = seconds_of(found)
    assert seconds[5] >= 2 * 2 * 0.0399, "two records, two copies of each"
    assert seconds[3] < 0.25 * seconds[5], "no copy"


def test_the_cost_of_a_whole_batch_is_spread_over_its_rows() -> None:
    found, _ = measured(head(source(), upper, "map_batches"), [1, 2, 2, 3])
    seconds = seconds_of(found)
    assert seconds[2] >= 0.0199
    assert seconds[2] == pytest.approx(2 * seconds[1])
    assert seconds[1] == pytest.approx(seconds[3])


def test_costs_add_up_to_the_time_that_passed() -> None:
    begin = time.perf_counter()
    found, report = measured(head(source(), slow), list(range(10)) * 50)
    passed = time.perf_counter() - begin
    assert found is not None
    (busy_s,) = (one.busy_s for one in report.operators if one.operator == "work")
    assert busy_s is not None and busy_s <= found.total_s + 0.005 <= passed + 0.005


def test_while_the_key_is_searched_for_every_column_is_looked_at() -> None:
    found, report = measured(head(source(), slow), [1, 3, 1, 3, 2, 2], key=None)
    assert found is None
    records, parts, values, within, total = report.variances["work"]["key"]
    assert (records, parts, values) == (6, 1, 3)
    assert within < 0.1 * total


def test_where_no_column_drives_the_cost_nothing_is_measured() -> None:
    found, report = measured(head(source(), slow), [1, 2], key=())
    assert found is None
    assert not report.variances


def test_costs_travel_as_they_are() -> None:
    sent = TaskCosts.of(3, np.array([5, 2**64 - 1, 5], dtype=np.uint64), np.array([0.25, 0.5, 1.0]))
    back = costs.unpack(costs.pack(sent))
    assert back.task == 3
    assert back.keys.tolist() == [5, 2**64 - 1]
    assert back.counts.tolist() == [2, 1]
    assert back.seconds.tolist() == [1.25, 0.5]
    assert costs.unpack(costs.pack(TaskCosts.of(0, np.zeros(0, dtype=np.uint64), np.zeros(0)))).rows == 0


def test_a_task_with_very_many_keys_tells_of_the_costliest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MAX_KEYS", 10)
    batch = pa.record_batch({"key": list(range(100))})
    found = costs.summed(0, ("key",), [(batch, np.arange(100) / 1000)])
    assert len(found.keys) == 10
    assert found.seconds.min() == 0.09
    assert (np.diff(found.keys.astype(np.float64)) > 0).all()
