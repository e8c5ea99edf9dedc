"""The origin of exported state: the records that it includes, so that an import can refuse to count them twice.

Exports to Parquet store it in the file's metadata. JSON lines and CSV cannot store it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.errors import OptionError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.state import files
from springtide.spark.state.reading import StoredState

METADATA = b"springtide.origin"
IMPORTED = "imported"
"""The checkpoint document with the origins of imported state, by operator."""


@dataclass(frozen=True)
class Origin:
    """The checkpoint that state was exported from, its last batch (None before the first), how many records each source had
    committed by then (None where an old manifest does not say), and Spark's log of their offsets."""

    checkpoint: str
    batch: int | None
    sources: Mapping[str, int] | None
    offsets: str | None = None

    def __str__(self) -> str:
        if self.sources is None:
            return f"state of checkpoint {self.checkpoint}, which does not say which records it had counted"
        counts = (f"source {name!r} had committed {count:,} records" for name, count in self.sources.items())
        return f"state of batch {self.batch} of checkpoint {self.checkpoint}, when {' and '.join(counts)}"

    def to_json(self) -> dict[str, Any]:
        """Omits the offsets, which are long and of use to Spark alone."""
        return {"checkpoint": self.checkpoint, "batch": self.batch, "sources": self.sources}

    @property
    def has_counted(self) -> bool:
        return self.sources is None or any(self.sources.values())

    def on(self, schema: pa.Schema) -> pa.Schema:
        """The schema of a file, with this origin in its metadata."""
        return schema.with_metadata({METADATA: json.dumps(asdict(self))})


def origin_of(checkpoint: Path, state: StoredState) -> Origin:
    """The origin of an operator's current state. Imported state keeps its origin until a batch is committed; then the records
    that it includes are unknown."""
    stored = Checkpoint(checkpoint)
    document = (stored.recall(IMPORTED) or {}).get(state.operator)
    imported = None if document is None else Origin(**document)
    identity = (stored.recall("topology") or {})["id"]
    if state.batch is None:
        return imported or Origin(identity, None, None if state.catalog.runs else {})
    manifest = stored.manifest(state.batch) or {}
    offsets = manifest.get("offsets")  # a checksum in old manifests
    sources = None if imported is not None and imported.has_counted else manifest.get("sources")
    return Origin(identity, state.batch, sources, offsets if isinstance(offsets, str) else None)


def origin_in(file: Path) -> Origin | None:
    """The origin in a file's metadata, if there is any."""
    document = files.metadata(file).get(METADATA)
    if document is None:
        return None
    try:
        return Origin(**json.loads(document))
    except (ValueError, TypeError) as error:
        raise OptionError(f"{file}: its metadata {METADATA.decode()!r} is damaged ({error}); export the state again") from None


def check_recount(file: Path, origin: Origin | None, accepted: bool) -> None:
    """Refuse state with records that the new checkpoint's sources will read again, unless ``accepted``."""
    if accepted or (origin is not None and not origin.has_counted):
        return
    if origin is not None:
        fault = (
            f"{file} holds {origin}. A new checkpoint begins at the start of its sources, so those records are counted again"
        )
    else:
        fault = (
            f"{file} does not tell which records its state has counted: only .parquet files of `springtide state export` do. A"
            " new checkpoint begins at the start of its sources, so what they bring may be counted twice"
        )
    raise OptionError(
        f"{fault}. Start the sources after those records, or make sure that counting them twice does no harm, and import with"
        " --accept-recount"
    )


def remembered(checkpoint: Checkpoint, operator: str, origin: Origin | None) -> None:
    """Store the origin of imported state; an unknown origin counts as having included records."""
    known = origin or Origin("unknown", None, None)
    checkpoint.remember(IMPORTED, {**(checkpoint.recall(IMPORTED) or {}), operator: asdict(known)})
