"""Rows of state in any order, made one sorted segment. Both may be larger than memory."""

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
from springtide.spark.state.stepping import GROUP_BYTES, Kept
from springtide.spark.state.store import place_of

SORTING = ".sorting-"
"""How the names of folders begin in which rows are sorted."""
MOST_PILES = 256
"""The most files that are open at once, each with the rows of some shards."""


def stored(
    kept: Kept, parts: Iterable[pa.RecordBatch], size: int, name: str, check: Callable[[pa.RecordBatch], None] | None = None
) -> File:  # fmt: skip
    """One segment of this name with all rows, about ``size`` bytes. ``check`` is shown all rows of some shards at a time,
    sorted, before anything is written."""
    place = place_of(kept.folder)
    for left in place.scratch().glob(f"{SORTING}*"):  # by a process that was killed: one at a time has the checkpoint
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place.scratch(), prefix=SORTING) as scratch:
        piles = _piled(kept, parts, min(kept.shards, MOST_PILES, size // GROUP_BYTES + 1), Path(scratch))
        for pile in piles if check is not None else ():
            check(_sorted(pile))  # type: ignore[misc]  # it is not None
        file = written(place.writing(name), (_sorted(pile) for pile in piles), kept.schema, kept.shards, kept.timers)
        place.keep(name)
    return File(**file)


def _piled(kept: Kept, parts: Iterable[pa.RecordBatch], count: int, folder: Path) -> list[Path]:
    """The rows in files that each fit in memory, by ranges of shards."""
    paths = [folder / f"{number}.arrow" for number in range(count)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(path), kept.schema)) for path in paths]
        for part in parts:
            pile = shards_of(part.column(HASH).to_numpy(), kept.shards) * count // kept.shards
            for number in np.unique(pile).tolist():
                writers[number].write_batch(part.filter(pa.array(pile == number)))
    return paths


def _sorted(pile: Path) -> pa.RecordBatch:
    with pa.ipc.open_stream(pile.read_bytes()) as reader:
        rows = pa.concat_batches([*reader, pa.RecordBatch.from_pylist([], schema=reader.schema)])
    order = np.lexsort((rows.column(HASH2).to_numpy(), rows.column(HASH).to_numpy()))
    return rows.take(pa.array(order))
