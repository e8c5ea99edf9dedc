"""Records that need a time: records without a time are left out, and reported as failed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Timed:
    """Passes the records that have a time. Its caller treats the ``untimed`` records of the batch as failed records."""

    time: str

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        column = records.column(self.time)
        return records.filter(column.is_valid()) if column.null_count else records

    def untimed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        column = records.column(self.time)
        return records.filter(pc.is_null(column)) if column.null_count else records.slice(0, 0)

    @property
    def fault(self) -> Exception:
        """The error of the untimed records."""
        return ValueError(f"its time, {self.time!r}, is null; leave such records out with filter(), or give them one")
