"""State that is larger than memory: 2 GB of it, and Python workers that may have 512 MB each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from springtide.record.folder import RunFolder
from springtide.spark.state.reading import reading

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.soak]

KEYS, TEXT_BYTES, BATCH = 2_000_000, 1_000, 10_000
AGAIN = 200_000
"""Records that come once every key is there: of keys from all shards."""
WORKERS = 2


@dataclass(frozen=True)
class Said:
    key: int
    text: str


def said(draw: st.Draw) -> Said:
    """Every key in turn; behind the last, every tenth of them once more."""
    key = draw.index if draw.index < KEYS else (draw.index - KEYS) * (KEYS // AGAIN)
    letter = "a" if draw.index < KEYS else "b"
    return Said(key, f"{key:07d}".rjust(TEXT_BYTES, letter))


def test_state_larger_than_the_workers_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = KEYS + AGAIN
    stream = st.source.generate(said, rate=1e9, limit=records, max_records=BATCH)
    counts = stream.key_by("key").aggregate(n=st.agg.count(), text=st.agg.max("text"), shards=256, name="kept")
    with caplog.at_level(logging.WARNING):
        result = st.run(
            counts.to(st.sink.discard()).named("large"), policy="static", settings={"degree": WORKERS}, max_slots=WORKERS,
            master=f"local[{WORKERS}]", conf={"spark.executor.pyspark.memory": "512m"}, runs=tmp_path / "runs",
            checkpoint=tmp_path / "checkpoint",
        )  # fmt: skip
    assert result.summary["rows_in"] == records and result.summary["rows_failed"] == 0
    last = RunFolder.open(result.folder).batches()[-1].state["kept"]
    assert last.keys == KEYS and last.bytes > KEYS * TEXT_BYTES
    assert "is too large for its tasks' memory: they work on 34 MB of it at once, in" in caplog.text
    seen: dict[Any, int] = {}
    with reading(tmp_path / "checkpoint", "kept") as state:
        for part in state.rows():
            for text in part.column(part.schema.names[-1]).to_pylist():
                seen[text[0]] = seen.get(text[0], 0) + 1
    assert seen == {"a": KEYS - AGAIN, "b": AGAIN}
