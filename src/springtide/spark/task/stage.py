"""The tasks of a stage behind a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from springtide.spark.shared import blocks
from springtide.spark.shared.blocks import BlockKind, Header
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import context
from springtide.spark.task.account import Stop
from springtide.spark.task.chunk import Chunk
from springtide.spark.task.task import Task


@dataclass(frozen=True, eq=False)
class Stage:
    """The function that Spark runs for each partition of a stage behind a shuffle: blocks in, blocks out."""

    shipment: Shipment
    plan: StagePlan

    def __call__(self, split: int, elements: Iterable[bytes]) -> Iterator[bytes]:
        program, here = self.shipment.unpacked(), self.plan.level
        arrived: dict[int, list[tuple[Header, bytes]]] = {}
        for block in elements:
            header = blocks.parse(block)
            if header.kind is BlockKind.DATA and header.level == here:
                arrived.setdefault(header.target, []).append((header, block))
            else:  # a report, or records for a deeper level or a sql operator
                yield from blocks.pair(header.target % self.plan.next_size, block)
        if self._has_timers(self._node_of(program, split)):
            arrived.setdefault(split, [])
        batch, attempt = context.task_context()
        for target, received in sorted(arrived.items()):
            task = Task(program, self.plan, batch, attempt, target)
            with task.running():
                yield from self._run(task, program, received)

    def _run(self, task: Task, program: Program, received: list[tuple[Header, bytes]]) -> Iterator[bytes]:
        try:
            node = self._node_of(program, task.origin)
            assert node is not None, f"no operator has task {task.origin} at level {self.plan.level}"
            received.sort(key=lambda pair: pair[0])
            if node.layout is not None:
                parts = [blocks.records(block, node.layout.arriving) for _, block in received]
                records = pa.concat_batches(parts or [pa.RecordBatch.from_pylist([], schema=node.layout.arriving)])
                task.step(node, records, context.versions()[node.name])
            for _, block in received if node.layout is None else ():
                task.take(node, Chunk(node.input_schema, batch=blocks.records(block, node.input_schema)))
        except Stop as stop:
            yield from task.stop(stop)
        else:
            yield from task.finish()

    def _node_of(self, program: Program, target: int) -> Node | None:
        """The operator with this task, if any: each has its own range of tasks."""
        for number in program.levels[self.plan.level]:
            first, width = self.plan.ranges[number]
            if first <= target < first + width:
                return program.nodes[number]
        return None

    def _has_timers(self, node: Node | None) -> bool:
        """Whether a task has to run even without records, because its state may have due timers."""
        return node is not None and node.layout is not None and any(node.layout.timers)
