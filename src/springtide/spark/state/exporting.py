"""All keys of an operator with their state, in a file: what ``springtide state export`` does."""

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
"""Beside the columns ``key.…`` and ``state.…``: in which shard a key is, and when it was written last."""


def exported(checkpoint: Path, operator: str, file: Path) -> dict[str, Any]:
    """Write the state of an operator now, by groups of shards."""
    with reading(checkpoint, operator) as state:
        if not state.segments:
            raise OptionError(f"operator {operator!r} has no state yet in checkpoint {str(checkpoint)!r}; nothing was written")
        own = [field for field in state.schema if field.name not in OWN.names]
        origin = origin_of(checkpoint, state.held)
        schema = origin.on(pa.schema([*own, (SHARD, pa.int32()), (WRITTEN, WRITTEN_TYPE)]))
        keys = files.write(file, schema, _parts(state, schema))
        told = {"operator": operator, "file": str(file), "batch": state.held.batch, "keys": keys}
        return {**told, "origin": origin.to_json()}


def _parts(state: Reading, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in state.rows():
        shards = shards_of(rows.column(HASH).to_numpy(), state.held.shards)
        added = [pa.array(shards).cast(pa.int32()), rows.column(TOUCHED).cast(WRITTEN_TYPE)]
        yield pa.RecordBatch.from_arrays([*rows.select(schema.names[:-2]).columns, *added], schema=schema)
