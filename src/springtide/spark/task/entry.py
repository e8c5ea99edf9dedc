"""The tasks in which rows of the JVM enter, from a source that Spark reads or from a sql operator."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from springtide.model.topology import Kind
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.shipping import Shipment
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task import context, created
from springtide.spark.task.account import Stop
from springtide.spark.task.chunk import Chunk
from springtide.spark.task.task import Task


@dataclass(frozen=True)
class Port:
    """Rows that enter a stage from the JVM as the output of ``producer``."""

    producer: int
    column: int | None = None  # their struct column, if several sources share the rows


@dataclass(frozen=True, eq=False)
class EntryStage:
    """The function that Spark runs for each partition that comes from the JVM: Arrow batches in, blocks out."""

    shipment: Shipment
    plan: StagePlan
    schema: pa.Schema
    ports: tuple[Port, ...]

    def __call__(self, split: int, elements: Iterable[bytes]) -> Iterator[bytes]:
        program = self.shipment.unpacked()
        batch, attempt = context.task_context()
        rows = [pa.ipc.read_record_batch(pa.py_buffer(element), self.schema) for element in elements]
        if not any(part.num_rows for part in rows):
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        task = Task(program, self.plan, batch, attempt, split, gate=1 + self.ports[0].producer)
        with task.running():
            yield from self._run(task, program, table)

    def _run(self, task: Task, program: Program, table: pa.Table) -> Iterator[bytes]:
        try:
            for port in self.ports:
                self._enter(task, program, port, table)
        except Stop as stop:
            yield from task.stop(stop)
        else:
            yield from task.finish()

    def _enter(self, task: Task, program: Program, port: Port, table: pa.Table) -> None:
        node = program.nodes[port.producer]
        batch = _one_batch(table, port)
        if not batch.num_rows:
            return
        if not node.ordered:
            batch = by_content(batch)
        tally = task.account.tally(node)
        if node.kind is Kind.SOURCE:
            tally.rows_in += batch.num_rows
        if node.created is not None and node.kind is Kind.SOURCE:
            if self.plan.shed_before is not None:
                batch, shed = created.younger(batch, node.created, self.plan.shed_before)
                task.account.shed += shed
            task.account.created += created.quantiles(batch.column(node.created))
        tally.rows_out += batch.num_rows
        chunk = self._fitted(task, node, batch)
        tally.finished = time.time()
        task.emit(node, chunk)

    def _fitted(self, task: Task, node: Node, batch: pa.RecordBatch) -> Chunk:
        """Rows in the declared schema. A row with a forbidden null, for example from a malformed line, fails alone. Rows are
        converted one by one if Arrow cannot cast them at once, for example null structs with non-null fields."""
        assert node.schema is not None
        own = batch.select(node.schema.names)
        try:
            return Chunk(node.schema, batch=own.cast(node.schema))
        except (pa.ArrowException, ValueError):
            chunk = Chunk(node.schema, records=own.to_pylist(), misfit=lambda row, error: task.account.misfit(node, row, error))
            chunk.batch()
            return chunk


def _one_batch(table: pa.Table, port: Port) -> pa.RecordBatch:
    if port.column is None:
        batches = table.to_batches()
    else:
        structs = table.column(port.column).drop_null().combine_chunks()
        chunks = structs.chunks if isinstance(structs, pa.ChunkedArray) else [structs]
        batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in chunks]
        batches = batches or [pa.RecordBatch.from_struct_array(pa.array([], structs.type))]
    if len(batches) > 1:  # beyond Arrow's 32-bit offsets
        raise ValueError("a task got more than 2 GiB of text in one batch; read less at a time, or in more partitions")
    return batches[0]


def by_content(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sort rows by their content alone, so that the order is reproducible."""
    keys = [hashlib.blake2b(repr(row).encode(), digest_size=16).digest() for row in batch.to_pylist()]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return batch.take(pa.array(order, pa.int64()))
