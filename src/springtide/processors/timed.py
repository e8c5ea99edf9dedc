"""Records that have to have a time: those without are left out, and told of."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Timed:
    """Records with a time. Whoever calls it with a batch sends what is ``untimed`` of that where records go that failed."""

    time: str

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        column = records.column(self.time)
        return records.filter(column.is_valid()) if column.null_count else records

    def untimed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        column = records.column(self.time)
        return records.filter(pc.is_null(column)) if column.null_count else records.slice(0, 0)

    @property
    def fault(self) -> Exception:
        """What is wrong with those."""
        return ValueError(f"its time, {self.time!r}, is null; leave such records out with filter(), or give them one")
