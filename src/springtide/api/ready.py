"""The ready-made stateful operators of a keyed stream; ``stateful`` takes a user's own processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from springtide.api.annotations import returned
from springtide.errors import TopologyError
from springtide.model import schema as schemas
from springtide.model.duration import seconds
from springtide.processors import aggregates
from springtide.processors.aggregates import Aggregate
from springtide.processors.aggregating import Aggregating
from springtide.processors.deduplicate import Deduplicate
from springtide.processors.join import AT, LEFT, RIGHT, JoinSide, joining, united
from springtide.processors.sessions import sessions
from springtide.processors.timed import Timed
from springtide.processors.top_k import RANK, ranked, top_k
from springtide.processors.windows import END, MOMENT, START, Windows

if TYPE_CHECKING:
    from springtide.api.stream import KeyedStream, StatefulStream


def _us(duration: str | float, what: str) -> int:
    return round(seconds(duration, what) * 1e6)


def _span_us(where: str, duration: str | float, what: str) -> int:
    """A duration above zero, in microseconds."""
    span = _us(duration, what)
    if span < 1:
        raise TopologyError(f"{where}: {what}={duration!r} is not allowed; give more than 0 s, such as '10s'")
    return span


class Ready:
    """The ready-made operators of a keyed stream. Each takes the options of ``stateful``."""

    _key: tuple[str, ...]
    schema: pa.Schema
    stateful: Callable[..., StatefulStream]
    _event_time: Callable[[], str | None]
    _untimed: Callable[[], list[str]]
    _is_timed: Callable[[], bool]

    def count(self, **options: Any) -> StatefulStream:
        """The number of records of each key, emitted whenever it grows. Output: the key, and ``count``."""
        return self.aggregate(**{"name": "count", **options}, count=aggregates.count())

    def aggregate(self, **named: Any) -> StatefulStream:
        """Several aggregates of each key, emitted whenever records came: ``aggregate(trips=agg.count(), …)``.

        An argument that is not an aggregate is an option of the operator.
        """
        functions, options = _parted("aggregate", named)
        _check_key(self, options.get("name", "aggregate"))
        function = Aggregating(functions, self.schema, self._key)
        return self.stateful(function, schema=function.output, **{"name": "aggregate", **options})

    def window(
        self, length: str | float | None = None, *, slide: str | float | None = None, gap: str | float | None = None,
        time: str | None = None, **named: Any,
    ) -> StatefulStream:  # fmt: skip
        """Aggregates of each key and window, emitted when the watermark has passed the window's end.

        ``length`` alone gives tumbling windows, ``length`` with ``slide`` sliding windows, and ``gap`` alone sessions. Output:
        the key, ``window_start``, ``window_end`` and the aggregates.
        """
        functions, options = _parted("window", named)
        options.setdefault("name", "window")
        _check_key(self, options["name"])
        column = time or self._event_time()
        if column is None and not self._is_timed():
            raise TopologyError("window: the stream has no event time; write .watermark(column, delay) before key_by()")
        _check_timed("window", self, "no window would ever end")
        if column is None:
            raise TopologyError("window: the watermark's column is not in this stream; name a column with time=")
        if (length is None) == (gap is None) or (slide is not None and length is None):
            raise TopologyError("window: give a length, with slide= if windows overlap; or give gap= for sessions")
        _check_time("window", column, self.schema)
        _check_free("window", (START, END), (*self.schema.names, *functions))
        if gap is not None:
            return _sessions(self, _span_us("window", gap, "gap"), column, functions, options)
        assert length is not None
        length_us = _span_us("window", length, "length")
        windows = Windows(column, length_us, _span_us("window", slide, "slide") if slide is not None else length_us)
        windowed = windows.schema(self.schema)
        function = Aggregating(functions, windowed, (*self._key, START, END), closes=END, windows=windows.describes)
        keyed: Any = self
        assigned = keyed._plain().map_batches(windows, schema=windowed, name=f"{options['name']}-cut")
        by_window = assigned.key_by(*self._key, START, END)
        made: StatefulStream = by_window.stateful(function, schema=function.output, time=END, closes=True, **options)
        return made

    def top_k(self, k: int, *, by: str, of: str | None = None, **options: Any) -> StatefulStream:
        """The ``k`` greatest records of each key ``by`` a column, with their ``rank``; all are emitted again when they change.

        ``of``: the column that identifies an item; of each item the latest record is ranked.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TopologyError(f"top_k: k={k!r} is not allowed; give a whole number of 1 or more")
        for column in (by, *((of,) if of is not None else ())):
            if column not in self.schema.names:
                raise TopologyError(f"top_k: no column is named {column!r}; there are: {', '.join(self.schema.names)}")
        kind = self.schema.field(by).type
        if pa.types.is_nested(kind):
            raise TopologyError(f"top_k: by={by!r} is {kind}, whose values have no order; give another column")
        _check_free("top_k", (RANK,), self.schema.names)
        return self.stateful(top_k(k, by, of, self.schema), schema=ranked(self.schema), **{"name": "top-k", **options})

    def deduplicate(self, within: str | float | None = None, **options: Any) -> StatefulStream:
        """The first record of each key. ``within``: the key is forgotten after this long, and its next record passes again."""
        return self.stateful(Deduplicate(), schema=self.schema, ttl=within, **{"name": "deduplicate", **options})

    def join(
        self, other: KeyedStream, combine: Callable[[Any, Any], Any], *, within: str | float, schema: object = None,
        **options: Any,
    ) -> StatefulStream:  # fmt: skip
        """Joins this stream with another by key: each pair of records whose times are at most ``within`` apart.

        ``combine(left, right)`` makes a record from a pair; its schema is its return annotation, or ``schema=``.
        """
        mine: Any = self
        theirs: Any = other
        options.setdefault("name", "join")
        _check_join(mine, theirs)
        for stream in (mine, theirs):
            _check_key(stream, options["name"])
        rows = united(self._key, mine.schema, theirs.schema)
        made = returned(combine, schema)
        sides = []
        for stream, side in ((mine, LEFT), (theirs, RIGHT)):
            convert = JoinSide(time=stream._event_time(), key=stream._key, name=side, schema=rows)
            sides.append(stream._plain().map_batches(convert, schema=rows, name=f"{options['name']}-{side}"))
        readers = [_RowReader(stream._node.operator.record, stream.schema) for stream in (mine, theirs)]
        processor = joining(_us(within, "within"), mine.schema, theirs.schema, combine, *readers)
        both = sides[0].union(sides[1], name=f"{options['name']}-union").key_by(*self._key)
        joined: StatefulStream = both.stateful(processor, schema=made[1] or made[0], time=AT, **options)
        return joined


def _parted(where: str, named: dict[str, Any]) -> tuple[dict[str, Aggregate], dict[str, Any]]:
    functions = {name: value for name, value in named.items() if isinstance(value, Aggregate)}
    if not functions:
        raise TopologyError(f"{where}: give at least one aggregate, such as trips=springtide.agg.count()")
    return functions, {name: value for name, value in named.items() if name not in functions}


def _sessions(keyed: Any, gap_us: int, column: str, functions: dict[str, Aggregate], options: dict[str, Any]) -> StatefulStream:
    stream: KeyedStream = keyed
    if stream.schema.field(column).nullable:
        timed = stream._plain().map_batches(Timed(column), name=f"{options['name']}-timed")
        stream = timed.key_by(*stream._key)
    output = Aggregating(functions, stream.schema, stream._key).output
    window = [pa.field(START, MOMENT, nullable=False), pa.field(END, MOMENT, nullable=False)]
    keys = [output.field(name) for name in stream._key]
    schema = pa.schema([*keys, *window, *(output.field(name) for name in functions)])
    processor = sessions(gap_us, column, functions, stream._key, stream.schema)
    return stream.stateful(processor, schema=schema, time=column, **options)


def _check_free(where: str, added: Iterable[str], existing: Iterable[str]) -> None:
    """Refuse to add a column whose name is taken."""
    taken = sorted(set(added) & set(existing))
    if taken:
        raise TopologyError(f"{where}: it adds a column {taken[0]!r}, which exists already; rename the existing one with map()")


def _check_key(stream: Any, where: str) -> None:
    for column in stream._key:
        if column not in stream.schema.names:
            raise TopologyError(f"operator {where!r}: key {column!r} is not among the columns of"
                                f" {stream._node.operator.name!r}: {', '.join(stream.schema.names)}")  # fmt: skip


def _check_time(where: str, column: str, offered: pa.Schema) -> None:
    kind = offered.field(column).type if column in offered.names else "not there"
    if column not in offered.names or not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
        raise TopologyError(f"{where}: its time is a column of datetimes, or of microseconds; {column!r} is {kind}; there are:"
                            f" {', '.join(offered.names)}")  # fmt: skip


def _check_timed(where: str, stream: Ready, else_: str) -> None:
    """Refuse a stream whose watermark would never be known: the watermark of a union is the least of its inputs'."""
    missing = stream._untimed()
    if missing:
        raise TopologyError(f"{where}: no watermark comes from {', '.join(map(repr, missing))}, so that {else_}; write"
                            " .watermark(column, delay) right after it, before union() and key_by()")  # fmt: skip


def _check_join(left: KeyedStream, right: KeyedStream) -> None:
    if not isinstance(right, Ready):
        raise TopologyError("join: the other stream needs a key too; write .key_by(columns) after it")
    if left._key != right._key:
        raise TopologyError(f"join: the keys differ: {', '.join(left._key)} here, {', '.join(right._key)} there; rename one")
    _check_free("join", (LEFT, RIGHT, AT), left._key)
    for stream in (left, right):
        if stream._is_timed():
            _check_timed("join", stream, "the join's state would grow for ever")
        if stream._event_time() is None:
            raise TopologyError("join: both streams need a time; write .watermark(column, delay) before key_by()")


class _RowReader:
    """Turns a stored row back into its record; into a dict if the stream has no record class."""

    def __init__(self, record: type | None, schema: pa.Schema) -> None:
        self._record = record
        self._readers = schemas.plain_readers(schema) if record is None else schemas.readers(record, schema)

    def __call__(self, row: Any) -> Any:
        known = self._readers
        values = {k: known[k](v) if k in known and v is not None else v for k, v in row.items()}
        return values if self._record is None else self._record(**values)
