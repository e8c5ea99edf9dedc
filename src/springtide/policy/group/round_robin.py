"""Round-robin: one record for each target in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class RoundRobin:
    """Target = (origin + position) mod width.

    Each upstream task deals its records out in turn, so its targets differ by one record at most, and the
    totals of s upstream tasks by s at most. The origin shifts the start: otherwise 16 tasks with one record
    each would all send it to target 0. What a record costs plays no part; see the other groupings for that.

    >>> RoundRobin().route(pa.record_batch({"a": range(5)}), (), origin=2, width=3).tolist()
    [2, 0, 1, 2, 0]
    """

    kind: ClassVar[str] = "group"
    name: ClassVar[str] = "round-robin"
    source: ClassVar[str] = "Springtide"
    summary: ClassVar[str] = "one record for each task in turn"

    def route(self, batch: pa.RecordBatch, key: tuple[str, ...], origin: int, width: int) -> npt.NDArray[np.int64]:
        start = origin % width
        return np.arange(start, start + batch.num_rows, dtype=np.int64) % width
