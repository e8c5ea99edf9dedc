"""Imports the initial state of a new checkpoint from a file, for ``springtide state import``.

The state becomes one segment in the operator's folder. The checkpoint's document ``seed``, written last, puts it into effect:
the driver reads the state from there until a batch is committed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import CheckpointError, OptionError, nearest
from springtide.model.schema import as_python, microseconds
from springtide.model.topology import Operator, Topology
from springtide.processors.aggregating import CLOSE, Aggregating
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.state import files, piles
from springtide.spark.state.catalog import SEEDED, SUFFIX, Catalog, SegmentRun
from springtide.spark.state.declared import layout_of, layouts_in
from springtide.spark.state.exporting import SHARD, WRITTEN, WRITTEN_TYPE
from springtide.spark.state.lookup import distinct_in
from springtide.spark.state.origin import check_recount, origin_in, remembered
from springtide.spark.state.per_key import NEXT, TIMERS
from springtide.spark.state.segment import KEY, STATE
from springtide.spark.state.stepping import StateLayout
from springtide.spark.state.store import check_writable, checked


def seeded(
    topology: Topology, name: str, file: Path, root: Path, now: int, location: str | None = None,
    accept_recount: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Import the state of an operator into a checkpoint without batches, after reading the whole file once as a check.

    ``now``, in microseconds: the write time of rows without one. ``location``: the URI for the checkpoint's state.
    ``accept_recount``: also import state with records that the checkpoint's sources may read again."""
    operator = _stateful(topology, name)
    if location is not None:
        location = checked(location)
        check_writable(location)
    checkpoint = Checkpoint(root)
    _check_unused(checkpoint, name)
    parts = _Parts(file, layout_of(topology, operator, "", ""))
    size = sum(part.nbytes for part in parts)
    origin = origin_in(file)
    check_recount(file, origin, accept_recount)
    checkpoint.acquire(topology)
    try:
        _check_unused(checkpoint, name)
        layout = layouts_in(checkpoint, topology, location)[name]
        catalog = _stored(layout, (_identified(part, layout, now) for part in parts), size, file)
        remembered(checkpoint, name, origin)
        checkpoint.remember(SEED, {**(checkpoint.recall(SEED) or {}), name: catalog.to_json()})
    finally:
        checkpoint.release()
    return {
        "operator": name, "file": str(file), "checkpoint": str(root), "keys": catalog.keys, "bytes": catalog.bytes,
        "origin": None if origin is None else origin.to_json(),
    }  # fmt: skip


def _stateful(topology: Topology, name: str) -> Operator:
    found = {operator.name: operator for operator in topology.stateful}
    if name not in found:
        raise OptionError(f"topology {topology.name!r} has no stateful operator {name!r}: {nearest(name, found)}")
    return found[name]


def _check_unused(checkpoint: Checkpoint, name: str) -> None:
    """Refuse a checkpoint with batches, or with imported state of this operator."""
    if checkpoint.last_manifest() is not None or checkpoint.begun() >= 0:
        raise CheckpointError(f"checkpoint {checkpoint.root} has batches already; state is imported into a new one")
    if name in (checkpoint.recall(SEED) or {}):
        raise CheckpointError(
            f"checkpoint {checkpoint.root} has state of operator {name!r} already, which was imported; give a new checkpoint"
        )


class _Parts:
    """The rows of a file: the columns of the key and of the state, and the write time. Each iteration reads the file."""

    def __init__(self, file: Path, layout: StateLayout) -> None:
        self._file = file
        keys = [layout.input.field(name).with_name(KEY + name) for name in layout.key]
        variables = [field for field in layout.schema if field.name.startswith(STATE)]
        self._wanted = pa.schema([*keys, *variables, (WRITTEN, WRITTEN_TYPE)])
        timers = {STATE + name for name in (*TIMERS.values(), *NEXT.values())} | set(filter(None, layout.timers))
        self._optional = {WRITTEN, *(timers if layout.migrate is None else (field.name for field in variables))}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return files.read(self._file, self._wanted, self._optional, (SHARD,))


def _identified(part: pa.RecordBatch, layout: StateLayout, now: int) -> pa.RecordBatch:
    """Rows in the schema of a segment."""
    key = part.select([KEY + name for name in layout.key]).rename_columns(list(layout.key))
    one, two = layout.identities(key)
    touched = microseconds(part.column(WRITTEN)).fill_null(now)
    own = [pa.array(one), pa.array(two), pa.array(np.zeros(len(one), dtype=np.bool_)), touched]
    columns = {name: part.column(name) for name in part.schema.names} | _due(part, layout)
    rest = [columns[name] for name in layout.schema.names[len(own) :]]
    return pa.RecordBatch.from_arrays([*own, *rest], schema=layout.schema)


def _due(part: pa.RecordBatch, layout: StateLayout) -> dict[str, pa.Array]:
    """The time of each key's next timer where the file omits it but the rest of the row implies it: otherwise the timer would
    never fire."""
    found = {}
    for clock, name in TIMERS.items():
        if STATE + name in part.schema.names:
            earliest = [min(times) if times else None for times in part.column(STATE + name).to_pylist()]
            found[STATE + NEXT[clock]] = pa.array(earliest, pa.int64())
    if isinstance(layout.function, Aggregating) and layout.function.closes is not None:
        ends = microseconds(part.column(KEY + layout.function.closes))
        found[STATE + CLOSE] = pc.coalesce(part.column(STATE + CLOSE), ends)
    return found


def _stored(layout: StateLayout, parts: Iterable[pa.RecordBatch], size: int, file: Path) -> Catalog:
    """One segment with all rows, named for epoch 0, before the first: after a crash the next driver removes it as
    uncommitted."""
    name = f"{0:08d}-{0:06d}{SEEDED}{secrets.token_hex(4)}{SUFFIX}"
    stored = piles.stored(layout, parts, size, name, lambda rows: _check_keys(rows, layout, file))
    return Catalog((SegmentRun(0, 0, (stored,)),), stored.rows, layout.hashing)


def _check_keys(rows: pa.RecordBatch, layout: StateLayout, file: Path) -> None:
    _, first, _ = distinct_in(rows)
    twice = np.setdiff1d(np.arange(rows.num_rows), first)
    if len(twice):
        (key,) = as_python(rows.slice(twice[0], 1).select([KEY + name for name in layout.key]))
        shown = ", ".join(f"{name.removeprefix(KEY)}={value!r}" for name, value in key.items())
        raise OptionError(f"{file}: two rows have the key {shown}; a key has one state, so leave one of them out")
