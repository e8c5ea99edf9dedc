"""Aggregates of every key, a column at a time: running ones, and those of windows that close."""

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
    """Several aggregates of every key. A key tells them whenever records of it came.

    ``closes``: the column of the key with the time at which a window ends. Then a key tells its aggregates once, when the
    watermark has reached that, and is forgotten.
    """

    functions: Mapping[str, Aggregate]
    input: pa.Schema
    key: tuple[str, ...]
    closes: str | None = None
    windows: Mapping[str, str] = field(default_factory=dict)  # how the records were cut into them, in words

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            if name in self.key:
                raise TopologyError(f"aggregate: {name!r} is a column of the key; call the aggregate otherwise")
            function.check(f"aggregate {name!r}", self.input)

    @cached_property
    def variables(self) -> pa.Schema:
        kept = [(f"{name}.{i}", kind) for name, one in self.functions.items() for i, kind in enumerate(one.kept(self.input))]
        return pa.schema([*kept, *([(CLOSE, pa.int64())] if self.closes else [])])

    @property
    def describes(self) -> Mapping[str, str]:
        """What the state is of, which the types of its columns do not tell."""
        return {**{name: one.keeps for name, one in self.functions.items()}, **self.windows}

    @property
    def event_timer(self) -> str | None:
        return CLOSE if self.closes else None

    @property
    def clock_timer(self) -> None:
        return None

    @cached_property
    def output(self) -> pa.Schema:
        """The key, and the result of every aggregate."""
        told = [pa.field(name, one.tell(self._nothing(one)).type) for name, one in self.functions.items()]
        return pa.schema([*(self.input.field(name) for name in self.key), *told])

    def step(self, group: Group) -> Step:
        count = len(group.known)
        kept: list[pa.Array] = []
        told: list[pa.Array] = []
        failed: dict[int, Exception] = {}
        for name, function in self.functions.items():
            old = [group.old.column(f"{name}.{i}") for i in range(len(function.parts))]
            new: Columns = old
            if group.records.num_rows:
                new, unfit = function.after(old, function.of(group.records, group.of, count))
                if unfit is not None:
                    error = function.too_large(f"aggregate {name!r}", old[0].type)
                    failed = {**dict.fromkeys(np.flatnonzero(unfit).tolist(), error), **failed}
            kept += new
            told.append(function.tell(new))
        changed = np.ones(count, dtype=np.bool_)
        if failed:
            changed[list(failed)] = False
        closing = group.due if self.closes else np.zeros(count, dtype=np.bool_)
        if self.closes:
            ends = group.keys.column(self.closes).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            kept.append(ends)
        telling = np.flatnonzero(closing if self.closes else changed)
        rows = pa.RecordBatch.from_arrays([*group.keys.columns, *told], names=self.output.names)
        output = (rows if len(telling) == count else rows.take(pa.array(telling))).cast(self.output)
        new_state = pa.RecordBatch.from_arrays(kept, schema=self.variables)
        return Step(changed, closing, new_state, output if output.num_rows else None, failed=tuple(failed.items()))

    def _nothing(self, function: Aggregate) -> Columns:
        return [pa.nulls(0, kind) for kind in function.kept(self.input)]


CLOSE = "_close"
