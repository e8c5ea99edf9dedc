"""What runs inside a Spark task: records through the operators of one stage, then blocks for the next.

Everything here is a pure function of the program, the plan and the records in their order; a task that is run again,
anywhere, sends the same records to the same places.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.model.schema import microseconds
from springtide.model.topology import PASSING, Kind, OnError
from springtide.policy.group import Route, Share, checked
from springtide.policy.group.cost_key import variances
from springtide.policy.group.shards import OWNER
from springtide.processors.timed import Timed
from springtide.spark.shared import blocks, costs
from springtide.spark.shared.blocks import BlockKind, Header
from springtide.spark.shared.costs import Seconds
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.progress import INDEX, ROWS, Crashed, page_of
from springtide.spark.shared.shipping import Shipment
from springtide.spark.state.catalog import SUFFIX
from springtide.spark.state.stepping import Stepping, Version
from springtide.spark.task import staging
from springtide.spark.task.chunk import Chunk, Refused
from springtide.spark.task.letters import LETTER, dead_letter
from springtide.spark.task.meter import Meter, clocked, per_record

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class StagePlan:
    """The part of a plan that the tasks of one stage need."""

    level: int
    ranges: Mapping[int, tuple[int, int]]  # operator → (first task, width) at its level
    next_size: int  # tasks of the next stage
    epoch: int
    shipped_routes: Shipment  # a mapping from operators to routes
    shed_before: float | None = None  # records of the sources that were created before are left out

    @property
    def routes(self) -> Mapping[int, Route]:
        routes: Mapping[int, Route] = self.shipped_routes.unpacked()
        return routes


@dataclass
class Tally:
    """What this task did for one operator."""

    rows_in: int = 0
    rows_out: int = 0
    failures: int = 0
    busy_s: float = 0.0
    started: float = 0.0
    finished: float = 0.0


@dataclass
class TaskOutcome:
    """What a task tells the driver, in one block: its tallies, what it staged, what failed, when records were made."""

    task: int
    tallies: dict[str, dict[str, float]] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    created: list[tuple[float, float]] = field(default_factory=list)
    sinks: dict[str, int] = field(default_factory=dict)
    variances: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    state: list[dict[str, Any]] = field(default_factory=list)  # what was done to it, by stateful operators
    times: dict[str, int] = field(default_factory=dict)  # the latest record's, in microseconds, at each watermark
    dead: int = 0
    shed: int = 0
    stopped: dict[str, str] | None = None

    def packed(self) -> bytes:
        """As compressed JSON: a small answer is fetched 5 ms faster than a large one, see ``Stages.collect``."""
        return zlib.compress(json.dumps(vars(self)).encode(), level=1)


def unpacked(report: bytes | memoryview) -> dict[str, Any]:
    """What a task told."""
    told: dict[str, Any] = json.loads(zlib.decompress(report))
    return told


class Stop(Exception):
    """A record failed in an operator that is told to stop the run."""

    def __init__(self, letter: dict[str, str]) -> None:
        super().__init__(letter["error"])
        self.letter = letter


class Task:
    """One task of one stage in one batch."""

    def __init__(self, program: Program, plan: StagePlan, batch: int, attempt: int, origin: int, gate: int = 0) -> None:
        self.program, self.plan, self.batch, self.attempt, self.origin = program, plan, batch, attempt, origin
        self.routes = plan.routes
        self.gate = gate
        self.tallies: dict[int, Tally] = {}
        self.leaving: dict[tuple[int, int], list[pa.RecordBatch]] = {}  # (consumer, producer) → batches
        self.staged: dict[int, list[pa.RecordBatch]] = {}
        self.letters: list[dict[str, str]] = []
        self.arrived: dict[int, list[tuple[pa.RecordBatch, Seconds]]] = {}  # operator → what arrived, and what it took
        self._meter: Meter | None = None
        self.outcome = TaskOutcome(origin)
        self.page = page_of(program.workers, plan.epoch)
        self._aside = aside(batch, plan.level, gate, origin)

    def running(self) -> contextlib.AbstractContextManager[None]:
        """While it runs, the driver can see where it is."""
        return self.page.task(self.batch, self.plan.level, self.gate, self.origin)

    def emit(self, node: Node, chunk: Chunk) -> None:
        """Hand what an operator produced to those that read it: here, or in a later stage."""
        if not len(chunk):
            return
        if node.shuffled or len(node.forward) > 1:
            chunk.batch()  # find misfits once, before anybody reads
        for number in node.shuffled:
            in_jvm = node.kind in (Kind.SOURCE, Kind.SQL) and self.program.nodes[number].kind is Kind.SQL
            if not in_jvm:  # else it reads the rows where they came from
                self.leaving.setdefault((number, node.number), []).append(chunk.batch())
        for position, number in enumerate(node.forward):
            # objects of its own for each: what one function does to a list in a record is not for another to see
            own = chunk if position == 0 else Chunk(chunk.schema, batch=chunk.batch(), origins=chunk.origins)
            self.receive(self.program.nodes[number], own)

    def take(self, node: Node, chunk: Chunk) -> None:
        """Records that were sent to an operator. If its grouping learns, see what each of them costs in this task."""
        if not node.learns or (self.routes[node.number].key == () and node.learns_by_key):
            self.receive(node, chunk)
            return
        batch = chunk.batch()
        chunk.origins = np.arange(batch.num_rows)
        self._meter = Meter(batch.num_rows)
        self.receive(node, chunk)
        self.arrived.setdefault(node.number, []).append((batch, self._meter.finished()))
        self._meter = None

    def receive(self, node: Node, chunk: Chunk) -> None:
        """Run one operator on a chunk, and pass on what comes out."""
        tally = self.tallies.setdefault(node.number, Tally(started=time.time()))
        if node.kind in (Kind.SINK, Kind.MAP_BATCHES):
            chunk.batch()  # find misfits before they are counted
        tally.rows_in += len(chunk)
        if node.kind in PASSING:
            produced = chunk
            self._see_times(node, chunk)
        elif node.kind is Kind.SINK:
            self._stage(node, chunk)
            tally.rows_out += len(chunk)
            tally.finished = time.time()
            return
        else:
            begin = time.perf_counter()
            with self.page.operator(node.number):
                produced = self._apply(node, chunk, tally.rows_in - len(chunk))
            tally.busy_s += time.perf_counter() - begin
        tally.rows_out += len(produced)
        tally.finished = time.time()
        self.emit(node, produced)

    def remember(self, node: Node, records: pa.RecordBatch, version: Version) -> None:
        """Run a stateful operator on all records of this task, and pass on what comes out."""
        assert node.kept is not None
        tally = self.tallies.setdefault(node.number, Tally(started=time.time()))
        tally.rows_in += records.num_rows
        name = f"{self.batch:08d}-{self.plan.epoch:06d}-{self.origin:05d}-{self.attempt}{SUFFIX}"
        owned = self.routes[node.number].table[OWNER] == self.origin - self.plan.ranges[node.number][0]
        stepping = Stepping(node.kept, version, owned, name, self.origin, self._before_call(node))
        begin = time.perf_counter()
        produced = []
        with self.page.operator(node.number):
            for outcome in stepping.run(records):
                produced += [] if outcome.output is None else [outcome.output]
                for failed, error in outcome.failed:
                    for record in failed.to_pylist():
                        self._failed(node, record, error)
        tally.busy_s += time.perf_counter() - begin
        tally.rows_out += sum(part.num_rows for part in produced)
        tally.finished = time.time()
        self.outcome.state.append(vars(stepping.receipt))
        for part in produced:
            self.emit(node, Chunk(node.schema, batch=part))
        if stepping.late is not None and stepping.late.num_rows:
            for number in node.late:
                self.receive(self.program.nodes[number], Chunk(node.input_schema, batch=stepping.late))

    def _before_call(self, node: Node) -> Callable[[], None]:
        """Called before each method of a processor: notes the call, and fails it if it was put aside."""
        calls, numbers, deaths = itertools.count(), self.page.numbers, self._aside.get(node.number, {})

        def before_call() -> None:
            numbers[INDEX] = call = next(calls)
            if call in deaths:
                raise Crashed(deaths[call])

        return before_call

    def _see_times(self, node: Node, chunk: Chunk) -> None:
        """The latest time of the records that pass a watermark."""
        if node.event_time is not None and len(chunk):
            latest = pc.max(microseconds(chunk.batch().column(node.event_time.column))).as_py()
            if latest is not None:
                self.outcome.times[node.name] = max(latest, self.outcome.times.get(node.name, latest))

    def _apply(self, node: Node, chunk: Chunk, first: int) -> Chunk:
        """``first``: the index of the chunk's first record among all that the operator gets in this task."""
        if node.kind is Kind.MAP_BATCHES:
            return self._apply_batch(node, chunk, first)
        assert node.function is not None and node.input_record is not None
        records = self._without_deadly(node, chunk.records(node.input_record, node.readers), first)
        function, noted = (node.function, None) if self._meter is None else clocked(node.function, node.kind)
        origins = chunk.origins
        if node.kind is Kind.FILTER:
            result = chunk.where(self._filter(node, function, records, first))
        elif node.kind is Kind.MAP:
            produced, failed = self._map(node, function, records, first)
            result = self._made(node, produced, None if origins is None else np.delete(origins, failed))
        else:
            produced, sizes = self._flat_map(node, function, records, first)
            result = self._made(node, produced, None if origins is None else np.repeat(origins, sizes))
        if self._meter is not None and noted is not None:
            self._meter.add(origins, per_record(noted, records))
        return result

    def _without_deadly(self, node: Node, records: list[Any], first: int) -> list[Any]:
        """The records, with those refused that were put aside because they killed their worker."""
        places = {index - first: deaths for index, deaths in self._aside.get(node.number, {}).items()}
        if not any(0 <= place < len(records) for place in places):
            return records
        return [Refused(one, Crashed(places[place])) if place in places else one for place, one in enumerate(records)]

    def _made(self, node: Node, records: list[Any], origins: npt.NDArray[np.int64] | None) -> Chunk:
        def misfit(record: Any, error: Exception) -> None:
            self.misfit(node, record, error)

        return Chunk(node.schema, records=records, misfit=misfit, origins=origins)

    # Three loops, not one that asks for the kind of operator at every record: 40 % less for functions that do little. Each
    # notes the record that it is at: 30 ns, beside the 57 of a function that does nothing. They catch also what sys.exit()
    # raises: it ends the record, not the worker.

    def _map(self, node: Node, function: Function, records: list[Any], first: int) -> tuple[list[Any], list[int]]:
        """What was made, and the places of those records that failed."""
        produced: list[Any] = []
        failed: list[int] = []
        wanted, numbers = node.record or object, self.page.numbers
        for index, record in enumerate(records, first):
            numbers[INDEX] = index
            try:
                if record.__class__ is Refused:
                    raise record.error
                result = function(record)
                if not isinstance(result, wanted):
                    raise _wrong(node, result)
                produced.append(result)
            except BaseException as error:  # noqa: BLE001  whatever a user's function raises is the record's fate
                self._failed(node, record, error)
                failed.append(len(produced) + len(failed))
        return produced, failed

    def _filter(self, node: Node, function: Function, records: list[Any], first: int) -> list[bool]:
        kept, numbers = [], self.page.numbers
        for index, record in enumerate(records, first):
            numbers[INDEX] = index
            keep = False
            try:
                if record.__class__ is Refused:
                    raise record.error
                keep = bool(function(record))
            except BaseException as error:  # noqa: BLE001
                self._failed(node, record, error)
            kept.append(keep)
        return kept

    def _flat_map(self, node: Node, function: Function, records: list[Any], first: int) -> tuple[list[Any], list[int]]:
        """What was made, and how many of each record."""
        produced: list[Any] = []
        sizes: list[int] = []
        wanted, numbers = node.record or object, self.page.numbers
        for index, record in enumerate(records, first):
            numbers[INDEX] = index
            before = len(produced)
            try:
                if record.__class__ is Refused:
                    raise record.error
                results = list(function(record))
                for result in results:
                    if not isinstance(result, wanted):
                        raise _wrong(node, result)
                produced += results
            except BaseException as error:  # noqa: BLE001
                self._failed(node, record, error)
            sizes.append(len(produced) - before)
        return produced, sizes

    def _apply_batch(self, node: Node, chunk: Chunk, first: int) -> Chunk:
        assert node.function is not None
        batch = chunk.batch()
        self.page.numbers[INDEX], self.page.numbers[ROWS] = first, batch.num_rows
        deaths = self._aside.get(node.number, {}).get(first)
        try:
            if deaths is not None:
                raise Crashed(deaths)
            result = node.function(batch)
            if not isinstance(result, pa.RecordBatch):
                raise TypeError(f"map_batches wants a pyarrow.RecordBatch back, got {type(result).__name__}")
            assert node.schema is not None
            fitted = result.select(node.schema.names).cast(node.schema)
        except BaseException as error:  # noqa: BLE001  the batch is the unit that fails, with all its records
            for row in batch.to_pylist():
                self._failed(node, row, error)
            return Chunk(node.schema, batch=pa.RecordBatch.from_pylist([], schema=node.schema))
        if isinstance(node.function, Timed):
            for row in node.function.untimed(batch).to_pylist():
                self._failed(node, row, node.function.fault)
        return Chunk(node.schema, batch=fitted)  # which of its rows a record became is not known

    def _failed(self, node: Node, record: Any, error: BaseException) -> None:
        letter = dead_letter(node.name, record, error)
        if node.on_error is OnError.STOP and not isinstance(error, Crashed):
            raise Stop(letter)
        self.tallies[node.number].failures += 1
        self.letters.append(letter)

    def misfit(self, node: Node, record: Any, error: Exception) -> None:
        """A result that does not fit the declared schema, found when it was turned into Arrow; or that a sink cannot write."""
        self._failed(node, record, error)
        self.tallies[node.number].rows_out -= 1

    def _stage(self, node: Node, chunk: Chunk) -> None:
        batch = chunk.batch()
        self.outcome.sinks[node.name] = self.outcome.sinks.get(node.name, 0) + batch.num_rows
        if node.staging is not None:
            self.staged.setdefault(node.number, []).append(batch)

    def finish(self) -> Iterator[bytes]:
        """Write what sinks shall commit, then send the blocks and the report: pairs of target and block, for Spark."""
        try:
            yield from self._blocks()
            yield from self._costs()
            self._write()
        except Stop as stop:
            self.stop(stop)
        yield from self.report()

    def stop(self, stop: Stop) -> None:
        self.outcome.stopped = stop.letter

    def report(self) -> Iterator[bytes]:
        self.outcome.tallies = {self.program.nodes[n].name: vars(tally) for n, tally in self.tallies.items()}
        header = Header(BlockKind.REPORT, 0, 0, 0, self.origin, self.plan.level, self.gate, self.origin, 0)
        yield from blocks.pair(self.origin % self.plan.next_size, header.block(self.outcome.packed()))

    def _write(self) -> None:
        place = staging.Place(self.plan.epoch, self.batch, self.plan.level, self.gate, self.origin, self.attempt)
        for number, batches in self.staged.items():
            node = self.program.nodes[number]
            assert node.staging is not None
            written = staging.write(node.staging, node.name, place, batches)
            self.outcome.receipts += written.receipts
            for refusal in written.refused:  # a dead letter of the sink's
                self.misfit(node, refusal.record, refusal.error)
                self.outcome.sinks[node.name] -= 1
        if self.letters:
            letters = [{"topology": self.program.topology, "batch": self.batch, **letter} for letter in self.letters]
            table = pa.RecordBatch.from_pylist(letters, schema=LETTER)
            self.outcome.receipts += staging.write(self.program.dead_letters, "", place, [table]).receipts
            self.outcome.dead = len(letters)

    def _blocks(self) -> Iterator[bytes]:
        for (consumer, producer), batches in sorted(self.leaving.items()):
            rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
            node = self.program.nodes[consumer]
            level = self.program.arrival[consumer]
            if node.kind is Kind.SQL:  # whichever task has the rows, the JVM reads them when their level has run
                kind = BlockKind.ROWS
                parts: Iterable[tuple[int, pa.RecordBatch]] = ((self.origin, part) for batch in rows for part in _cut(batch))
            else:
                kind = BlockKind.DATA
                parts = (part for batch in rows for part in self._route(node, batch))
            for chunk, (target, batch) in enumerate(parts):
                header = Header(kind, level, consumer, producer, target, self.plan.level, self.gate, self.origin, chunk)
                yield from blocks.pair(target % self.plan.next_size, header.block(batch.serialize().to_pybytes()))

    def _costs(self) -> Iterator[bytes]:
        """What the records cost: by key, or, while no key is known, what each column tells about it."""
        for number, arrived in self.arrived.items():
            node, key = self.program.nodes[number], self.routes[number].key
            if key is None:
                rows = pa.Table.from_batches([batch for batch, _ in arrived])
                told = variances(rows, np.concatenate([seconds for _, seconds in arrived]))
                self.outcome.variances[node.name] = {column: tuple(one) for column, one in told.items()}
            else:
                replica = self.origin - self.plan.ranges[number][0]
                header = Header(BlockKind.COSTS, 0, number, 0, self.origin, self.plan.level, self.gate, self.origin, 0)
                payload = costs.pack(costs.summed(replica, key, arrived, self.program.seed))
                yield from blocks.pair(self.origin % self.plan.next_size, header.block(payload))

    def _route(self, node: Node, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Part a batch by target task, keeping the order of the records within each."""
        assert node.grouping is not None
        first, width = self.plan.ranges[node.number]
        route = self.routes[node.number]
        if node.kept is None:
            share = Share.of(batch, route.key or (), width, self.origin, self.batch, self.program.seed)
        else:  # the identity of a key is found once, and goes with the record
            one, two = node.kept.identities(batch)
            batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(one), pa.array(two)], schema=node.kept.arriving)
            share = Share(batch.num_rows, width, self.origin, self.batch, lambda: one)
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


def _wrong(node: Node, result: Any) -> TypeError:
    assert node.record is not None
    return TypeError(f"{node.name} is to return {node.record.__name__}, got {type(result).__name__}")


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
        if self._is_called(self._node_of(program, split)):
            arrived.setdefault(split, [])
        batch, attempt = task_context()
        for target, received in sorted(arrived.items()):
            task = Task(program, self.plan, batch, attempt, target)
            with task.running():
                yield from self._run(task, program, received)

    def _run(self, task: Task, program: Program, received: list[tuple[Header, bytes]]) -> Iterator[bytes]:
        try:
            node = self._node_of(program, task.origin)
            assert node is not None, f"no operator has task {task.origin} at level {self.plan.level}"
            received.sort(key=lambda one: one[0])
            if node.kept is not None:
                parts = [decode(block, node.kept.arriving) for _, block in received]
                records = pa.concat_batches(parts or [_nothing(node.kept.arriving)])
                task.remember(node, records, versions()[node.name])
            for _, block in received if node.kept is None else ():
                task.take(node, Chunk(node.input_schema, batch=decode(block, node.input_schema)))
        except Stop as stop:
            task.stop(stop)
            yield from task.report()
        else:
            yield from task.finish()

    def _node_of(self, program: Program, target: int) -> Node | None:
        """The operator whose task this is, if it is one's: each has its own range of them."""
        for number in program.levels[self.plan.level]:
            first, width = self.plan.ranges[number]
            if first <= target < first + width:
                return program.nodes[number]
        return None

    def _is_called(self, node: Node | None) -> bool:
        """Whether a task has to run without a record: state may have timers that have come."""
        return node is not None and node.kept is not None and any(node.kept.timers)


@dataclass(frozen=True)
class Port:
    """What enters a stage from the JVM: rows as if ``producer`` had emitted them."""

    producer: int
    column: int | None = None  # which struct column holds them, where several sources share the rows


@dataclass(frozen=True, eq=False)
class Entry:
    """The function that Spark runs for each partition that comes from the JVM: Arrow batches in, blocks out."""

    shipment: Shipment
    plan: StagePlan
    schema: pa.Schema
    ports: tuple[Port, ...]

    def __call__(self, split: int, elements: Iterable[bytes]) -> Iterator[bytes]:
        program = self.shipment.unpacked()
        batch, attempt = task_context()
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
            task.stop(stop)
            yield from task.report()
        else:
            yield from task.finish()

    def _enter(self, task: Task, program: Program, port: Port, table: pa.Table) -> None:
        node = program.nodes[port.producer]
        batch = _one_batch(table, port)
        if not batch.num_rows:
            return
        if not node.ordered:
            batch = by_content(batch)
        tally = task.tallies.setdefault(node.number, Tally(started=time.time()))
        if node.kind is Kind.SOURCE:
            tally.rows_in += batch.num_rows
        if node.created is not None and node.kind is Kind.SOURCE:
            if self.plan.shed_before is not None:
                batch, shed = younger(batch, node.created, self.plan.shed_before)
                task.outcome.shed += shed
            task.outcome.created += creation_quantiles(batch.column(node.created))
        tally.rows_out += batch.num_rows
        chunk = self._fitted(task, node, batch)
        tally.finished = time.time()
        task.emit(node, chunk)

    def _fitted(self, task: Task, node: Node, batch: pa.RecordBatch) -> Chunk:
        """Rows as the schema wants them. What Spark read as null where none is declared, as from a malformed line, fails
        alone; and so does what Arrow cannot cast at once, though each row can be: a null struct whose fields are not null."""
        assert node.schema is not None
        own = batch.select(node.schema.names)
        try:
            return Chunk(node.schema, batch=own.cast(node.schema))
        except (pa.ArrowException, ValueError):
            chunk = Chunk(node.schema, records=own.to_pylist(), misfit=lambda row, error: task.misfit(node, row, error))
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
    if len(batches) > 1:  # Arrow parts what does not fit its 32-bit offsets
        raise ValueError("a task got more than 2 GiB of text in one batch; read less at a time, or in more partitions")
    return batches[0]


def decode(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(blocks.payload(block)), schema)


def by_content(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in an order that depends on nothing but what is in them; equal rows are interchangeable."""
    keys = [hashlib.blake2b(repr(row).encode(), digest_size=16).digest() for row in batch.to_pylist()]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return batch.take(pa.array(order, pa.int64()))


def younger(batch: pa.RecordBatch, created: str, since: float) -> tuple[pa.RecordBatch, int]:
    """The records that were created since then, or that do not say when; and how many are left out."""
    times = microseconds(batch.column(created))
    kept = pc.fill_null(pc.greater_equal(times, round(since * 1e6)), True)
    rest = batch.filter(kept)
    return rest, batch.num_rows - rest.num_rows


def creation_quantiles(column: pa.Array, parts: int = 64) -> list[tuple[float, float]]:
    """Up to 64 creation times (seconds since 1970) that stand for all, each with the number of records it stands for."""
    times = np.sort(microseconds(column).drop_null().to_numpy(zero_copy_only=False)) / 1e6
    groups = np.array_split(times, min(parts, len(times))) if len(times) else []
    return [(float(group.mean()), float(len(group))) for group in groups]


def task_context() -> tuple[int, int]:
    """The batch that this task belongs to, and the number of this attempt, which no other attempt has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty(BATCH_PROPERTY)
    assert batch is not None, f"{BATCH_PROPERTY} is not set"  # as with PYSPARK_PIN_THREAD=false, which is refused
    return int(batch), context.taskAttemptId()


def versions() -> dict[str, Version]:
    """The state that each stateful operator begins this batch with."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    told = json.loads(context.getLocalProperty(STATE_PROPERTY) or "{}")
    return {name: Version.from_json(version) for name, version in told.items()}


def aside(batch: int, level: int, gate: int, task: int) -> dict[int, dict[int, int]]:
    """The records of a task that are not to be processed: by operator and index, how many workers they killed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    document = context.getLocalProperty(ASIDE_PROPERTY) if context is not None else None
    told: dict[str, Any] = json.loads(document) if document else {}
    found: dict[int, dict[int, int]] = {}
    for *where, operator, index, deaths in told.get("places", ()):
        if where == [level, gate, task] and told["batch"] == batch:
            found.setdefault(operator, {})[index] = deaths
    return found


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


STATE_PROPERTY = "springtide.state"
"""The local property by which the driver tells the tasks of a batch which files make up the state."""
ASIDE_PROPERTY = "springtide.aside"
"""The local property by which the driver names the records of a batch that killed their workers."""
BATCH_PROPERTY = "streaming.sql.batchId"
"""The local property by which Spark tells the tasks of a query which batch they belong to."""
