"""Session windows: records of a key that follow one another, each before the gap behind the last one is over."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from springtide.model.state import micros, moment
from springtide.processors.aggregates import Aggregate
from springtide.processors.processor import Processor, State, Timer, list_of
from springtide.processors.windows import CUT, END, START


def sessions(
    gap_us: int, time: str, functions: Mapping[str, Aggregate], key: tuple[str, ...], records: pa.Schema
) -> Processor:  # fmt: skip
    """The aggregates of each session, told when the watermark has passed its last record by the gap. A session ends just then:
    a record of that very time begins another, whichever comes first. Sessions that a record brings together become one."""
    read = pa.schema([field for field in records if field.name in {one.column for one in functions.values()} | {time}])
    kinds = {f"{name}.{i}": kind for name, one in functions.items() for i, kind in enumerate(one.kept(records))}
    held = pa.struct([(START, pa.int64()), (END, pa.int64()), *kinds.items()])

    def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        both: dict[str, Any] = {START: min(one[START], other[START]), END: max(one[END], other[END])}
        for name, function in functions.items():
            names = [f"{name}.{i}" for i in range(len(function.parts))]
            sides = [[pa.array([side[part]], kinds[part]) for part in names] for side in (one, other)]
            columns, unfit = function.after(*sides)
            if unfit is not None:
                raise function.too_large(f"aggregate {name!r}", sides[0][0].type)
            both.update({part: column[0].as_py() for part, column in zip(names, columns, strict=True)})
        return both

    def alone(record: Any) -> dict[str, Any]:
        batch = pa.RecordBatch.from_pylist([{name: getattr(record, name) for name in read.names}], schema=read)
        at = micros(getattr(record, time)) if isinstance(getattr(record, time), datetime.datetime) else getattr(record, time)
        found: dict[str, Any] = {START: at, END: at + gap_us}
        for name, function in functions.items():
            columns = function.of(batch, np.zeros(1, dtype=np.int64), 1)
            found.update({f"{name}.{i}": column[0].as_py() for i, column in enumerate(columns)})
        return found

    def told(session: Mapping[str, Any], own: Any) -> dict[str, Any]:
        values = own if isinstance(own, tuple) else (own,)
        result = {**dict(zip(key, values, strict=True)), START: moment(session[START]), END: moment(session[END])}
        for name, function in functions.items():
            columns = [pa.array([session[f"{name}.{i}"]], kinds[f"{name}.{i}"]) for i in range(len(function.parts))]
            result[name] = function.tell(columns)[0].as_py()
        return result

    class Sessions(Processor):
        open = list_of(held)
        describes: ClassVar[Mapping[str, str]] = {
            **{name: one.keeps for name, one in functions.items()},
            CUT: f"sessions with a gap of {gap_us / 1e6:g} s by {time!r}",
        }

        def process(self, key: Any, records: list[Any], state: State) -> Iterator[dict[str, Any]]:
            for record in records:
                new = alone(record)
                apart = [one for one in state.open if one[END] <= new[START] or one[START] >= new[END]]
                joined = [one for one in state.open if one[END] > new[START] and one[START] < new[END]]
                for one in joined:
                    state.cancel_timer(moment(one[END]))
                # what came before the record is before it, and of sessions the earlier one
                new = functools.reduce(merged, [*sorted(joined, key=lambda one: one[START]), new])
                state.open = [*apart, new]
                state.set_timer(moment(new[END]))
            return iter(())

        def on_timer(self, key: Any, timer: Timer, state: State) -> Iterator[dict[str, Any]]:
            ended = [one for one in state.open if moment(one[END]) <= timer.at]
            state.open = [one for one in state.open if moment(one[END]) > timer.at]
            for one in sorted(ended, key=lambda one: one[START]):
                yield told(one, key)

    return Sessions()
