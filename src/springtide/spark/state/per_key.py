"""Runs a user's processor key by key, as the stateful function of an operator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.model.columns import to_batch
from springtide.model.schema import Reader
from springtide.model.state import Group, Step, arrow_type, moment
from springtide.processors.processor import Clock, Processor, State, Timer
from springtide.spark.task.chunk import Chunk, Refused

TIMERS = {Clock.EVENT: "_event_timers", Clock.PROCESSING: "_clock_timers"}
NEXT = {Clock.EVENT: "_event_due", Clock.PROCESSING: "_clock_due"}
At = tuple[Clock, int]
"""A timer, in microseconds since 1970."""
MISFITS = (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError)


class PerKey:
    """A stateful function that calls a processor for each key of a group."""

    def __init__(
        self, processor: Processor, record: type, readers: Mapping[str, Reader], output: pa.Schema, made: type | None
    ) -> None:
        self._processor, self._record, self._known_readers = processor, record, readers
        self._output, self._made = output, made or object
        self._declared = processor.declared
        name = type(processor).__name__
        types = {one: arrow_type(f"{name}.{one}", variable.hint()) for one, variable in self._declared.items()}
        self._readers: dict[str, Reader | None] = {one: reader or _read_map(kind) for one, (kind, reader) in types.items()}
        self._clocks = tuple(TIMERS) if processor.on_timer is not None else ()
        timers = [(TIMERS[clock], pa.list_(pa.int64())) for clock in self._clocks]
        coming = [(NEXT[clock], pa.int64()) for clock in self._clocks]
        self.variables = pa.schema([*((one, kind) for one, (kind, _) in types.items()), *timers, *coming])
        self._written = pa.schema([field.with_nullable(self._may_be_null(field.name)) for field in self.variables])
        self._nothing = {**dict.fromkeys(self.variables.names), **{one: v.initial() for one, v in self._declared.items()}}
        self.event_timer = NEXT[Clock.EVENT] if self._clocks else None
        self.clock_timer = NEXT[Clock.PROCESSING] if self._clocks else None

    def _may_be_null(self, name: str) -> bool:
        """A variable with a default must not be None unless None is declared: it would be read as the default."""
        variable = self._declared.get(name)
        return variable is None or variable.default is None or variable.takes_none

    def step(self, group: Group) -> Step:
        count = len(group.known)
        states, keys = self._states(group), self._keys(group)
        records = self._records(group)
        output: list[list[Any]] = []
        failed: dict[int, BaseException] = {}
        called: dict[int, list[At]] = {}  # by key, until its records are processed: an earlier failure is a timer's
        seconds = np.zeros(count)
        for i in range(count):
            begin = time.perf_counter()
            try:
                made: list[Any] = []  # timers first: they are due before the records
                for timer in self._due_timers(states[i], group) if group.due[i] else ():
                    called.setdefault(i, []).append(timer)
                    group.before_call()
                    made += self._fired(keys[i], timer, states[i])
                if records[i]:
                    called.pop(i, None)
                    group.before_call()
                    made += self._processed(keys[i], records[i], states[i])
                output.append(made)
            except BaseException as error:  # noqa: BLE001  any error of a user's function fails the key's records
                failed[i] = error
                output.append([])
            seconds[i] = time.perf_counter() - begin
        new = self._encoded(states, failed)
        results = _fitting(output, self._output, failed, [])
        changed = np.ones(count, dtype=np.bool_)
        changed[list(failed)] = False
        if given_up := {i: timers for i, timers in called.items() if i in failed}:
            for i, state in zip(given_up, self._without(given_up, group), strict=True):
                states[i], changed[i] = state, True
            new = self._encoded(states, {i: error for i, error in failed.items() if i not in given_up})
        gone = np.array([self._is_blank(state) for state in states], dtype=np.bool_)
        return Step(changed, gone, new, results if results.num_rows else None, seconds, tuple(failed.items()))

    def _fired(self, key: Any, timer: At, state: Any) -> list[Any]:
        clock, at = timer
        assert self._processor.on_timer is not None
        return self._checked(self._processor.on_timer(key, Timer(moment(at), clock), state))

    def _processed(self, key: Any, records: list[Any], state: Any) -> list[Any]:
        refused = next((record for record in records if record.__class__ is Refused), None)
        if refused is not None:
            raise refused.error
        return self._checked(self._processor.process(key, records, state))

    def _without(self, given_up: Mapping[int, list[At]], group: Group) -> Iterator[Any]:
        """The previous states of keys without the failed timer, the last one called. If an earlier timer of this batch had set
        it, and would set it again, drop all that were called."""
        keys = list(given_up)
        before = self._states(replace(group, known=group.known[keys], old=group.old.take(pa.array(keys))))
        for state, called in zip(before, given_up.values(), strict=True):
            clock, last = called[-1]
            was_set = last in state._timers[clock]
            for clock, at in called[-1:] if was_set else called:
                state._timers[clock].discard(at)
            yield state

    def _due_timers(self, state: Any, group: Group) -> Iterable[At]:
        """The due timers, the earliest first; each is removed before it is called."""
        limits = {Clock.EVENT: group.watermark, Clock.PROCESSING: group.now}
        for clock in self._clocks:
            limit = limits[clock]
            due = sorted(at for at in state._timers[clock] if limit is not None and at <= limit)
            for at in due:
                if at in state._timers[clock]:  # an earlier one may have cancelled it
                    state._timers[clock].discard(at)
                    yield clock, at

    def _checked(self, results: Iterable[Any] | None) -> list[Any]:
        made = [] if results is None else list(results)
        for record in made:
            if not isinstance(record, self._made):
                names = (kind.__name__ for kind in (type(self._processor), self._made, type(record)))
                raise TypeError("{} is to give {}, got {}".format(*names))
        return made

    def _states(self, group: Group) -> list[Any]:
        """A state handle for each key, with its stored values."""
        columns = [self._column(group, name) for name in self._declared]
        timers = {clock: group.old.column(TIMERS[clock]).to_pylist() for clock in self._clocks}
        kind = _handle(self._declared)
        now, watermark = moment(group.now), None if group.watermark is None else moment(group.watermark)
        states = []
        for i, known in enumerate(group.known.tolist()):
            state = kind()
            for name, variable, values in zip(self._declared, self._declared.values(), columns, strict=True):
                old = values[i] if known else None
                unset = old is None and not (known and variable.takes_none)
                setattr(state, name, variable.initial() if unset else old)
            state._timers = {clock: set(timers[clock][i] or () if known else ()) for clock in self._clocks}
            state.now, state.watermark = now, watermark
            states.append(state)
        return states

    def _column(self, group: Group, name: str) -> list[Any]:
        values: list[Any] = group.old.column(name).to_pylist()
        reader = self._readers[name]
        return values if reader is None else [None if value is None else reader(value) for value in values]

    def _keys(self, group: Group) -> list[Any]:
        columns = [column.to_pylist() for column in group.keys.columns]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _records(self, group: Group) -> list[list[Any]]:
        """The records of each key, in their order."""
        made = Chunk(group.records.schema, batch=group.records).records(self._record, self._known_readers)
        by_key: list[list[Any]] = [[] for _ in range(len(group.known))]
        for key, record in zip(group.of.tolist(), made, strict=True):
            by_key[key].append(record)
        return by_key

    def _is_blank(self, state: Any) -> bool:
        """Whether the state equals the initial state, which is not stored."""
        if any(state._timers.values()):
            return False
        return all(getattr(state, name) == variable.default for name, variable in self._declared.items())

    def _encoded(self, states: list[Any], failed: dict[int, BaseException]) -> pa.RecordBatch:
        """All states as columns. A value that does not fit its declared type fails its key alone."""
        rows = [[self._row(state)] for state in states]
        return _fitting(rows, self._written, failed, [self._nothing], strict=True)

    def _row(self, state: Any) -> dict[str, Any]:
        row = {name: getattr(state, name) for name in self._declared}
        for clock in self._clocks:
            times = sorted(state._timers[clock])
            row[TIMERS[clock]], row[NEXT[clock]] = times or None, times[0] if times else None
        return row


_handles: dict[tuple[str, ...], type] = {}


def _handle(declared: Mapping[str, Any]) -> type:
    """A subclass of State with exactly these attributes."""
    names = tuple(declared)
    if names not in _handles or _handles[names].declared is not declared:  # type: ignore[attr-defined]
        _handles[names] = type("State", (State,), {"__slots__": names, "declared": declared})
    return _handles[names]


def _fitting(
    made: list[list[Any]], schema: pa.Schema, failed: dict[int, BaseException], instead: list[Any], strict: bool = False
) -> pa.RecordBatch:
    """The rows of all keys in a schema. Keys that failed, or whose rows do not fit, have the rows ``instead``."""
    for i in failed:
        made[i] = instead
    try:
        return to_batch(list(itertools.chain.from_iterable(made)), schema, strict)
    except MISFITS:
        for i, own in enumerate(made):
            try:
                to_batch(own, schema, strict)
            except MISFITS as error:
                failed[i], made[i] = error, instead
        return to_batch(list(itertools.chain.from_iterable(made)), schema, strict)


def _read_map(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Arrow gives a map as a list of pairs."""
    return dict if pa.types.is_map(kind) else None
