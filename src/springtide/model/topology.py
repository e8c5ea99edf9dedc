"""A topology: a directed acyclic graph of operators, from sources to sinks. A frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import Any

import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model import schema as schemas
from springtide.model.endpoints import FilesSink, SinkSpec, SourceSpec, TableSink
from springtide.model.names import ALLOWED, MAX_BYTES, is_plain, is_short
from springtide.model.publisher import PublishedSink
from springtide.model.state import StateSpec

DEAD_LETTERS = "dead-letters"
"""The name of the sink of failed records; no operator may have it."""

AUTO = "auto"
"""The grouping of an operator that needs a shuffle and leaves the choice of the grouping to the run."""


class Kind(StrEnum):
    SOURCE = "source"
    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    MAP_BATCHES = "map_batches"
    SQL = "sql"
    UNION = "union"
    WATERMARK = "watermark"
    STATEFUL = "stateful"
    LATE = "late"  # passes the records that came too late for a stateful operator
    SINK = "sink"


PASSING = frozenset({Kind.UNION, Kind.WATERMARK, Kind.LATE})
"""Kinds of operators that pass records on unchanged."""


class OnError(StrEnum):
    """What happens to a record whose function raises."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"


class OnCrash(StrEnum):
    """What happens to a record that kills its worker process in every attempt."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"


@dataclass(frozen=True)
class EventTime:
    """The column of the event time, and how much older than the latest record a record may be without being late."""

    column: str
    delay_s: float = 0.0


@dataclass(frozen=True)
class Operator:
    """A function on records, how its input is grouped, and what happens when a record fails.

    ``grouping`` None is a ``forward`` edge: the operator runs in its upstream's task, with no shuffle between them.
    ``key``: records that agree in these columns go to the same task. ``by``: the columns that a grouping uses if it may split
    the records of a key, such as the columns that determine a record's cost; if it is empty, Springtide chooses.
    ``parallelism`` is a limit; the policy chooses the degree below it.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    schema: pa.Schema | None = None  # of its output; None for a sink
    record: type | None = None  # the dataclass of its output, if there is one
    accepts: type | None = None  # the dataclass of its function's parameter, if it is annotated
    grouping: str | None = None
    key: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    parallelism: int | None = None
    on_error: OnError = OnError.DEAD_LETTER
    on_crash: OnCrash = OnCrash.STOP
    state: StateSpec | None = None
    event_time: EventTime | None = None
    source: SourceSpec | None = None
    sink: SinkSpec | None = None

    @property
    def chained(self) -> bool:
        """Whether it runs in its upstream's task."""
        return self.grouping is None and self.kind is not Kind.SOURCE

    @property
    def limit(self) -> int | None:
        """The most replicas that it can use: the lower of its parallelism and its shards; None if it has neither."""
        if self.state is None:
            return self.parallelism
        return min(self.parallelism or self.state.shards, self.state.shards)


@dataclass(frozen=True)
class Topology:
    """A named graph of operators, in an order in which every operator comes after its inputs."""

    name: str
    operators: tuple[Operator, ...]
    dead_letters: SinkSpec | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise TopologyError(f"topology name {self.name!r}: use letters, digits, '-', '_' and '.'")
        _check_file_name("topology", self.name)
        _check_names(self)
        _check_edges(self)
        _check_order(self)
        for operator in self.operators:
            _check_operator(self, operator)
        _check_sinks(self)

    def __getitem__(self, name: str) -> Operator:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Operator]:
        return iter(self.operators)

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """The operators downstream of each operator."""
        return {o.name: tuple(c for c in self.operators if o.name in c.inputs) for o in self.operators}

    @cached_property
    def sources(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.operators if o.kind is Kind.SOURCE)

    @cached_property
    def sinks(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.operators if o.kind is Kind.SINK)

    @cached_property
    def scalable(self) -> tuple[Operator, ...]:
        """The operators to which a policy grants degrees: those that work on records."""
        return tuple(o for o in self.operators if o.kind is not Kind.SOURCE and o.kind not in PASSING)

    @cached_property
    def stateful(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.operators if o.kind is Kind.STATEFUL)

    def watermarks(self, operator: Operator) -> frozenset[str] | None:
        """The watermark operators upstream, the least of whose times counts here; None if an input has no watermark."""
        return self._watermarks[operator.name]

    @cached_property
    def _watermarks(self) -> Mapping[str, frozenset[str] | None]:
        watermarks: dict[str, frozenset[str] | None] = {}
        for operator in self.operators:
            upstream = [watermarks[name] for name in operator.inputs]
            known = [names for names in upstream if names is not None]
            watermarks[operator.name] = frozenset[str]().union(*known) if known and len(known) == len(upstream) else None
            if operator.kind is Kind.WATERMARK:
                watermarks[operator.name] = frozenset({operator.name})
        return watermarks

    def depth(self, operator: Operator) -> int:
        """The most stateful operators on a path to this one. Each of them delays the watermark by a batch."""
        return self._depths[operator.name]

    @cached_property
    def _depths(self) -> Mapping[str, int]:
        depths: dict[str, int] = {}
        for operator in self.operators:
            upstream = (depths[name] + (self[name].kind is Kind.STATEFUL) for name in operator.inputs)
            depths[operator.name] = max(upstream, default=0)
        return depths

    @cached_property
    def stages(self) -> Mapping[str, int]:
        """The stage in which each operator runs: 0 for the sources, and 1 more after every shuffle."""
        stages: dict[str, int] = {}
        for operator in self.operators:
            upstream = max((stages[name] for name in operator.inputs), default=0)
            stages[operator.name] = upstream + (not operator.chained and bool(operator.inputs))
        return stages

    def input_schema(self, operator: Operator) -> pa.Schema:
        """The schema of an operator's input; all inputs of a union have the same. Late records have the stateful operator's."""
        if operator.kind is Kind.LATE:
            return self.input_schema(self[operator.inputs[0]])
        schema = self[operator.inputs[0]].schema
        assert schema is not None
        return schema

    def __str__(self) -> str:
        from springtide.model.draw import as_text

        return as_text(self)

    def mermaid(self) -> str:
        """The graph in Mermaid's notation."""
        from springtide.model.draw import as_mermaid

        return as_mermaid(self)


def _check_names(topology: Topology) -> None:
    seen: set[str] = set()
    for operator in topology:
        if not operator.name or operator.name == DEAD_LETTERS:
            raise TopologyError(f"an operator is named {operator.name!r}; choose another with name=")
        if any(c in '/"' or not c.isprintable() for c in operator.name):
            raise TopologyError(f"operator {operator.name!r}: leave slashes, quotes and line breaks out of its name=")
        _check_file_name("operator", operator.name)
        if operator.name in seen:
            raise TopologyError(f"two operators are named {operator.name!r}; give one of them another with name=")
        seen.add(operator.name)


def _check_file_name(what: str, name: str) -> None:
    """Refuse a name that leads out of a folder or is too long: files are named after operators and topologies."""
    if not is_plain(name):
        raise TopologyError(f"{what} {name!r}: files are named after it, and {ALLOWED}; choose another with name=")
    if not is_short(name):
        raise TopologyError(
            f"{what} {name[:40]!r}…: files are named after it, and this name has {len(name.encode())} bytes; use at most"
            f" {MAX_BYTES}"
        )


def _check_edges(topology: Topology) -> None:
    names = topology.by_name
    for operator in topology:
        for source in operator.inputs:
            if source not in names:
                raise TopologyError(f"operator {operator.name!r} reads from {source!r}, which is not in the topology")
            if operator.inputs.count(source) > 1:
                raise TopologyError(
                    f"operator {operator.name!r} reads from {source!r} twice; duplicate records with flat_map()"
                )
        if operator.kind is Kind.SOURCE and operator.inputs:
            raise TopologyError(f"source {operator.name!r} has inputs: {', '.join(operator.inputs)}")
        if operator.kind is not Kind.SOURCE and not operator.inputs:
            raise TopologyError(f"operator {operator.name!r} has no input; start from a source")
        if len(operator.inputs) > 1 and operator.kind is not Kind.UNION:
            raise TopologyError(f"operator {operator.name!r} has several inputs; unite them first with union()")
        if operator.kind is not Kind.SINK and not topology.consumers[operator.name]:
            raise TopologyError(f"operator {operator.name!r} leads to no sink; end it with .to(sink), or leave it out")
        if operator.kind is Kind.SINK and topology.consumers[operator.name]:
            reader = topology.consumers[operator.name][0].name
            raise TopologyError(f"operator {reader!r} reads from the sink {operator.name!r}; sinks emit nothing")
    if not topology.sources or not topology.sinks:
        raise TopologyError(f"topology {topology.name!r} needs at least one source and one sink")


def _check_order(topology: Topology) -> None:
    """Refuse cycles, and operators that are listed before their inputs."""
    placed: set[str] = set()
    waiting = list(topology.operators)
    while waiting:
        ready = [o for o in waiting if all(i in placed for i in o.inputs)]
        if not ready:
            raise TopologyError(f"the operators {', '.join(o.name for o in waiting)} form a cycle, or depend on a cycle")
        placed.update(o.name for o in ready)
        waiting = [o for o in waiting if o.name not in placed]
    seen: set[str] = set()
    for operator in topology:
        if not set(operator.inputs) <= seen:
            raise TopologyError(f"operator {operator.name!r} is listed before one of its inputs")
        seen.add(operator.name)


def _check_operator(topology: Topology, operator: Operator) -> None:
    where = f"operator {operator.name!r}"
    if operator.parallelism is not None and operator.parallelism < 1:
        raise TopologyError(f"{where}: parallelism {operator.parallelism} is not allowed; it is at least 1")
    if operator.kind is not Kind.SINK and operator.schema is None:
        raise TopologyError(f"{where}: no schema; annotate its return type with a dataclass, or pass schema=")
    if operator.schema is not None and not operator.schema.names:
        raise TopologyError(f"{where}: a record needs at least one field")
    hidden = [n for n in (operator.schema.names if operator.schema is not None else ()) if n.startswith("_springtide")]
    if hidden:
        raise TopologyError(f"{where}: column {hidden[0]!r} is Springtide's own; rename it")
    if operator.kind is Kind.SOURCE:
        return
    for name in operator.inputs[1:]:
        faults = schemas.misfits(topology[name].schema, topology.input_schema(operator))
        faults += schemas.misfits(topology.input_schema(operator), topology[name].schema)
        if faults:
            raise TopologyError(f"{where}: {operator.inputs[0]!r} and {name!r} differ in schema: {'; '.join(faults)}")
    if operator.state is not None:
        operator.state.check(where)
        if not operator.key:
            raise TopologyError(f"{where}: a stateful operator needs a key; write .key_by(column) before it")
    offered = topology.input_schema(operator)
    for column in _times(operator):
        if column not in offered.names or not (
            pa.types.is_timestamp(offered.field(column).type) or pa.types.is_int64(offered.field(column).type)
        ):
            kind = offered.field(column).type if column in offered.names else "not there"
            raise TopologyError(f"{where}: its time is a column of datetimes, or of microseconds; {column!r} is {kind}")
    for column in (*operator.key, *operator.by):
        if column not in offered.names:
            raise TopologyError(f"{where}: key {column!r} is not among the columns of {operator.inputs[0]!r}:"
                                f" {', '.join(offered.names)}")  # fmt: skip
    if operator.accepts is not None:
        faults = schemas.misfits(offered, schemas.schema_of(operator.accepts))
        if faults:
            raise TopologyError(f"{where} wants {operator.accepts.__name__}, which does not fit what"
                                f" {operator.inputs[0]!r} emits: {'; '.join(faults)}")  # fmt: skip


def _times(operator: Operator) -> list[str]:
    """The columns of event times that an operator reads."""
    own = operator.event_time.column if operator.event_time else None
    return [column for column in (own, operator.state.time if operator.state else None) if column is not None]


def _check_sinks(topology: Topology) -> None:
    """Refuse sinks that cannot store their input."""
    if topology.dead_letters is not None and not isinstance(topology.dead_letters, FilesSink):
        raise TopologyError(f"dead_letters={topology.dead_letters!r} is not allowed; give springtide.sink.files(path)")
    if isinstance(topology.dead_letters, FilesSink) and (topology.dead_letters.partition_by or topology.dead_letters.rolling):
        raise TopologyError(
            "dead letters are written at once, and have no columns of yours: leave partition_by= and roll_…= out"
        )
    for operator in topology.sinks:
        where, offered = f"sink {operator.name!r}", topology.input_schema(operator)
        if isinstance(operator.sink, FilesSink) and operator.sink.format == "csv":
            _check_flat(where, offered)
        if isinstance(operator.sink, FilesSink):
            _check_partitions(where, operator.sink.partition_by, offered)
        if isinstance(operator.sink, PublishedSink):
            operator.sink.fits(where, offered)
        if isinstance(operator.sink, TableSink) and operator.sink.batch_column in offered.names:
            raise TopologyError(f"{where}: batch_column={operator.sink.batch_column!r} is a column of the records"
                                f" already: {', '.join(offered.names)}; choose another name")  # fmt: skip
    _check_tables([(operator.name, operator.sink) for operator in topology.sinks if isinstance(operator.sink, TableSink)])


def _check_partitions(where: str, columns: tuple[str, ...], schema: pa.Schema) -> None:
    """Refuse columns that cannot name folders."""
    for name in columns:
        if name not in schema.names:
            raise TopologyError(f"{where}: partition_by={name!r} is no column of the records: {', '.join(schema.names)}")
        kind = schema.field(name).type
        plain = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
        if not any(is_kind(kind) for is_kind in plain):
            raise TopologyError(f"{where}: partition_by={name!r} is {kind}; texts, whole numbers, dates and bool name"
                                " folders: add such a column, for example the day of a time")  # fmt: skip
    if columns and len(set(columns)) == len(schema):
        raise TopologyError(f"{where}: partition_by names all columns, so that no column is left for the files")


def _check_tables(tables: list[tuple[str, TableSink]]) -> None:
    """Refuse two sinks of a table: with ``batch_column`` a batch overwrites its partition, with the other sink's rows in it."""
    for (name, first), (other, second) in combinations(tables, 2):
        if first.name.lower() == second.name.lower() and (first.batch_column or second.batch_column):
            raise TopologyError(
                f"sinks {name!r} and {other!r} both write table {first.name!r}, and with batch_column= each would overwrite the"
                " other's rows; unite them with union(), or name another table"
            )


def _check_flat(where: str, schema: pa.Schema) -> None:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise TopologyError(f"{where}: CSV cannot hold column {nested[0]!r} of type {schema.field(nested[0]).type};"
                            " write parquet or json")  # fmt: skip
