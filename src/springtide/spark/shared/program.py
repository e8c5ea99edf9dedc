"""A topology compiled for Spark: the operators of each stage, and the properties that every task needs.

Each stage has a level. Sources run at level 0; an operator behind a ``forward`` edge runs in the stages of its upstream; an
operator behind a shuffle runs at the level after its deepest upstream. All operators of a level share one Spark stage, each
with its own range of tasks. So any graph, with fan-out and union, is a sequence of stages, and no record is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model import schema as schemas
from springtide.model.endpoints import DataFrameSource, DiscardSink, FilesSink
from springtide.model.publisher import PublishedSink
from springtide.model.source import Reader, Source
from springtide.model.topology import DEAD_LETTERS, EventTime, Kind, OnCrash, OnError, Operator, Topology
from springtide.policy.group import Grouping, Learner
from springtide.spark.state.stepping import StateLayout

PRIVATE_FOLDER = "_springtide"
"""The folder for staged files in the output of a ``files`` sink. Spark and others skip names that begin with ``_``."""


@dataclass(frozen=True)
class Staging:
    """Where tasks stage the files of a sink: folder, format, prefix of the names, mode (less the umask), and the columns whose
    values name folders."""

    folder: str
    format: str
    stem: str = "part"
    mode: int = 0o666
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """The properties of an operator that tasks need."""

    number: int
    name: str
    kind: Kind
    function: Callable[..., Any] | None
    schema: pa.Schema | None  # of its output
    record: type | None
    input_schema: pa.Schema | None
    input_record: type | None  # the argument of its function
    on_error: OnError
    grouping: Grouping | None  # None: forward
    forward: tuple[int, ...]  # consumers in the same task
    shuffled: tuple[int, ...]  # consumers in a later stage
    created: str | None = None  # the column with the creation time, for sources that the JVM reads
    ordered: bool = True  # whether its rows have the same order when a partition is read again
    staging: Staging | None = None  # for sinks; None discards
    readers: Mapping[str, schemas.Reader] = field(default_factory=dict)  # for the fields of input_record
    layout: StateLayout | None = None  # for stateful operators
    late: tuple[int, ...] = ()  # consumers of late records in the same task
    event_time: EventTime | None = None
    learns: bool = False  # whether its grouping learns the costs of records
    learns_by_key: bool = True
    on_crash: OnCrash = OnCrash.STOP
    source: Source | None = None  # for sources that tasks read
    sink: PublishedSink | None = None  # for sinks outside the file system

    @cached_property
    def reader(self) -> Reader:
        """The reader of a source, for all tasks of a worker process."""
        assert self.source is not None and self.schema is not None
        return self.source.reader(self.schema, self.record)

    @property
    def in_jvm(self) -> bool:
        """Whether its output is rows of the JVM."""
        return self.kind is Kind.SQL or (self.kind is Kind.SOURCE and self.source is None)


@dataclass(frozen=True)
class Program:
    """All properties that do not depend on the plan, and so are the same in every batch."""

    topology: str
    nodes: tuple[Node, ...]
    levels: tuple[tuple[int, ...], ...]  # the operators that receive records at each level; sql ones excluded
    arrival: Mapping[int, int]  # the level at which a shuffled operator receives its records
    dead_letters: Staging
    seed: int = 0  # of the hash by which groupings route and learn
    workers: str = ""  # the folder for the pages of workers; "" for none

    def with_sinks(self, sinks: Mapping[str, PublishedSink]) -> Program:
        """The same program, whose tasks stage for published sinks by these declarations."""
        return replace(self, nodes=tuple(replace(n, sink=sinks[n.name]) if n.name in sinks else n for n in self.nodes))

    def fed_from(self, level: int) -> frozenset[int]:
        """The operators behind a shuffle to which the stage of a level may send records."""
        enter = (Kind.SOURCE, Kind.SQL)  # sources enter at level 0, which ``arrival`` does not have
        entered = [n.number for n in self.nodes if n.kind in enter and self.arrival.get(n.number, 0) == level]
        waiting, fed = [*self.levels[level], *entered], set[int]()
        while waiting:
            node = self.nodes[waiting.pop()]
            waiting += (*node.forward, *node.late)
            fed.update(node.shuffled)
        return frozenset(fed)

    def ranges(self, widths: Mapping[str, int]) -> tuple[Mapping[int, tuple[int, int]], tuple[int, ...]]:
        """For each shuffled operator its (first task, width), and for each level its number of tasks."""
        ranges: dict[int, tuple[int, int]] = {}
        sizes: list[int] = []
        for heads in self.levels:
            size = 0
            for number in heads:
                width = max(1, widths.get(self.nodes[number].name, 1))
                ranges[number] = (size, width)
                size += width
            sizes.append(max(1, size))
        return ranges, tuple(sizes)


def compile_topology(
    topology: Topology, groupings: Mapping[str, Grouping], staging: Mapping[str, Staging | None], dead_letters: Staging,
    layouts: Mapping[str, StateLayout] | None = None, seed: int = 0, workers: str = "",
) -> Program:  # fmt: skip
    """The program of a topology. ``groupings`` has an entry for every operator that is not chained, ``layouts`` for every
    stateful operator. ``seed``: of the hash by which groupings route and learn; a secret, where strangers send records."""
    numbers = {operator.name: number for number, operator in enumerate(topology)}
    layouts = layouts or {}
    nodes = tuple(
        _node(topology, o, numbers, groupings.get(o.name), staging.get(o.name), layouts.get(o.name)) for o in topology
    )
    arrival = _arrivals(topology, numbers)
    depth = max(arrival.values(), default=0)
    levels = tuple(
        tuple(n for n, level in arrival.items() if level == here and nodes[n].kind is not Kind.SQL) for here in range(depth + 1)
    )
    return Program(topology.name, nodes, levels, arrival, dead_letters, seed, workers)


def _node(
    topology: Topology,
    operator: Operator,
    numbers: Mapping[str, int],
    grouping: Grouping | None,
    staging: Staging | None,
    layout: StateLayout | None,
) -> Node:
    consumers = topology.consumers[operator.name]
    upstream = topology[operator.inputs[0]] if operator.inputs else None
    offered = topology.input_schema(operator) if upstream else None
    wants_records = operator.kind in (Kind.MAP, Kind.FILTER, Kind.FLAT_MAP)
    record = operator.accepts or (upstream.record if upstream else None)
    if wants_records and record is None:
        record = schemas.record_class(offered)
    spec = operator.source
    return Node(
        numbers[operator.name], operator.name, operator.kind, operator.function, operator.schema, operator.record,
        offered, record, operator.on_error, grouping,
        forward=tuple(numbers[c.name] for c in consumers if c.chained and c.kind not in (Kind.SQL, Kind.LATE)),
        shuffled=tuple(numbers[c.name] for c in consumers if not c.chained or c.kind is Kind.SQL),
        created=getattr(spec, "created", None) if not isinstance(spec, Source) else None,
        ordered=spec.ordered if isinstance(spec, DataFrameSource) else operator.kind is not Kind.SQL,
        staging=staging,
        layout=layout,
        late=tuple(numbers[c.name] for c in consumers if c.kind is Kind.LATE),
        event_time=operator.event_time,
        readers=schemas.readers(record, offered) if wants_records and record is not None else {},
        learns=isinstance(grouping, Learner),
        learns_by_key=getattr(grouping, "by_key", True),
        on_crash=operator.on_crash,
        source=spec.in_tasks() if isinstance(spec, Source) else None,
    )  # fmt: skip


def _arrivals(topology: Topology, numbers: Mapping[str, int]) -> dict[int, int]:
    """The level at which each shuffled operator and each sql operator receives its records.

    A sql operator runs between two stages: after the level of its input, and its output enters beside that level. If its
    input comes from another sql operator through Python operators, it has to wait for the next level.
    """
    runs: dict[str, set[int]] = {}  # the levels at which an operator runs
    behind_sql: dict[str, set[int]] = {}  # of those, the levels at which it runs behind a sql operator
    arrival: dict[int, int] = {}
    for operator in topology:
        inputs = operator.inputs
        levels = {level for name in inputs for level in runs[name]}
        late = {level for name in inputs for level in behind_sql[name]}
        direct_sql = operator.kind is Kind.SQL and all(topology[name].kind is Kind.SQL for name in inputs)
        if operator.kind is Kind.SOURCE:
            levels, late = {0}, set()
        elif operator.kind is Kind.SQL:
            level = max(levels)
            if level in late and not direct_sql:
                level += 1
            levels, late = {level}, {level}
            arrival[numbers[operator.name]] = level
        elif not operator.chained:
            level = max(levels) + 1
            levels, late = {level}, set()
            arrival[numbers[operator.name]] = level
        runs[operator.name], behind_sql[operator.name] = levels, late
    return arrival


def staging_of(topology: Topology, private: str, identity: str) -> tuple[dict[str, Staging | None], Staging]:
    """Where each sink's records are staged: beside the output for files, so that a rename publishes them; else in the
    checkpoint, from which the driver reads them after the batch. Names contain the checkpoint's identity, so that several
    sinks, runs and topologies may share a folder."""
    places = {o.name: _staging(o.name, o.sink, private, identity) for o in topology.sinks}
    letters = _staging(DEAD_LETTERS, dead_letter_sink(topology, private), private, identity)
    assert letters is not None
    return places, replace(letters, mode=0o600)  # dead letters contain whole records


def dead_letter_sink(topology: Topology, private: str) -> FilesSink:
    if topology.dead_letters is None:
        return FilesSink(f"{private}/dead", "json")
    if not isinstance(topology.dead_letters, FilesSink):
        raise TopologyError(f"topology {topology.name!r}: dead letters go to a files sink, not {topology.dead_letters!r}")
    return topology.dead_letters


def _staging(name: str, sink: object, private: str, identity: str) -> Staging | None:
    if isinstance(sink, DiscardSink):
        return None
    stem = f"{name}-{identity}"
    if isinstance(sink, FilesSink):
        return Staging(f"{sink.path}/{PRIVATE_FOLDER}/{stem}", sink.format, stem, partition_by=sink.partition_by)
    return Staging(f"{private}/staged/{name}", "parquet", stem)
