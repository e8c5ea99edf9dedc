"""State whose keys were hashed in another way, hashed anew at the start of a run.

That is so where an earlier version of Springtide wrote it, or where the checkpoint's secret was lost. Segments hold the keys
themselves, so nothing is lost. The new segments count once the last manifest names them, by one rename: a crash until then
leaves the old state as it was, and the next start begins anew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import CheckpointError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state.catalog import SUFFIX, Catalog, Run
from springtide.spark.state.compact import newest_by_group
from springtide.spark.state.piles import stored
from springtide.spark.state.segment import GONE, HASH, HASH2, KEY, Damage
from springtide.spark.state.stepping import Kept
from springtide.spark.state.store import place_of

log = logging.getLogger("springtide.spark")


def rehash(checkpoint: Checkpoint, kept: Mapping[str, Kept]) -> None:
    """Rewrite the state of those operators whose keys were hashed otherwise; the checkpoint is locked by this process."""
    manifest = checkpoint.last_manifest()
    documents = checkpoint.catalogs()
    catalogs = {name: Catalog.from_json(document) for name, document in documents.items() if name in kept}
    stale = {name: one for name, one in catalogs.items() if one.runs and one.hashing != kept[name].hashing}
    if not stale:
        return
    renewed = {name: _renewed(kept[name], catalog).to_json() for name, catalog in stale.items()}
    if manifest is None:
        checkpoint.remember(SEED, {**documents, **renewed})
    else:
        checkpoint.manifests.amend({**manifest, "state": {**documents, **renewed}})


def _renewed(kept: Kept, catalog: Catalog) -> Catalog:
    """The same state in one segment. Where a merged file is damaged, those that it was merged from are read, as by a run."""
    log.info(
        "the %d keys of operator %r were hashed by another version of Springtide, or with another secret: its state, %.1f MB,"
        " is rewritten once", catalog.keys, kept.operator, catalog.bytes / 1e6,
    )  # fmt: skip
    nested = [name for name in kept.key if pa.types.is_nested(kept.input.field(name).type)]
    if not catalog.hashing and nested:
        log.warning(
            "the version that wrote the state of operator %r could take keys for one another whose column %r was chosen for it;"
            " what it added up under one key stays there. To be sure, begin with a new checkpoint", kept.operator, nested[0],
        )  # fmt: skip
    while True:
        try:
            return _rewritten(kept, catalog)
        except Damage as damage:
            run = next((run for run in catalog.runs if run.before and damage.path.endswith(_names(run))), None)
            if run is None:
                raise CheckpointError(f"{damage}. {ways_out(PUT_BACK, ANEW)}") from None
            log.warning("%s; the files that it was merged from are read instead", damage)
            catalog = catalog.restored(run)


def _names(run: Run) -> tuple[str, ...]:
    return tuple(f"/{file.name}" for file in run.files)


def _rewritten(kept: Kept, catalog: Catalog) -> Catalog:
    newest, oldest = catalog.runs[0], catalog.runs[-1]
    # The epoch in its name is before the first, so that a start which finds it in no manifest removes it.
    name = f"{oldest.first:08d}-{newest.last:08d}-{0:06d}-rehashed-{secrets.token_hex(4)}{SUFFIX}"
    file = stored(kept, _rows(kept, catalog), catalog.bytes, name)
    runs = (Run(oldest.first, newest.last, (file,)),) if file.rows else ()
    return Catalog(runs, file.rows, kept.hashing)


def _rows(kept: Kept, catalog: Catalog) -> Iterator[pa.RecordBatch]:
    """The newest row of every key that is not gone, with its hashes now."""
    names = [file.name for run in catalog.runs for file in run.files]
    for newest in newest_by_group(place_of(kept.folder).segments(names), kept.shards, kept.fitted):
        rows = newest.filter(pc.invert(newest.column(GONE)))
        key = rows.select([KEY + name for name in kept.key]).rename_columns(list(kept.key))
        for column, hashes in zip((HASH, HASH2), kept.identities(key), strict=True):
            rows = rows.set_column(rows.schema.get_field_index(column), kept.schema.field(column), pa.array(hashes))
        yield rows
