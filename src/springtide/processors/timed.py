"""Records that need a time: records without a time are left out, and reported as failed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from springtide.processors.selecting import Failures, Selecting


@dataclass(frozen=True)
class Timed(Selecting):
    """Passes the records that have a time. Those without one fail."""

    time: str

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        column = records.column(self.time)
        if not column.null_count:
            return records, []
        untimed = pc.indices_nonzero(pc.is_null(column)).to_pylist()
        return records.filter(column.is_valid()), [(index, self.fault) for index in untimed]

    @property
    def fault(self) -> Exception:
        """The error of the untimed records."""
        return ValueError(f"its time, {self.time!r}, is null; leave such records out with filter(), or give them one")
