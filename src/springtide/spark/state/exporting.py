"""Exports the state of an operator to a file, for ``springtide state export``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.errors import OptionError
from springtide.policy.group.shards import shards_of
from springtide.spark.state import files
from springtide.spark.state.origin import origin_of
from springtide.spark.state.reading import Reading, reading
from springtide.spark.state.segment import HASH, OWN, TOUCHED

SHARD, WRITTEN = "shard", "written"
WRITTEN_TYPE = pa.timestamp("us", tz="UTC")
"""Columns beside ``key.…`` and ``state.…``: the key's shard, and the time of its last write."""


def exported(checkpoint: Path, operator: str, file: Path) -> dict[str, Any]:
    """Write the current state of an operator, one group of shards at a time."""
    with reading(checkpoint, operator) as state:
        if not state.segments:
            raise OptionError(f"operator {operator!r} has no state yet in checkpoint {str(checkpoint)!r}; nothing was written")
        own = [field for field in state.schema if field.name not in OWN.names]
        origin = origin_of(checkpoint, state.stored)
        schema = origin.on(pa.schema([*own, (SHARD, pa.int32()), (WRITTEN, WRITTEN_TYPE)]))
        keys = files.write(file, schema, _parts(state, schema))
        return {
            "operator": operator, "file": str(file), "batch": state.stored.batch, "keys": keys, "origin": origin.to_json()
        }  # fmt: skip


def _parts(state: Reading, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in state.rows():
        shards = shards_of(rows.column(HASH).to_numpy(), state.stored.shards)
        added = [pa.array(shards).cast(pa.int32()), rows.column(TOUCHED).cast(WRITTEN_TYPE)]
        yield pa.RecordBatch.from_arrays([*rows.select(schema.names[:-2]).columns, *added], schema=schema)
