"""Deduplication: passes the first record of every key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from springtide.model.state import Group, Step


@dataclass(frozen=True)
class Deduplicate:
    """Passes the first record of a key. Its state is the key alone, without a variable."""

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
        first[group.of[::-1]] = np.arange(len(group.of))[::-1]  # reversed: the earliest is assigned last
        new = np.flatnonzero(~group.known & (first >= 0))
        rows = np.sort(first[new])
        output = group.records.take(pa.array(rows)) if len(rows) else None
        none = np.zeros(count, dtype=np.bool_)
        return Step(~group.known, none, pa.RecordBatch.from_arrays([], names=[]), output)
