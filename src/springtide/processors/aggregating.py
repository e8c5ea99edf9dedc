"""Aggregates by key, computed a column at a time: running aggregates, and aggregates of windows that close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model.state import Group, Step
from springtide.processors.aggregates import Aggregate, Columns


@dataclass(frozen=True)
class Aggregating:
    """Several aggregates by key. They emit a row for each key that has records in the batch.

    ``closes``: the column of the key with the time at which a window ends. With it, a key emits its aggregates once, when the
    watermark has reached that time, and its state is dropped.
    """

    functions: Mapping[str, Aggregate]
    input: pa.Schema
    key: tuple[str, ...]
    closes: str | None = None
    windows: Mapping[str, str] = field(default_factory=dict)  # the kind of the windows, in words

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            if name in self.key:
                raise TopologyError(f"aggregate: {name!r} is a column of the key; give the aggregate another name")
            function.check(f"aggregate {name!r}", self.input)

    @cached_property
    def variables(self) -> pa.Schema:
        fields = state_fields(self.functions, self.input)
        return pa.schema([*fields.items(), *([(CLOSE, pa.int64())] if self.closes else [])])

    @property
    def describes(self) -> Mapping[str, str]:
        """The meaning of the state, which the types of its columns do not show."""
        return {**{name: function.stored for name, function in self.functions.items()}, **self.windows}

    @property
    def event_timer(self) -> str | None:
        return CLOSE if self.closes else None

    @property
    def clock_timer(self) -> None:
        return None

    @cached_property
    def output(self) -> pa.Schema:
        """The key, and the result of every aggregate."""
        results = [pa.field(name, function.result(self._blank(function)).type) for name, function in self.functions.items()]
        return pa.schema([*(self.input.field(name) for name in self.key), *results])

    def step(self, group: Group) -> Step:
        count = len(group.known)
        state: list[pa.Array] = []
        results: list[pa.Array] = []
        failed: dict[int, Exception] = {}
        for name, function in self.functions.items():
            old = [group.old.column(f"{name}.{i}") for i in range(len(function.parts))]
            new: Columns = old
            if group.records.num_rows:
                new, unfit = function.after(old, function.of(group.records, group.of, count))
                if unfit is not None:
                    error = function.too_large(f"aggregate {name!r}", old[0].type)
                    failed = {**dict.fromkeys(np.flatnonzero(unfit).tolist(), error), **failed}
            state += new
            results.append(function.result(new))
        changed = np.ones(count, dtype=np.bool_)
        if failed:
            changed[list(failed)] = False
        closing = group.due if self.closes else np.zeros(count, dtype=np.bool_)
        if self.closes:
            ends = group.keys.column(self.closes).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            state.append(ends)
        emitting = np.flatnonzero(closing if self.closes else changed)
        rows = pa.RecordBatch.from_arrays([*group.keys.columns, *results], names=self.output.names)
        output = (rows if len(emitting) == count else rows.take(pa.array(emitting))).cast(self.output)
        new_state = pa.RecordBatch.from_arrays(state, schema=self.variables)
        return Step(changed, closing, new_state, output if output.num_rows else None, failed=tuple(failed.items()))

    def _blank(self, function: Aggregate) -> Columns:
        return [pa.nulls(0, kind) for kind in function.state_types(self.input)]


def state_fields(functions: Mapping[str, Aggregate], records: pa.Schema) -> dict[str, pa.DataType]:
    """The columns of the state of several aggregates: the name and the type of each."""
    kinds = ((name, function.state_types(records)) for name, function in functions.items())
    return {f"{name}.{i}": kind for name, parts in kinds for i, kind in enumerate(parts)}


CLOSE = "_close"
