"""Creation times of a source's records: which records are too old, and what the driver gets to know of the others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.model.schema import microseconds


def younger(batch: pa.RecordBatch, created: str, since: float) -> tuple[pa.RecordBatch, int]:
    """The records that were created since then, or that do not say when; and how many are left out."""
    times = microseconds(batch.column(created))
    kept = pc.fill_null(pc.greater_equal(times, round(since * 1e6)), True)
    rest = batch.filter(kept)
    return rest, batch.num_rows - rest.num_rows


def quantiles(column: pa.Array, parts: int = 64) -> list[tuple[float, float]]:
    """Up to 64 creation times (seconds since 1970) that stand for all, each with the number of records it stands for."""
    times = np.sort(microseconds(column).drop_null().to_numpy(zero_copy_only=False)) / 1e6
    groups = np.array_split(times, min(parts, len(times))) if len(times) else []
    return [(float(group.mean()), float(len(group))) for group in groups]
