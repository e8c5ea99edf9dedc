"""Time windows: each record is assigned to its windows, and a window is emitted when the watermark has passed its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from springtide.model.schema import microseconds
from springtide.processors.selecting import Failures
from springtide.processors.timed import Timed

START, END = "window_start", "window_end"
CUT = "its windows"
"""The key under which a checkpoint stores the kind of an operator's windows; an aggregate cannot have this name."""
MOMENT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Windows(Timed):
    """Windows of length ``length_us``, of which a new one begins every ``slide_us``; times are microseconds since 1970.

    >>> rows = pa.record_batch({"at": pa.array([25], pa.int64())})
    >>> Windows("at", 10, 10)(rows).select([START]).to_pydict()[START][0].microsecond
    20
    """

    length_us: int
    slide_us: int

    @property
    def describes(self) -> dict[str, str]:
        return {CUT: f"{self.length_us / 1e6:g} s every {self.slide_us / 1e6:g} s by {self.time!r}"}

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        """A row for each record and each of its windows. A record without a time has no window."""
        records, untimed = super().split(records)
        known = microseconds(records.column(self.time)).to_numpy()
        rows = np.arange(len(known))
        latest = known - known % self.slide_us
        count = -(-self.length_us // self.slide_us)
        starts = (latest[:, None] - self.slide_us * np.arange(count)[None, :]).ravel()
        rows, known = np.repeat(rows, count), np.repeat(known, count)
        inside = starts + self.length_us > known
        starts, rows = starts[inside], rows[inside]
        window = [pa.array(starts).cast(MOMENT), pa.array(starts + self.length_us).cast(MOMENT)]
        schema = self.schema(records.schema)
        return pa.RecordBatch.from_arrays([*records.take(pa.array(rows)).columns, *window], schema=schema), untimed

    @staticmethod
    def schema(records: pa.Schema) -> pa.Schema:
        return pa.schema([*records, pa.field(START, MOMENT, nullable=False), pa.field(END, MOMENT, nullable=False)])
