"""The state that a checkpoint's first batch begins with, from a file: what ``springtide state import`` does.

It becomes one segment in the operator's folder. What makes it count is the checkpoint's document ``seed``, written last: the
driver takes the state from there as long as no batch is committed.
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
from springtide.spark.state.catalog import SEEDED, SUFFIX, Catalog, Run
from springtide.spark.state.declared import kept_in, kept_of
from springtide.spark.state.exporting import SHARD, WRITTEN, WRITTEN_TYPE
from springtide.spark.state.lookup import distinct_in
from springtide.spark.state.origin import check_recount, remembered, told_by
from springtide.spark.state.per_key import NEXT, TIMERS
from springtide.spark.state.segment import KEY, STATE
from springtide.spark.state.stepping import Kept
from springtide.spark.state.store import check_writable, checked


def seeded(
    topology: Topology, name: str, file: Path, root: Path, now: int, location: str | None = None,
    accept_recount: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Seed the state of an operator in a checkpoint without batches. ``now``, in microseconds: when rows were written that do
    not say so. ``location``: the URI where the checkpoint's state shall lie. ``accept_recount``: import also what has counted
    records that the checkpoint's sources may bring again. All of the file is tried before the checkpoint is touched."""
    operator = _stateful(topology, name)
    if location is not None:
        location = checked(location)
        check_writable(location)
    checkpoint = Checkpoint(root)
    _check_unused(checkpoint, name)
    parts = _Parts(file, kept_of(topology, operator, "", ""))
    size = sum(part.nbytes for part in parts)
    origin = told_by(file)
    check_recount(file, origin, accept_recount)
    checkpoint.acquire(topology)
    try:
        _check_unused(checkpoint, name)
        kept = kept_in(checkpoint, topology, location)[name]
        catalog = _stored(kept, (_identified(part, kept, now) for part in parts), size, file)
        remembered(checkpoint, name, origin)
        checkpoint.remember(SEED, {**(checkpoint.recall(SEED) or {}), name: catalog.to_json()})
    finally:
        checkpoint.release()
    told = {"operator": name, "file": str(file), "checkpoint": str(root), "keys": catalog.keys, "bytes": catalog.bytes}
    return {**told, "origin": None if origin is None else origin.to_json()}


def _stateful(topology: Topology, name: str) -> Operator:
    found = {operator.name: operator for operator in topology.stateful}
    if name not in found:
        raise OptionError(f"topology {topology.name!r} has no stateful operator {name!r}: {nearest(name, found)}")
    return found[name]


def _check_unused(checkpoint: Checkpoint, name: str) -> None:
    """State is seeded before the first batch, and once."""
    if checkpoint.last_manifest() is not None or checkpoint.begun() >= 0:
        raise CheckpointError(f"checkpoint {checkpoint.root} has batches already; state is imported into a new one")
    if name in (checkpoint.recall(SEED) or {}):
        raise CheckpointError(
            f"checkpoint {checkpoint.root} has state of operator {name!r} already, which was imported; give a new checkpoint"
        )


class _Parts:
    """The rows of a file, as often as they are gone through: the columns of the key and of the state, and when written."""

    def __init__(self, file: Path, kept: Kept) -> None:
        self._file = file
        keys = [kept.input.field(name).with_name(KEY + name) for name in kept.key]
        variables = [field for field in kept.schema if field.name.startswith(STATE)]
        self._wanted = pa.schema([*keys, *variables, (WRITTEN, WRITTEN_TYPE)])
        timers = {STATE + name for name in (*TIMERS.values(), *NEXT.values())} | {one for one in kept.timers if one is not None}
        self._optional = {WRITTEN, *(timers if kept.migrate is None else (field.name for field in variables))}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return files.read(self._file, self._wanted, self._optional, (SHARD,))


def _identified(part: pa.RecordBatch, kept: Kept, now: int) -> pa.RecordBatch:
    """Rows as a segment has them."""
    key = part.select([KEY + name for name in kept.key]).rename_columns(list(kept.key))
    one, two = kept.identities(key)
    touched = microseconds(part.column(WRITTEN)).fill_null(now)
    own = [pa.array(one), pa.array(two), pa.array(np.zeros(len(one), dtype=np.bool_)), touched]
    columns = {name: part.column(name) for name in part.schema.names} | _due(part, kept)
    rest = [columns[name] for name in kept.schema.names[len(own) :]]
    return pa.RecordBatch.from_arrays([*own, *rest], schema=kept.schema)


def _due(part: pa.RecordBatch, kept: Kept) -> dict[str, pa.Array]:
    """When a key is to be called, where the file leaves that open though it follows from the rest of the row: a key without it
    would never be called."""
    found = {}
    for clock, name in TIMERS.items():
        if STATE + name in part.schema.names:
            earliest = [min(times) if times else None for times in part.column(STATE + name).to_pylist()]
            found[STATE + NEXT[clock]] = pa.array(earliest, pa.int64())
    if isinstance(kept.function, Aggregating) and kept.function.closes is not None:
        ends = microseconds(part.column(KEY + kept.function.closes))
        found[STATE + CLOSE] = pc.coalesce(part.column(STATE + CLOSE), ends)
    return found


def _stored(kept: Kept, parts: Iterable[pa.RecordBatch], size: int, file: Path) -> Catalog:
    """One segment with all rows. Its name says batch 0 of epoch 0, before the first: what a later driver finds there and no
    catalog needs, as after a crash, is swept away like what else was not committed."""
    name = f"{0:08d}-{0:06d}{SEEDED}{secrets.token_hex(4)}{SUFFIX}"
    stored = piles.stored(kept, parts, size, name, lambda rows: _check_keys(rows, kept, file))
    return Catalog((Run(0, 0, (stored,)),), stored.rows, kept.hashing)


def _check_keys(rows: pa.RecordBatch, kept: Kept, file: Path) -> None:
    """A key has one state."""
    _, first, _ = distinct_in(rows)
    twice = np.setdiff1d(np.arange(rows.num_rows), first)
    if len(twice):
        (key,) = as_python(rows.slice(twice[0], 1).select([KEY + name for name in kept.key]))
        told = ", ".join(f"{name.removeprefix(KEY)}={value!r}" for name, value in key.items())
        raise OptionError(f"{file}: two rows have the key {told}; a key has one state, so leave one of them out")
