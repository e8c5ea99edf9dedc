"""The measurements and decisions of an attachment, as a table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from springtide.errors import SetupError
from springtide.model.snapshot import Snapshot
from springtide.spark.attach.advice import Advice
from springtide.spark.attach.batches import QueryBatch

RETAINED_BATCHES = 10_000
"""Limits the rows: 3 hours with a batch a second."""
COLUMNS = (
    "time", "batch", "rows", "rate", "batch_s", "busy_s", "backlog", "latency_ms", "executors", "wanted", "reason", "advice",
)  # fmt: skip


def row(
    batch: QueryBatch, measured: Snapshot, executors: int, wanted: int, reason: str, advice: Sequence[Advice]
) -> Mapping[str, Any]:  # fmt: skip
    """The row of a batch, with the measurements and the decision of its cycle."""
    return {
        "time": batch.ended, "batch": batch.number, "rows": batch.rows, "rate": measured.rate, "batch_s": batch.duration_s,
        "busy_s": batch.busy_s, "backlog": measured.backlog,
        "latency_ms": None if measured.latency is None else measured.latency.mean,
        "executors": executors, "wanted": wanted, "reason": reason, "advice": "; ".join(item.text for item in advice),
    }  # fmt: skip


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    try:
        pd: Any = importlib.import_module("pandas")
    except ImportError:
        raise SetupError("history() makes a pandas DataFrame, and pandas is not installed; pip install pandas") from None
    made = pd.DataFrame(list(rows), columns=list(COLUMNS))
    made["time"] = pd.to_datetime(made["time"], unit="s", utc=True)
    return made
