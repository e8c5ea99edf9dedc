"""Where exported state comes from: which records it has counted, so that an import can tell which would be counted again.

An export to Parquet has it in the file's metadata. JSON lines and CSV have no place for it, and other programs do not know it.
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
from springtide.spark.state.reading import Held

METADATA = b"springtide.origin"
IMPORTED = "imported"
"""The document of a checkpoint with the origins of the state that was imported into it, by operator."""


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
        """Without the offsets, which are long, and of use to Spark alone."""
        return {"checkpoint": self.checkpoint, "batch": self.batch, "sources": self.sources}

    @property
    def has_counted(self) -> bool:
        return self.sources is None or any(self.sources.values())

    def on(self, schema: pa.Schema) -> pa.Schema:
        """A schema whose file shall tell of it."""
        return schema.with_metadata({METADATA: json.dumps(asdict(self))})


def origin_of(checkpoint: Path, held: Held) -> Origin:
    """Of an operator's state as it is now. State that was imported, and to which no batch was added, is of where that was; if
    batches were added, what it has counted in all is not known."""
    stored = Checkpoint(checkpoint)
    document = (stored.recall(IMPORTED) or {}).get(held.operator)
    imported = None if document is None else Origin(**document)
    identity = (stored.recall("topology") or {})["id"]
    if held.batch is None:
        return imported or Origin(identity, None, None if held.catalog.runs else {})
    manifest = stored.manifest(held.batch) or {}
    offsets = manifest.get("offsets")  # old manifests have a checksum of it
    sources = None if imported is not None and imported.has_counted else manifest.get("sources")
    return Origin(identity, held.batch, sources, offsets if isinstance(offsets, str) else None)


def told_by(file: Path) -> Origin | None:
    """What a file says of it; None if nothing."""
    document = files.metadata(file).get(METADATA)
    if document is None:
        return None
    try:
        return Origin(**json.loads(document))
    except (ValueError, TypeError) as error:
        raise OptionError(f"{file}: its metadata {METADATA.decode()!r} is damaged ({error}); export the state again") from None


def check_recount(file: Path, origin: Origin | None, accepted: bool) -> None:
    """Refuse state of records that the sources of a new checkpoint bring again, unless that is accepted."""
    if accepted or (origin is not None and not origin.has_counted):
        return
    if origin is not None:
        told = f"{file} holds {origin}. A new checkpoint begins at the start of its sources, so those records are counted again"
    else:
        told = (
            f"{file} does not tell which records its state has counted: only .parquet files of `springtide state export` do. A"
            " new checkpoint begins at the start of its sources, so what they bring may be counted twice"
        )
    raise OptionError(
        f"{told}. Start the sources after those records, or make sure that counting them twice does no harm, and import with"
        " --accept-recount"
    )


def remembered(checkpoint: Checkpoint, operator: str, origin: Origin | None) -> None:
    """Note where imported state is from. A file that does not say has counted something."""
    known = origin or Origin("unknown", None, None)
    checkpoint.remember(IMPORTED, {**(checkpoint.recall(IMPORTED) or {}), operator: asdict(known)})
