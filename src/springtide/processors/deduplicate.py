"""The first record of every key, and no other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from springtide.model.state import Group, Step


@dataclass(frozen=True)
class Deduplicate:
    """Lets the first record of a key pass. What it remembers of a key is that it was there."""

    @property
    def variables(self) -> pa.Schema:
        return pa.schema([])

    @property
    def event_timer(self) -> None:
        return None

    @property
    def clock_timer(self) -> None:
        return None

    def step(self, group: Group) -> Step:
        count = len(group.known)
        first = np.full(count, -1, dtype=np.int64)
        first[group.of[::-1]] = np.arange(len(group.of))[::-1]  # the last that is assigned is the earliest
        new = np.flatnonzero(~group.known & (first >= 0))
        rows = np.sort(first[new])
        output = group.records.take(pa.array(rows)) if len(rows) else None
        none = np.zeros(count, dtype=np.bool_)
        return Step(~group.known, none, pa.RecordBatch.from_arrays([], names=[]), output)
