"""Runs a task of a stage: records pass its operators; blocks for the next stage and a report come out.

All of it is a pure function of the program, the plan and the ordered records: a retried task sends the same records to the
same targets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.model.publisher import PublishedSink
from springtide.model.schema import microseconds
from springtide.model.topology import PASSING, Kind
from springtide.policy.group.cost_key import variances
from springtide.policy.group.shards import OWNER
from springtide.spark.shared import costs
from springtide.spark.shared.blocks import BlockKind
from springtide.spark.shared.costs import Seconds
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.progress import page_of
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.state.catalog import SUFFIX
from springtide.spark.state.stepping import Stepping, Version
from springtide.spark.task import staging
from springtide.spark.task.account import Account, Stop
from springtide.spark.task.chunk import Chunk
from springtide.spark.task.context import aside
from springtide.spark.task.functions import Functions
from springtide.spark.task.letters import LETTER, readable_row
from springtide.spark.task.meter import Meter
from springtide.spark.task.outbox import Outbox


class Task:
    """One task of one stage in one batch."""

    def __init__(self, program: Program, plan: StagePlan, batch: int, attempt: int, origin: int, gate: int = 0) -> None:
        self.program, self.plan, self.batch, self.attempt, self.origin = program, plan, batch, attempt, origin
        self.gate = gate
        self.account = Account(origin)
        self._routes = plan.routes
        self._page = page_of(program.workers, plan.epoch)
        self._functions = Functions(self._page, aside(batch, plan.level, gate, origin), self.account)
        self._outbox = Outbox(program, plan, batch, gate, origin)
        self._staged: dict[int, list[pa.RecordBatch]] = {}
        self._arrived: dict[int, list[tuple[pa.RecordBatch, Seconds]]] = {}  # operator → arrived records, and their costs
        self._meter: Meter | None = None

    def running(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the driver can see the task's progress."""
        return self._page.task(self.batch, self.plan.level, self.gate, self.origin)

    def emit(self, node: Node, chunk: Chunk) -> None:
        """Pass the output of an operator to its consumers, in this task or in a later stage."""
        if not len(chunk):
            return
        if node.shuffled or len(node.forward) > 1:
            chunk.batch()  # find misfits once, before any consumer
        for number in node.shuffled:
            if not (node.in_jvm and self.program.nodes[number].kind is Kind.SQL):  # else it reads the rows in the JVM
                self._outbox.add(number, node.number, chunk.batch())
        for position, number in enumerate(node.forward):
            # each consumer gets its own objects, because a function may change a list in a record
            own = chunk if position == 0 else Chunk(chunk.schema, batch=chunk.batch(), origins=chunk.origins)
            self.receive(self.program.nodes[number], own)

    def take(self, node: Node, chunk: Chunk) -> None:
        """Process records sent to an operator. If its grouping learns, measure the cost of each record."""
        if not node.learns or (self._routes[node.number].key == () and node.learns_by_key):
            self.receive(node, chunk)
            return
        batch = chunk.batch()
        chunk.origins = np.arange(batch.num_rows)
        self._meter = Meter(batch.num_rows)
        self.receive(node, chunk)
        self._arrived.setdefault(node.number, []).append((batch, self._meter.finished()))
        self._meter = None

    def receive(self, node: Node, chunk: Chunk) -> None:
        """Run one operator on a chunk, and pass its output on."""
        tally, begin = self.account.tally(node), time.perf_counter()
        if node.kind in (Kind.SINK, Kind.MAP_BATCHES):
            chunk.batch()  # find misfits before they are counted
        tally.rows_in += len(chunk)
        if node.kind in PASSING:
            self._see_times(node, chunk)
        elif node.kind is Kind.SINK:
            self._stage(node, chunk)
        else:
            with self._page.operator(node.number):
                chunk = self._functions.apply(node, chunk, tally.rows_in - len(chunk), self._meter)
        tally.busy_s += time.perf_counter() - begin
        tally.rows_out += len(chunk)
        tally.finished = time.time()
        self.emit(node, chunk)

    def step(self, node: Node, records: pa.RecordBatch, version: Version) -> None:
        """Run a stateful operator on all records of this task, and pass its output on."""
        assert node.layout is not None
        tally = self.account.tally(node)
        tally.rows_in += records.num_rows
        name = f"{self.batch:08d}-{self.plan.epoch:06d}-{self.origin:05d}-{self.attempt}{SUFFIX}"
        owned = self._routes[node.number].table[OWNER] == self.origin - self.plan.ranges[node.number][0]
        stepping = Stepping(node.layout, version, owned, name, self.origin, self._functions.before_call(node))
        begin = time.perf_counter()
        produced = []
        with self._page.operator(node.number):
            for outcome in stepping.run(records):
                produced += [] if outcome.output is None else [outcome.output]
                for failed, error in outcome.failed:
                    for record in failed.to_pylist():
                        self.account.failed(node, record, error)
        tally.busy_s += time.perf_counter() - begin
        tally.rows_out += sum(part.num_rows for part in produced)
        tally.finished = time.time()
        self.account.state.append(stepping.receipt)
        for part in produced:
            self.emit(node, Chunk(node.schema, batch=part))
        if stepping.late is not None and stepping.late.num_rows:
            for number in node.late:
                self.receive(self.program.nodes[number], Chunk(node.input_schema, batch=stepping.late))

    def _see_times(self, node: Node, chunk: Chunk) -> None:
        """Report the latest event time of records that pass a watermark."""
        if node.event_time is not None and len(chunk):
            latest = pc.max(microseconds(chunk.batch().column(node.event_time.column))).as_py()
            if latest is not None:
                self.account.times[node.name] = max(latest, self.account.times.get(node.name, latest))

    def _stage(self, node: Node, chunk: Chunk) -> None:
        batch = chunk.batch()
        self.account.sinks[node.name] = self.account.sinks.get(node.name, 0) + batch.num_rows
        if node.sink is not None:
            batch = self._accepted(node, node.sink, batch)
        if node.staging is not None and batch.num_rows:
            self._staged.setdefault(node.number, []).append(batch)

    def _accepted(self, node: Node, sink: PublishedSink, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records as a sink wants them staged; those that it cannot take become its dead letters."""
        accepted, refused = sink.stage(batch)
        for refusal in refused:
            self._refuse(node, readable_row(pa.Table.from_batches([batch.slice(refusal.index, 1)])), refusal.error)
        return accepted

    def _refuse(self, node: Node, record: dict[str, Any], error: Exception) -> None:
        self.account.misfit(node, record, error)
        self.account.sinks[node.name] -= 1

    def finish(self) -> Iterator[bytes]:
        """Stage the output for sinks, and send blocks and the report: pairs of target and block, for Spark."""
        try:
            yield from self._outbox.records()
            yield from self._costs()
            self._write()
        except Stop as stop:
            self.account.stopped = stop.letter
        yield from self._report()

    def stop(self, stop: Stop) -> Iterator[bytes]:
        """Send only the report, since a failed record stops the run."""
        self.account.stopped = stop.letter
        return self._report()

    def _report(self) -> Iterator[bytes]:
        return self._outbox.message(BlockKind.REPORT, self.account.report().encoded())

    def _write(self) -> None:
        attempt = staging.Attempt(self.plan.epoch, self.batch, self.plan.level, self.gate, self.origin, self.attempt)
        for number, batches in self._staged.items():
            node = self.program.nodes[number]
            assert node.staging is not None
            written = staging.write(node.staging, node.name, attempt, batches)
            self.account.receipts += written.receipts
            for refusal in written.refused:  # become dead letters of the sink
                self._refuse(node, refusal.record, refusal.error)
        if self.account.letters:
            letters = [
                {"topology": self.program.topology, "batch": self.batch, **vars(letter)} for letter in self.account.letters
            ]
            table = pa.RecordBatch.from_pylist(letters, schema=LETTER)
            self.account.receipts += staging.write(self.program.dead_letters, "", attempt, [table]).receipts
            self.account.dead = len(letters)

    def _costs(self) -> Iterator[bytes]:
        """Report the costs of records by key, or the variances by column while the key is unknown."""
        for number, arrived in self._arrived.items():
            node, key = self.program.nodes[number], self._routes[number].key
            if key is None:
                rows = pa.Table.from_batches([batch for batch, _ in arrived])
                self.account.variances[node.name] = variances(rows, np.concatenate([seconds for _, seconds in arrived]))
            else:
                replica = self.origin - self.plan.ranges[number][0]
                summed = costs.summed(replica, key, arrived, self.program.seed)
                yield from self._outbox.message(BlockKind.COSTS, costs.pack(summed), number)
