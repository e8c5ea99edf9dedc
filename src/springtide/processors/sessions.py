"""Session windows: runs of records of a key in which each record comes within the gap after the record before."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from springtide.model.state import micros, moment
from springtide.processors.aggregates import Aggregate
from springtide.processors.aggregating import state_fields
from springtide.processors.processor import Processor, State, Timer, list_of
from springtide.processors.windows import CUT, END, START


def sessions(
    gap_us: int, time: str, functions: Mapping[str, Aggregate], key: tuple[str, ...], records: pa.Schema
) -> Processor:  # fmt: skip
    """The aggregates of each session. A session emits them when the watermark reaches its end, which is its last record's time
    plus the gap. A record at the end itself begins a new session, whatever the order of arrival. A record that overlaps several
    sessions merges them."""
    read = pa.schema([field for field in records if field.name in {each.column for each in functions.values()} | {time}])
    kinds = state_fields(functions, records)
    session = pa.struct([(START, pa.int64()), (END, pa.int64()), *kinds.items()])

    def merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
        both: dict[str, Any] = {START: min(left[START], right[START]), END: max(left[END], right[END])}
        for name, function in functions.items():
            names = [f"{name}.{i}" for i in range(len(function.parts))]
            old, new = ([pa.array([side[part]], kinds[part]) for part in names] for side in (left, right))
            columns, overflow = function.after(old, new)
            if overflow is not None:
                raise function.too_large(f"aggregate {name!r}", old[0].type)
            both.update({part: column[0].as_py() for part, column in zip(names, columns, strict=True)})
        return both

    def alone(record: Any) -> dict[str, Any]:
        batch = pa.RecordBatch.from_pylist([{name: getattr(record, name) for name in read.names}], schema=read)
        at = micros(getattr(record, time)) if isinstance(getattr(record, time), datetime.datetime) else getattr(record, time)
        opened: dict[str, Any] = {START: at, END: at + gap_us}
        for name, function in functions.items():
            columns = function.of(batch, np.zeros(1, dtype=np.int64), 1)
            opened.update({f"{name}.{i}": column[0].as_py() for i, column in enumerate(columns)})
        return opened

    def emitted(session: Mapping[str, Any], key_value: Any) -> dict[str, Any]:
        values = key_value if isinstance(key_value, tuple) else (key_value,)
        result = {**dict(zip(key, values, strict=True)), START: moment(session[START]), END: moment(session[END])}
        for name, function in functions.items():
            columns = [pa.array([session[f"{name}.{i}"]], kinds[f"{name}.{i}"]) for i in range(len(function.parts))]
            result[name] = function.result(columns)[0].as_py()
        return result

    class Sessions(Processor):
        open = list_of(session)
        describes: ClassVar[Mapping[str, str]] = {
            **{name: function.stored for name, function in functions.items()},
            CUT: f"sessions with a gap of {gap_us / 1e6:g} s by {time!r}",
        }

        def process(self, key: Any, records: list[Any], state: State) -> Iterator[dict[str, Any]]:
            for record in records:
                new = alone(record)
                apart = [other for other in state.open if other[END] <= new[START] or other[START] >= new[END]]
                joined = [other for other in state.open if other[END] > new[START] and other[START] < new[END]]
                for other in joined:
                    state.cancel_timer(moment(other[END]))
                # first() and last() go by this order: earlier sessions come first, and the record comes last
                new = functools.reduce(merged, [*sorted(joined, key=itemgetter(START)), new])
                state.open = [*apart, new]
                state.set_timer(moment(new[END]))
            return iter(())

        def on_timer(self, key: Any, timer: Timer, state: State) -> Iterator[dict[str, Any]]:
            ended = [each for each in state.open if moment(each[END]) <= timer.at]
            state.open = [each for each in state.open if moment(each[END]) > timer.at]
            for each in sorted(ended, key=itemgetter(START)):
                yield emitted(each, key)

    return Sessions()
