"""Packs the output of a task into blocks: records for the tasks of later stages, and the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from springtide.model.topology import Kind
from springtide.policy.group import Share, checked
from springtide.spark.shared import blocks
from springtide.spark.shared.blocks import BlockKind, Header
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.stage_plan import StagePlan


class Outbox:
    """Collects the records that leave a task, and routes them to the tasks of the operators that read them."""

    def __init__(self, program: Program, plan: StagePlan, batch: int, gate: int, origin: int) -> None:
        self._program, self._plan, self._batch, self._gate, self._origin = program, plan, batch, gate, origin
        self._leaving: dict[tuple[int, int], list[pa.RecordBatch]] = {}  # (consumer, producer) → batches

    def add(self, consumer: int, producer: int, batch: pa.RecordBatch) -> None:
        self._leaving.setdefault((consumer, producer), []).append(batch)

    def records(self) -> Iterator[bytes]:
        """All records as blocks: pairs of target and block, for Spark."""
        for (consumer, producer), batches in sorted(self._leaving.items()):
            rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
            node = self._program.nodes[consumer]
            level = self._program.arrival[consumer]
            if node.kind is Kind.SQL:  # the JVM reads the rows from any task, after their level
                kind = BlockKind.ROWS
                parts: Iterable[tuple[int, pa.RecordBatch]] = ((self._origin, part) for batch in rows for part in _cut(batch))
            else:
                kind = BlockKind.DATA
                parts = (part for batch in rows for part in self._route(node, batch))
            for chunk, (target, batch) in enumerate(parts):
                header = self._header(kind, level, consumer, producer, target, chunk)
                yield from self._pair(header, batch.serialize().to_pybytes())

    def message(self, kind: BlockKind, payload: bytes, operator: int = 0) -> Iterator[bytes]:
        """A block for the driver, on its way through the tasks of later stages."""
        return self._pair(self._header(kind, 0, operator, 0, self._origin, 0), payload)

    def _header(self, kind: BlockKind, level: int, consumer: int, producer: int, target: int, chunk: int) -> Header:
        return Header(kind, level, consumer, producer, target, self._plan.level, self._gate, self._origin, chunk)

    def _pair(self, header: Header, payload: bytes) -> Iterator[bytes]:
        return blocks.pair(header.target % self._plan.next_size, header.block(payload))

    def _route(self, node: Node, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Split a batch by target task, in the order of the records."""
        assert node.grouping is not None
        first, width = self._plan.ranges[node.number]
        route = self._plan.routes[node.number]
        if node.layout is None:
            share = Share.of(batch, route.key or (), width, self._origin, self._batch, self._program.seed)
        else:  # the identity of a key is computed once, and sent with the record
            one, two = node.layout.identities(batch)
            batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(one), pa.array(two)], schema=node.layout.arriving)
            share = Share(batch.num_rows, width, self._origin, self._batch, lambda: one)
        targets = checked(node.grouping.route(share, route.table), share, node.grouping.name, node.name)
        order = np.argsort(targets, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        counts = np.bincount(targets, minlength=width)
        start = 0
        for target, count in enumerate(counts.tolist()):
            for part in _cut(sorted_rows.slice(start, count)):
                yield first + target, part
            start += count


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for begin in range(0, batch.num_rows, blocks.MAX_ROWS):
        yield batch.slice(begin, blocks.MAX_ROWS)
