"""Sorts rows of state into one segment. Input and segment may be larger than memory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from springtide.policy.group.shards import shards_of
from springtide.spark.state.catalog import File
from springtide.spark.state.segment import HASH, HASH2, written
from springtide.spark.state.stepping import GROUP_BYTES, StateLayout
from springtide.spark.state.store import store_of

SORTING = ".sorting-"
"""Prefix of the temporary folders for sorting."""
MOST_PILES = 256
"""Limits the open files; each has the rows of a range of shards."""


def stored(
    layout: StateLayout, parts: Iterable[pa.RecordBatch], size: int, name: str,
    check: Callable[[pa.RecordBatch], None] = lambda rows: None,
) -> File:  # fmt: skip
    """Write all rows, about ``size`` bytes, to one segment. Before that, ``check`` gets the sorted rows, a range of shards at
    a time."""
    store = store_of(layout.folder)
    for left in store.scratch().glob(f"{SORTING}*"):  # of a killed process: only one process at a time locks the checkpoint
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=store.scratch(), prefix=SORTING) as scratch:
        piles = _piled(layout, parts, min(layout.shards, MOST_PILES, size // GROUP_BYTES + 1), Path(scratch))
        for pile in piles:
            check(_sorted(pile))
        file = written(store.writing(name), (_sorted(pile) for pile in piles), layout.schema, layout.shards, layout.timers)
        store.publish(name)
    return File(**file)


def _piled(layout: StateLayout, parts: Iterable[pa.RecordBatch], count: int, folder: Path) -> list[Path]:
    """Split the rows into files by ranges of shards; each file fits in memory."""
    paths = [folder / f"{number}.arrow" for number in range(count)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(path), layout.schema)) for path in paths]
        for part in parts:
            pile = shards_of(part.column(HASH).to_numpy(), layout.shards) * count // layout.shards
            for number in np.unique(pile).tolist():
                writers[number].write_batch(part.filter(pa.array(pile == number)))
    return paths


def _sorted(pile: Path) -> pa.RecordBatch:
    with pa.ipc.open_stream(pile.read_bytes()) as reader:
        rows = pa.concat_batches([*reader, pa.RecordBatch.from_pylist([], schema=reader.schema)])
    order = np.lexsort((rows.column(HASH2).to_numpy(), rows.column(HASH).to_numpy()))
    return rows.take(pa.array(order))
