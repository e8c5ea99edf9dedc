"""One batch as one Spark job: the stages of the program, at the widths of the plan."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from springtide.errors import RunError
from springtide.model.costs import TaskCosts
from springtide.model.source import Range
from springtide.model.topology import Kind
from springtide.policy.group import Route
from springtide.spark.driver.sources import columns
from springtide.spark.driver.streams import Parts
from springtide.spark.private.query import detached
from springtide.spark.private.stages import Stages
from springtide.spark.shared import blocks, costs
from springtide.spark.shared.blocks import BlockKind
from springtide.spark.shared.program import Node, Program
from springtide.spark.shared.report import Report
from springtide.spark.shared.shipping import Shipment, ship
from springtide.spark.shared.stage_plan import StagePlan
from springtide.spark.task.context import ASIDE_PROPERTY, STATE_PROPERTY
from springtide.spark.task.entry import EntryStage, Port
from springtide.spark.task.merging import Merge
from springtide.spark.task.reading import ReadStage
from springtide.spark.task.rows import Onward, Pick
from springtide.spark.task.stage import Stage


@dataclass
class BatchOutcome:
    """The reports of a batch's tasks."""

    tasks: list[Report] = field(default_factory=list)
    costs: dict[str, list[TaskCosts]] = field(default_factory=dict)
    source_rows: dict[str, int] = field(default_factory=dict)  # of sources whose rows only the JVM reads
    created: list[tuple[float, float]] = field(default_factory=list)


class Pipeline:
    """Turns a batch's DataFrame and a plan's widths into a job, and runs it."""

    def __init__(self, session: SparkSession, program: Program, epoch: int) -> None:
        self._session, self._program, self._epoch = session, program, epoch
        self._stages = Stages(session.sparkContext)
        self._shipment = ship(session.sparkContext, program)
        self._sources = tuple(node for node in program.nodes if node.kind is Kind.SOURCE)
        self._widths: dict[str, int] = {}
        self._routes: Mapping[str, Route] | None = None
        self._shipped_routes: dict[int, Shipment] = {}  # by level
        self._outdated: list[list[Shipment]] = []
        self._functions: dict[object, Any] = {}
        self._shed_before: float | None = None
        self.aside: str | None = None  # the records that tasks leave out: see ``crashes``
        self._merging = f"springtide-merge-{uuid.uuid4().hex[:8]}"

    def run(
        self, frame: DataFrame, parts: Parts, widths: Mapping[str, int], routes: Mapping[str, Route],
        shed_before: float | None = None, versions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> BatchOutcome:  # fmt: skip
        """Run a batch without committing it. ``frame``: the rows of sources that Spark reads; ``parts``: the ranges of those
        that tasks read. Unchanged ``routes`` are the same object."""
        if versions:
            self._session.sparkContext.setLocalProperty(STATE_PROPERTY, json.dumps(versions))
        if self.aside:
            self._session.sparkContext.setLocalProperty(ASIDE_PROPERTY, self.aside)
        if shed_before != self._shed_before:
            self._shed_before = shed_before
            self._functions.clear()
            self._stages.forget()
        self._prepare(dict(widths), routes)
        outcome = BatchOutcome()
        releases: list[Callable[[], Any]] = []
        try:
            stage = self._with_sql(self._enter(frame, parts, outcome, releases), 0, releases)
            for level in range(1, len(self._program.levels)):
                shuffled = self._stages.shuffle(stage, self._sizes[level])
                stage = self._with_sql(self._stages.apply(shuffled, self._stage_function(level)), level, releases)
            self._read(self._stages.collect(stage), outcome)
        finally:
            for release in releases:
                release()
        return outcome

    def merge_state(self, operator: str, names: Sequence[str], target: str, oldest: bool, now: int) -> Mapping[str, Any]:
        """Merge segments of an operator's state into one, in a separate task, and wait for it."""
        number = next(node.number for node in self._program.nodes if node.name == operator)
        context = self._session.sparkContext
        context.addJobTag(self._merging)
        rests = context.defaultParallelism > 1  # on a single core batches wait for the merge
        work = Merge(self._shipment, number, tuple(names), target, oldest, now, rests)
        result: Mapping[str, Any] = context.parallelize([0], 1).map(work).collect()[0]
        return result

    def cancel_merges(self) -> None:
        """Cancel running merges. The next start removes their files."""
        with contextlib.suppress(Exception):  # the JVM may be dead, and its merges with it
            self._session.sparkContext.cancelJobsWithTag(self._merging)

    def _prepare(self, widths: dict[str, int], routes: Mapping[str, Route]) -> None:
        """Discard functions and routes if widths or routes have changed."""
        while len(self._outdated) > 2:  # a speculative copy of a task of the last batch may still run
            for shipment in self._outdated.pop(0):
                shipment.destroy()
        if routes is not self._routes:
            self._outdated.append(list(self._shipped_routes.values()))
            self._shipped_routes = {}
        elif widths == self._widths:
            return
        self._widths, self._routes = widths, routes
        self._functions.clear()
        self._stages.forget()

    def _read(self, collected: bytes, outcome: BatchOutcome) -> None:
        for block in blocks.split(collected):
            header, payload = blocks.parse(block), blocks.payload(block)
            if header.kind is BlockKind.COSTS:
                outcome.costs.setdefault(self._program.nodes[header.consumer].name, []).append(costs.unpack(payload))
            else:
                outcome.tasks.append(Report.decoded(payload))

    @property
    def _ranges(self) -> Mapping[int, tuple[int, int]]:
        return self._program.ranges(self._widths)[0]

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self._program.ranges(self._widths)[1]

    def _stage_plan(self, level: int) -> StagePlan:
        following = self._sizes[level + 1] if level + 1 < len(self._sizes) else 1
        if level not in self._shipped_routes:
            self._shipped_routes[level] = ship(self._session.sparkContext, self._routes_at(level))
        return StagePlan(level, dict(self._ranges), following, self._epoch, self._shipped_routes[level], self._shed_before)

    def _routes_at(self, level: int) -> dict[int, Route]:
        """The routes for a stage: complete if its tasks route to the operator or own its shards, else only the key."""
        assert self._routes is not None
        nodes = self._program.nodes
        complete = self._program.fed_from(level) | {number for number in self._program.levels[level] if nodes[number].layout}
        named = {node.number: self._routes[node.name] for node in nodes if node.name in self._routes}
        return {number: route if number in complete else Route(route.key) for number, route in named.items()}

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """A stage's function, made once per set of widths."""
        if key not in self._functions:
            self._functions[key] = make()
        return self._functions[key]

    def _stage_function(self, level: int) -> Stage:
        return self._once(("stage", level), lambda: Stage(self._shipment, self._stage_plan(level)))  # type: ignore[no-any-return]

    def _entry(self, frame: DataFrame, level: int, *ports: Port) -> Any:
        """A stage in which rows of a DataFrame enter the operators behind ``ports``."""
        function = self._once(
            ("entry", level, ports),
            lambda: EntryStage(self._shipment, self._stage_plan(level), to_arrow_schema(frame.schema, timezone="UTC"), ports),
        )
        return self._stages.apply(self._stages.entry(frame), function)

    def _enter(self, frame: DataFrame, parts: Parts, outcome: BatchOutcome, releases: list[Callable[[], Any]]) -> Any:
        """The first stage, with the records of the sources."""
        entries = [self._reading(source, parts.get(source.name, ())) for source in self._sources if source.source is not None]
        if any(source.in_jvm for source in self._sources):
            entries += self._enter_rows(frame, outcome, releases)
        return self._stages.union(entries)

    def _reading(self, source: Node, parts: Sequence[Sequence[Range]]) -> Any:
        """A stage whose tasks read a source; with a task that reads nothing if the batch has no records of it."""
        function = self._once(("reading", source.number), lambda: ReadStage(self._shipment, self._stage_plan(0), source.number))
        return self._stages.apply(self._stages.scattered([json.dumps(part).encode() for part in parts or [()]]), function)

    def _enter_rows(self, frame: DataFrame, outcome: BatchOutcome, releases: list[Callable[[], Any]]) -> list[Any]:
        """Stages with the rows of the sources that Spark reads."""
        sources = [source for source in self._sources if source.in_jvm]
        read_by_sql = [s for s in sources if self._sql_consumers(s)]
        if read_by_sql:
            frame = detached(frame).persist()
            releases.append(frame.unpersist)
        entries = []
        in_python = [s for s in sources if s.forward or self._python_shuffled(s)]
        if in_python:
            single = len(self._sources) == 1
            ports = tuple(Port(s.number, None if single else self._sources.index(s)) for s in in_python)
            entries.append(self._entry(frame, 0, *ports))
        for source in read_by_sql:
            rows = self._rows_of(frame, source)
            if source not in in_python:
                _count_in_jvm(rows, source, outcome)
            entries += self._sql_entries(rows, source, 0, releases)
        return entries

    def _rows_of(self, frame: DataFrame, source: Node) -> DataFrame:
        if len(self._sources) == 1:
            return frame
        column = f"s{self._sources.index(source)}"
        return frame.where(F.col(column).isNotNull()).select(f"{column}.*")

    def _sql_consumers(self, node: Node) -> list[Node]:
        return [self._program.nodes[n] for n in node.shuffled if self._program.nodes[n].kind is Kind.SQL]

    def _python_shuffled(self, node: Node) -> list[int]:
        return [n for n in node.shuffled if self._program.nodes[n].kind is not Kind.SQL]

    def _with_sql(self, stage: Any, level: int, releases: list[Callable[[], Any]]) -> Any:
        """The sql operators that run between this level and the next, fed from its blocks."""
        fed = [
            node for node in self._program.nodes
            if node.kind is Kind.SQL and self._program.arrival[node.number] == level and not self._reads_jvm(node)
        ]  # fmt: skip
        if not fed:
            return stage
        releases.append(self._stages.persist(stage))
        entries = [self._stages.apply(stage, self._once(("onward", level), lambda: Onward(level)))]
        for node in fed:
            rows = self._stages.elements(stage).mapPartitions(Pick(node.number, node.input_schema))
            frame = self._session.createDataFrame(rows, from_arrow_schema(node.input_schema), verifySchema=False)
            entries += self._run_sql(frame, node, level, releases)
        return self._stages.union(entries)

    def _reads_jvm(self, node: Node) -> bool:
        """Whether a sql operator reads straight from a source or from another sql operator."""
        return any(node.number in producer.shuffled and producer.in_jvm for producer in self._program.nodes)

    def _sql_entries(self, frame: DataFrame, producer: Node, level: int, releases: list[Callable[[], Any]]) -> list[Any]:
        return [e for node in self._sql_consumers(producer) for e in self._run_sql(frame, node, level, releases)]

    def _run_sql(self, frame: DataFrame, node: Node, level: int, releases: list[Callable[[], Any]]) -> list[Any]:
        """Apply a user's DataFrame function, and pass its rows to the operators behind it."""
        assert node.function is not None and node.input_schema is not None
        result = node.function(frame.select(*columns(node.input_schema)))
        _check_result(node, result)
        in_python = bool(node.forward or self._python_shuffled(node))
        if len(self._sql_consumers(node)) + in_python > 1:
            result = result.persist()
            releases.append(result.unpersist)
        entries = self._sql_entries(result, node, level, releases)
        if in_python:
            entries.append(self._entry(result, level, Port(node.number)))
        return entries


def _check_result(node: Node, result: DataFrame) -> None:
    if not isinstance(result, DataFrame):
        raise RunError(f"sql operator {node.name!r} must return a DataFrame, but returned {type(result).__name__}")
    assert node.schema is not None
    missing = [name for name in node.schema.names if name not in result.columns]
    if missing:
        raise RunError(f"sql operator {node.name!r} returned no column {missing[0]!r}; it has: {', '.join(result.columns)}")
    own = StructType([result.schema[name] for name in node.schema.names])
    offered = to_arrow_schema(own, timezone="UTC")
    for found, wanted in zip(offered, node.schema, strict=True):
        if found.type != wanted.type and _family(found.type) != _family(wanted.type):
            raise RunError(f"sql operator {node.name!r}: {found.name!r} is {found.type}, wanted {wanted.type}; cast it there")


def _family(kind: pa.DataType) -> object:
    """Types of one family are cast to each other, for example integers of 32 and 64 bits."""
    families = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_nested)
    return next((family for family in families if family(kind)), kind)


def _count_in_jvm(rows: DataFrame, source: Node, outcome: BatchOutcome) -> None:
    """Count the rows that Python never sees, and sample their creation times."""
    wanted = [F.count(F.lit(1))]
    if source.created is not None:
        created = F.col(source.created)
        micros = created if rows.schema[source.created].dataType.typeName() == "long" else F.unix_micros(created)
        wanted.append(F.percentile_approx(micros, [(i + 0.5) / 20 for i in range(20)]))
    counted = rows.agg(*wanted).collect()[0]
    outcome.source_rows[source.name] = counted[0]
    if source.created is not None and counted[1]:
        outcome.created += [(at / 1e6, counted[0] / len(counted[1])) for at in counted[1]]
