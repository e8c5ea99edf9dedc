"""Creation times of a source's records: sheds old records, and samples the others for the driver."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.model.schema import microseconds


def younger(batch: pa.RecordBatch, created: str, since: float) -> tuple[pa.RecordBatch, int]:
    """The records without those created before ``since``, and the number of these."""
    times = microseconds(batch.column(created))
    rest = batch.filter(pc.fill_null(pc.greater_equal(times, round(since * 1e6)), True))
    return rest, batch.num_rows - rest.num_rows


def quantiles(column: pa.Array, parts: int = 64) -> list[tuple[float, float]]:
    """Up to ``parts`` creation times (seconds since 1970) that represent all records, each with its number of records."""
    return representatives(microseconds(column).drop_null().to_numpy(zero_copy_only=False), parts)


def representatives(micros: npt.NDArray[np.int64], parts: int = 64) -> list[tuple[float, float]]:
    """The same of times in microseconds."""
    times = np.sort(micros) / 1e6
    groups = np.array_split(times, min(parts, len(times))) if len(times) else []
    return [(float(group.mean()), float(len(group))) for group in groups]
