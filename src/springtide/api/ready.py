"""The ready stateful operators: what ``key_by(…)`` offers beside a processor of one's own."""

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
from springtide.processors.join import AT, LEFT, RIGHT, Side, joining, united
from springtide.processors.sessions import sessions
from springtide.processors.timed import Timed
from springtide.processors.top_k import RANK, ranked, top_k
from springtide.processors.windows import END, MOMENT, START, Windows

if TYPE_CHECKING:
    from springtide.api.stream import KeyedStream, StatefulStream


def _us(duration: str | float, what: str) -> int:
    return round(seconds(duration, what) * 1e6)


def _span_us(where: str, duration: str | float, what: str) -> int:
    """A duration that cannot be nothing."""
    span = _us(duration, what)
    if span < 1:
        raise TopologyError(f"{where}: {what}={duration!r} is not allowed; give more than 0 s, such as '10s'")
    return span


class Ready:
    """What a keyed stream can do without a processor of one's own. Options are those of ``stateful``."""

    _key: tuple[str, ...]
    schema: pa.Schema
    stateful: Callable[..., StatefulStream]
    _event_time: Callable[[], str | None]
    _untimed: Callable[[], list[str]]
    _is_timed: Callable[[], bool]

    def count(self, **options: Any) -> StatefulStream:
        """How many records each key has had, told whenever more came: the key, and ``count``."""
        return self.aggregate(**{"name": "count", **options}, count=aggregates.count())

    def aggregate(self, **named: Any) -> StatefulStream:
        """Several aggregates of each key at once, told whenever records came: ``aggregate(trips=agg.count(), …)``.

        What is no aggregate is an option of the operator.
        """
        functions, options = _parted("aggregate", named)
        _check_key(self, options.get("name", "aggregate"))
        function = Aggregating(functions, self.schema, self._key)
        return self.stateful(function, schema=function.output, **{"name": "aggregate", **options})

    def window(
        self, length: str | float | None = None, *, slide: str | float | None = None, gap: str | float | None = None,
        time: str | None = None, **named: Any,
    ) -> StatefulStream:  # fmt: skip
        """Aggregates of each key and window, told once the watermark has passed the window's end.

        ``length`` alone is tumbling windows, with ``slide`` sliding ones; ``gap`` alone is sessions. Told: the key,
        ``window_start``, ``window_end`` and the aggregates.
        """
        functions, options = _parted("window", named)
        options.setdefault("name", "window")
        _check_key(self, options["name"])
        column = time or self._event_time()
        if column is None and not self._is_timed():
            raise TopologyError("window: by which time? Write .watermark(column, delay) before key_by()")
        _check_timed("window", self, "no window would ever end")
        if column is None:
            raise TopologyError("window: by which time? That of the watermark is no column here; give time=column")
        if (length is None) == (gap is None) or (slide is not None and length is None):
            raise TopologyError("window: give a length, with slide= for windows that overlap, or gap= for sessions")
        _check_time("window", column, self.schema)
        _check_free("window", (START, END), (*self.schema.names, *functions))
        if gap is not None:
            return _sessions(self, _span_us("window", gap, "gap"), column, functions, options)
        assert length is not None
        long = _span_us("window", length, "length")
        windows = Windows(column, long, _span_us("window", slide, "slide") if slide is not None else long)
        cut = windows.schema(self.schema)
        function = Aggregating(functions, cut, (*self._key, START, END), closes=END, windows=windows.describes)
        keyed: Any = self
        named_cut = f"{options['name']}-cut"
        spread = keyed._plain().map_batches(windows, schema=cut, name=named_cut).key_by(*self._key, START, END)
        made: StatefulStream = spread.stateful(function, schema=function.output, time=END, closes=True, **options)
        return made

    def top_k(self, k: int, *, by: str, of: str | None = None, **options: Any) -> StatefulStream:
        """The ``k`` greatest of each key ``by`` a column, told anew when they change, with their ``rank``.

        ``of``: the column with what is ranked, of which the latest record counts.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TopologyError(f"top_k: k={k!r} is not allowed; give a whole number of 1 or more")
        for column in (by, *((of,) if of is not None else ())):
            if column not in self.schema.names:
                raise TopologyError(f"top_k: no column is named {column!r}; there are: {', '.join(self.schema.names)}")
        kind = self.schema.field(by).type
        if pa.types.is_nested(kind):
            raise TopologyError(f"top_k: by={by!r} is {kind}, of which none is greater than another; give another column")
        _check_free("top_k", (RANK,), self.schema.names)
        return self.stateful(top_k(k, by, of, self.schema), schema=ranked(self.schema), **{"name": "top-k", **options})

    def deduplicate(self, within: str | float | None = None, **options: Any) -> StatefulStream:
        """The first record of each key. ``within``: after so long, the next of the key is a first one again."""
        return self.stateful(Deduplicate(), schema=self.schema, ttl=within, **{"name": "deduplicate", **options})

    def join(
        self, other: KeyedStream, combine: Callable[[Any, Any], Any], *, within: str | float, schema: object = None,
        **options: Any,
    ) -> StatefulStream:  # fmt: skip
        """Pairs of a record of this stream and one of another with the same key, whose times are at most ``within`` apart.

        ``combine(left, right)`` makes one record of a pair; its schema is its return annotation, or ``schema=``.
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
            put = Side(time=stream._event_time(), key=stream._key, name=side, schema=rows)
            sides.append(stream._plain().map_batches(put, schema=rows, name=f"{options['name']}-{side}"))
        readers = [_Read(stream._node.operator.record, stream.schema) for stream in (mine, theirs)]
        processor = joining(_us(within, "within"), mine.schema, theirs.schema, combine, *readers)
        both = sides[0].union(sides[1], name=f"{options['name']}-union").key_by(*self._key)
        joined: StatefulStream = both.stateful(processor, schema=made[1] or made[0], time=AT, **options)
        return joined


def _parted(where: str, named: dict[str, Any]) -> tuple[dict[str, Aggregate], dict[str, Any]]:
    functions = {name: one for name, one in named.items() if isinstance(one, Aggregate)}
    if not functions:
        raise TopologyError(f"{where}: give at least one aggregate, such as trips=springtide.agg.count()")
    return functions, {name: one for name, one in named.items() if name not in functions}


def _sessions(keyed: Any, gap_us: int, column: str, functions: dict[str, Aggregate], options: dict[str, Any]) -> StatefulStream:
    stream: KeyedStream = keyed
    if stream.schema.field(column).nullable:
        timed = stream._plain().map_batches(Timed(column), name=f"{options['name']}-timed")
        stream = timed.key_by(*stream._key)
    told = Aggregating(functions, stream.schema, stream._key).output
    window = [pa.field(START, MOMENT, nullable=False), pa.field(END, MOMENT, nullable=False)]
    keys = [told.field(name) for name in stream._key]
    schema = pa.schema([*keys, *window, *(told.field(name) for name in functions)])
    processor = sessions(gap_us, column, functions, stream._key, stream.schema)
    return stream.stateful(processor, schema=schema, time=column, **options)


def _check_free(where: str, added: Iterable[str], there: Iterable[str]) -> None:
    """Refuse columns that would be there twice."""
    twice = sorted(set(added) & set(there))
    if twice:
        raise TopologyError(f"{where}: it adds a column {twice[0]!r}, and there is one already; rename that with map() first")


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
    """Refuse a stream whose watermark would never be known: that of a union is the least of its inputs'."""
    missing = stream._untimed()
    if missing:
        raise TopologyError(f"{where}: no watermark comes from {', '.join(map(repr, missing))}, so that {else_}; write"
                            " .watermark(column, delay) behind that, before union() and key_by()")  # fmt: skip


def _check_join(left: KeyedStream, right: KeyedStream) -> None:
    if not isinstance(right, Ready):
        raise TopologyError("join: the other stream needs a key too; write .key_by(columns) behind it")
    if left._key != right._key:
        raise TopologyError(f"join: the keys differ: {', '.join(left._key)} here, {', '.join(right._key)} there; rename one")
    _check_free("join", (LEFT, RIGHT, AT), left._key)
    for stream in (left, right):
        if stream._is_timed():
            _check_timed("join", stream, "what is kept for it would never be let go")
        if stream._event_time() is None:
            raise TopologyError("join: both streams need a time; write .watermark(column, delay) before key_by()")


class _Read:
    """A stored row as the record that it was; where there was no class, as a dict."""

    def __init__(self, record: type | None, schema: pa.Schema) -> None:
        self._record = record
        self._readers = schemas.plain_readers(schema) if record is None else schemas.readers(record, schema)

    def __call__(self, row: Any) -> Any:
        known = self._readers
        values = {k: known[k](v) if k in known and v is not None else v for k, v in row.items()}
        return values if self._record is None else self._record(**values)
