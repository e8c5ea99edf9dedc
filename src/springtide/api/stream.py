"""Streams, on which a user chains operators. Nothing runs here; ``named`` and ``topology`` make a frozen Topology."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from springtide.api.annotations import accepted, called, returned
from springtide.api.looked_up import joined
from springtide.api.ready import Ready
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model import schema as schemas
from springtide.model.duration import seconds
from springtide.model.endpoints import FilesSink, MemorySink, SinkSpec, SourceSpec, TableSink
from springtide.model.lookup import Lookup
from springtide.model.state import Stateful, StateSpec
from springtide.model.topology import AUTO, EventTime, Kind, OnCrash, OnError, Operator, Topology
from springtide.processors.processor import Processor


@dataclass(frozen=True, eq=False)
class _Node:
    """An operator before it has its final name. Compared by identity: a node that is used twice is a single operator."""

    operator: Operator  # its name is "" if Springtide chooses it; its inputs are empty
    parents: tuple[_Node, ...] = ()


@dataclass(frozen=True, eq=False)
class Stream:
    """Records of one schema. Each method adds an operator and returns the stream of its output.

    Options of every operator: ``name`` (default: the function's), ``grouping`` (default: none, so that it runs in its
    upstream's task), ``parallelism`` (a limit on its tasks), ``on_error`` (``"dead-letter"`` or ``"stop"``: what happens to a
    record whose function raises), ``on_crash`` (``"stop"`` or ``"dead-letter"``: what happens to a record that kills its Python
    worker).
    """

    _node: _Node = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the records."""
        return self._node.operator.schema

    @property
    def declared(self) -> object:
        """The declaration of the source, if the stream is one."""
        return self._node.operator.source

    if not TYPE_CHECKING:  # type checkers report the missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            if hasattr(KeyedStream, name) and not hasattr(Stream, name):
                raise AttributeError(f"{name}() needs a key; write .key_by(columns) before it", name=name, obj=self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def map(self, function: Callable[[Any], Any], *, schema: object = None, **options: Any) -> Stream:
        """Turn each record into another. The schema is the function's return annotation, or ``schema=``."""
        _check_callable(Kind.MAP, function)
        return self._apply(Kind.MAP, function, *returned(function, schema), options)

    def filter(self, function: Callable[[Any], bool], **options: Any) -> Stream:
        """Pass the records for which the function returns true."""
        _check_callable(Kind.FILTER, function)
        return self._apply(Kind.FILTER, function, self.schema, self._node.operator.record, options)

    def flat_map(self, function: Callable[[Any], Iterable[Any]], *, schema: object = None, **options: Any) -> Stream:
        """Turn each record into any number of records, which the function returns or yields."""
        _check_callable(Kind.FLAT_MAP, function)
        return self._apply(Kind.FLAT_MAP, function, *returned(function, schema, many=True), options)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, schema: object = None, **options: Any
    ) -> Stream:
        """Turn each Arrow record batch into another; give ``schema=`` if it differs from the input's."""
        _check_callable(Kind.MAP_BATCHES, function)
        given = (self.schema, self._node.operator.record)
        if schema is not None:
            given = schemas.as_schema(schema, called(function))
        return self._apply(Kind.MAP_BATCHES, function, *given, options)

    def sql(self, function: Callable[[Any], Any], *, schema: object, **options: Any) -> Stream:
        """A function from DataFrame to DataFrame, which stays in the JVM; ``schema=`` is that of the output."""
        _check_callable(Kind.SQL, function)
        refused = sorted({"grouping", "by", "parallelism", "on_error", "on_crash"} & options.keys())
        if refused:
            raise TopologyError(f"sql {called(function)!r}: {refused[0]}= is not allowed, because Spark plans it; leave it out")
        return self._apply(Kind.SQL, function, *schemas.as_schema(schema, called(function)), options)

    def lookup(
        self, table: Lookup, *, into: object, missing: str = "none", ttl: str | float = "1m", cache: int = 100_000,
        patience: str | float = "30s", **options: Any,
    ) -> Stream:  # fmt: skip
        """Join each record with a row of a table outside, found by its key, for example ``lookup.postgres(…)``.

        ``into``: the schema of the output. Fields that the records have are theirs, all others are columns of the row.
        ``missing``: "none" for None in these fields if there is no row, or "dead-letter". ``ttl``: rows, and keys without a
        row, are cached for this long, at most ``cache`` of them in each worker. ``patience``: a task waits this long for a
        table that is away, before the batch is tried again.
        """
        made = joined(table, self.schema, into, missing, seconds(ttl, "ttl"), cache, seconds(patience, "patience"))
        options.setdefault("name", "lookup")
        return self._apply(Kind.MAP_BATCHES, made, made.schema, schemas.as_schema(into, "lookup")[1], options)

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The records of several streams of one schema."""
        for other in others:
            if not isinstance(other, Stream):
                raise TopologyError(f"union: {other!r} is not a stream; give streams, as .map and .filter return them")
        made = Operator(name or "", Kind.UNION, schema=self.schema, record=self._node.operator.record)
        return Stream(_Node(made, (self._node, *(other._node for other in others))))

    def watermark(self, column: str, delay: str | float = 0.0, *, name: str | None = None) -> Stream:
        """Declare the column of the event time. A record that is older than the latest by more than ``delay`` is late."""
        made = Operator(
            name or f"{column}-watermark", Kind.WATERMARK, schema=self.schema, record=self._node.operator.record,
            event_time=EventTime(column, seconds(delay, "delay") if delay else 0.0),
        )  # fmt: skip
        return Stream(_Node(made, (self._node,)))

    def key_by(self, *columns: str) -> KeyedStream:
        """Send all records of a key to the same task of the next operator."""
        if not columns:
            raise TopologyError("key_by() needs at least one column")
        return KeyedStream(self._node, columns)

    def to(self, sink: SinkSpec, *, name: str | None = None, **options: Any) -> Flow:
        """Write the records to a sink."""
        if not isinstance(sink, SinkSpec):
            raise TopologyError(f"to({sink!r}): {sink!r} is not a sink; take one of springtide.sink, such as sink.files(path),"
                                " or write one as an object for sink.foreach")  # fmt: skip
        made = Operator(name or _sink_name(sink), Kind.SINK, sink=sink, **self._options("sink", options))
        return Flow(_Node(made, (self._node,)))

    def _apply(
        self, kind: Kind, function: Callable[..., Any], schema: pa.Schema, record: type | None, options: dict[str, Any]
    ) -> Stream:
        name = options.pop("name", None)
        accepts = None if kind in (Kind.MAP_BATCHES, Kind.SQL) else accepted(function)
        made = Operator(
            name or _function_name(function), kind, function=function, schema=schema, record=record, accepts=accepts,
            **self._options(name or called(function), options),
        )  # fmt: skip
        return Stream(_Node(made, (self._node,)))

    def _options(self, where: str, options: dict[str, Any], beside: tuple[str, ...] = ()) -> dict[str, Any]:
        """Check the keyword options, and complete them: an operator with a limit on its tasks gets tasks of its own.
        ``beside``: further options of the operator, for the message."""
        allowed = ("grouping", "by", "parallelism", "on_error", "on_crash")
        for given in options:
            if given not in allowed:
                others = [option for option in (*allowed, "name", "schema", *beside) if option != given]
                raise OptionError(f"{where}: unknown option {given!r}; {nearest(given, others)}")
        chosen = {name: value for name, value in options.items() if value is not None}
        if "parallelism" in chosen and (isinstance(chosen["parallelism"], bool) or type(chosen["parallelism"]) is not int):
            raise TopologyError(f"{where}: parallelism={chosen['parallelism']!r} is not a whole number")
        if "by" in chosen:
            chosen["by"] = _columns(where, chosen["by"])
            chosen.setdefault("grouping", AUTO)
        for option, kind in (("on_error", OnError), ("on_crash", OnCrash)):
            if option in chosen:
                chosen[option] = _member(kind, where, option, chosen[option])
        if not isinstance(chosen.get("grouping", AUTO), str):
            raise TopologyError(f"{where}: grouping={chosen['grouping']!r} is not the name of a grouping")
        if "parallelism" in chosen:
            chosen.setdefault("grouping", AUTO)
        if chosen.get("grouping") == "hash" and "by" not in chosen:
            raise TopologyError(f"{where}: grouping='hash' needs a key; write .key_by(column) before it")
        return chosen


@dataclass(frozen=True, eq=False)
class KeyedStream(Ready, Stream):
    """A stream whose next operator gets all records of a key in one task."""

    _key: tuple[str, ...] = ()

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        raise TopologyError("union: key_by() just before it has no effect; write .key_by(...) after the union")

    def watermark(self, column: str, delay: str | float = 0.0, *, name: str | None = None) -> Stream:
        raise TopologyError("watermark: key_by() just before it has no effect; write .key_by(...) after the watermark")

    def sql(self, function: Callable[[Any], Any], *, schema: object, **options: Any) -> Stream:
        raise TopologyError(
            f"sql {called(function)!r}: key_by() before it has no effect, because Spark plans it; group inside the function"
        )

    def stateful(
        self, processor: Any, *, shards: int = 256, schema: object = None, ttl: str | float | None = None,
        time: str | None = None, closes: bool = False, migrate: Callable[..., Any] | None = None, **options: Any,
    ) -> StatefulStream:  # fmt: skip
        """An operator with state for every key, in shards that move between tasks.

        ``processor``: a ``springtide.Processor``, or its class. ``shards``: the number of shards of its keys, which is fixed
        for ever and limits its tasks. ``ttl``: a key is forgotten when no record of it has come for this long. ``time``: the
        column of the event time, by default the upstream watermark's; late records are left out, counted, and go to ``.late``.
        ``closes``: the time is the end of a window, and a record that comes when it is reached is late too. ``migrate``: a
        function from the variables in a checkpoint, as a dict, to those that are declared now.
        """
        if isinstance(processor, type) and issubclass(processor, Processor):
            processor = processor()
        name = options.pop("name", None) or _plain_name(processor)
        if isinstance(processor, Processor):
            made_of = returned(processor.process, schema, many=True, where=name)
        elif isinstance(processor, Stateful):
            made_of = schemas.as_schema(schema, name)
        else:
            raise TopologyError(f"stateful({processor!r}): that is not a springtide.Processor; give a subclass of it")
        _check_timers(self, processor, name)
        ttl_s = None if ttl is None else seconds(ttl, "ttl")
        spec = StateSpec(processor, shards, ttl_s, time or self._event_time(), closes, migrate)
        chosen = {**self._options(name, options, ("shards", "ttl", "time", "migrate")), "grouping": "shards"}
        made = Operator(name, Kind.STATEFUL, schema=made_of[0], record=made_of[1], state=spec, **chosen)
        return StatefulStream(_Node(made, (self._node,)))

    def _plain(self) -> Stream:
        """The stream without its key."""
        return Stream(self._node)

    def _event_time(self) -> str | None:
        """The column of the nearest watermark upstream, if the stream still has it."""
        node: _Node | None = self._node
        while node is not None:
            given = node.operator.event_time
            if node.operator.kind is Kind.LATE:
                return None  # its records are late by any watermark upstream
            if given is not None:
                return given.column if given.column in self.schema.names else None
            node = node.parents[0] if node.parents else None
        return None

    def _untimed(self) -> list[str]:
        """The names of the sources without a watermark on the way."""
        return list(
            dict.fromkeys(node.operator.name for node in _time_origins(self._node) if node.operator.kind is Kind.SOURCE)
        )

    def _is_timed(self) -> bool:
        """Whether there is a watermark on the way from at least one source."""
        return any(node.operator.kind is Kind.WATERMARK for node in _time_origins(self._node))

    def _options(self, where: str, options: dict[str, Any], beside: tuple[str, ...] = ()) -> dict[str, Any]:
        if options.get("grouping") not in (None, "hash"):
            raise TopologyError(f"{where}: grouping={options['grouping']!r} would split the records of a key; leave it out")
        if options.get("by") is not None:
            raise TopologyError(
                f"{where}: by={options['by']!r} is not allowed after key_by(), whose columns it uses; leave it out"
            )
        return {**super()._options(where, {**options, "grouping": None}, beside), "grouping": "hash", "key": self._key}


@dataclass(frozen=True, eq=False)
class StatefulStream(Stream):
    """The output of a stateful operator."""

    @functools.cached_property
    def late(self) -> Stream:
        """The records that came too late for the operator, unchanged."""
        before = self._node.parents[0].operator
        made = Operator(f"{self._node.operator.name}-late", Kind.LATE, schema=before.schema, record=before.record)
        return Stream(_Node(made, (self._node,)))


@dataclass(frozen=True, eq=False)
class Flow:
    """A stream that ends in a sink. Name it to make a topology; ``springtide.topology`` takes several flows."""

    _node: _Node = field(repr=False)

    def named(self, name: str, *, dead_letters: SinkSpec | None = None) -> Topology:
        return topology(name, self, dead_letters=dead_letters)


def source(spec: SourceSpec, name: str, schema: pa.Schema, record: type | None) -> Stream:
    """A stream of a source's records."""
    return Stream(_Node(Operator(name, Kind.SOURCE, source=spec, schema=schema, record=record)))


def topology(name: str, *flows: Flow, dead_letters: SinkSpec | None = None) -> Topology:
    """A topology of all operators upstream of these sinks."""
    for flow in flows:
        if isinstance(flow, Stream):
            raise TopologyError(f"operator {flow._node.operator.name!r} leads to no sink; end it with .to(sink)")
        if not isinstance(flow, Flow):
            raise TopologyError(f"topology {name!r}: {flow!r} is not a flow; give flows, as .to(sink) returns them")
    order: list[_Node] = []
    for flow in flows:
        _collect(flow._node, order)
    names = _names(order)
    operators = tuple(
        replace(node.operator, name=names[node], inputs=tuple(names[parent] for parent in node.parents)) for node in order
    )
    return Topology(name, operators, dead_letters)


def _collect(node: _Node, order: list[_Node]) -> None:
    """Append a node and all that are upstream of it, inputs first; a shared node is appended once."""
    if any(node is seen for seen in order):
        return
    for parent in node.parents:
        _collect(parent, order)
    order.append(node)


def _names(order: list[_Node]) -> dict[_Node, str]:
    """Final names. Unnamed operators are numbered in the graph's order: map, map-2, …"""
    taken = {node.operator.name for node in order}
    names: dict[_Node, str] = {}
    for node in order:
        name = node.operator.name
        if not name:
            base, number = str(node.operator.kind), 1
            name = base
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            taken.add(name)
        names[node] = name
    return names


def _time_origins(node: _Node) -> list[_Node]:
    """The nearest watermarks upstream, and the sources without a watermark on the way."""
    if node.operator.kind is Kind.WATERMARK or not node.parents:
        return [node]
    return [origin for parent in node.parents for origin in _time_origins(parent)]


def _check_timers(stream: KeyedStream, processor: object, where: str) -> None:
    """Refuse event-time timers whose watermark would never be known. Without any watermark, timers may go by the clock."""
    if isinstance(processor, Processor) and processor.on_timer is not None and stream._is_timed() and stream._untimed():
        raise TopologyError(f"operator {where!r}: no watermark comes from {', '.join(map(repr, stream._untimed()))}, so that no"
                            " event-time timer would ever fire; write .watermark(column, delay) right after it, before"
                            " union()")  # fmt: skip


def _columns(where: str, given: object) -> tuple[str, ...]:
    """The names of columns, from a name or a collection of names."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) for name in names):
        raise TopologyError(f"{where}: by={given!r} is not allowed; give the name of a column, or a tuple of names")
    return tuple(names)


def _member(kind: type[StrEnum], where: str, option: str, given: Any) -> StrEnum:
    try:
        return kind(given)
    except ValueError:
        raise OptionError(f"{where}: {option}={given!r}; {nearest(str(given), list(map(str, kind)))}") from None


def _check_callable(kind: Kind, function: object) -> None:
    if not callable(function):
        raise TopologyError(f"{kind}({function!r}): that is not a function")


def _plain_name(processor: object) -> str:
    """ByRoute → by-route"""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(processor).__name__).lower()


def _function_name(function: object) -> str:
    name = called(function)
    return "" if name == "<lambda>" else name


def _sink_name(sink: SinkSpec) -> str:
    if isinstance(sink, FilesSink):
        return sink.path.rstrip("/").rsplit("/", 1)[-1]
    if isinstance(sink, (TableSink, MemorySink)):
        return sink.name
    return type(sink).__name__.removesuffix("Sink").lower()
