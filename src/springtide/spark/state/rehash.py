"""Rehashes state at the start of a run if its keys have other hashes.

They have if an earlier version of Springtide wrote the state, or if the checkpoint's secret was lost. Segments contain the
keys, so nothing is lost. The new segments take effect by one rename, when the last manifest names them: after a crash before
that, the old state is unchanged and the next start rehashes again.
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
from springtide.spark.state.catalog import SUFFIX, Catalog, SegmentRun
from springtide.spark.state.compact import newest_by_group
from springtide.spark.state.piles import stored
from springtide.spark.state.segment import GONE, HASH, HASH2, KEY, Damage
from springtide.spark.state.stepping import StateLayout
from springtide.spark.state.store import store_of

log = logging.getLogger("springtide.spark")


def rehash(checkpoint: Checkpoint, layouts: Mapping[str, StateLayout]) -> None:
    """Rewrite the state of operators whose keys have other hashes. This process has locked the checkpoint."""
    manifest = checkpoint.last_manifest()
    documents = checkpoint.catalogs()
    catalogs = {name: Catalog.from_json(document) for name, document in documents.items() if name in layouts}
    stale = {name: catalog for name, catalog in catalogs.items() if catalog.runs and catalog.hashing != layouts[name].hashing}
    if not stale:
        return
    renewed = {name: _renewed(layouts[name], catalog).to_json() for name, catalog in stale.items()}
    if manifest is None:
        checkpoint.remember(SEED, {**documents, **renewed})
    else:
        checkpoint.manifests.amend({**manifest, "state": {**documents, **renewed}})


def _renewed(layouts: StateLayout, catalog: Catalog) -> Catalog:
    """The same state in one segment. The files that a damaged file was merged from are read instead of it, as in a run."""
    log.info(
        "the %d keys of operator %r were hashed by another version of Springtide, or with another secret: its state, %.1f MB,"
        " is rewritten once", catalog.keys, layouts.operator, catalog.bytes / 1e6,
    )  # fmt: skip
    nested = [name for name in layouts.key if pa.types.is_nested(layouts.input.field(name).type)]
    if not catalog.hashing and nested:
        log.warning(
            "the version that wrote the state of operator %r could take keys for one another whose column %r was chosen for it;"
            " what it added up under one key stays there. To be sure, begin with a new checkpoint", layouts.operator, nested[0],
        )  # fmt: skip
    while True:
        try:
            return _rewritten(layouts, catalog)
        except Damage as damage:
            run = next((run for run in catalog.runs if run.before and damage.path.endswith(_names(run))), None)
            if run is None:
                raise CheckpointError(f"{damage}. {ways_out(PUT_BACK, ANEW)}") from None
            log.warning("%s; the files that it was merged from are read instead", damage)
            catalog = catalog.restored(run)


def _names(run: SegmentRun) -> tuple[str, ...]:
    return tuple(f"/{file.name}" for file in run.files)


def _rewritten(layouts: StateLayout, catalog: Catalog) -> Catalog:
    newest, oldest = catalog.runs[0], catalog.runs[-1]
    # Epoch 0 is before the first: a start that finds the file in no manifest removes it.
    name = f"{oldest.first:08d}-{newest.last:08d}-{0:06d}-rehashed-{secrets.token_hex(4)}{SUFFIX}"
    file = stored(layouts, _rows(layouts, catalog), catalog.bytes, name)
    runs = (SegmentRun(oldest.first, newest.last, (file,)),) if file.rows else ()
    return Catalog(runs, file.rows, layouts.hashing)


def _rows(layouts: StateLayout, catalog: Catalog) -> Iterator[pa.RecordBatch]:
    """The newest row of every key that is not deleted, with its new hashes."""
    names = [file.name for run in catalog.runs for file in run.files]
    for newest in newest_by_group(store_of(layouts.folder).segments(names), layouts.shards, layouts.fitted):
        rows = newest.filter(pc.invert(newest.column(GONE)))
        key = rows.select([KEY + name for name in layouts.key]).rename_columns(list(layouts.key))
        for column, hashes in zip((HASH, HASH2), layouts.identities(key), strict=True):
            rows = rows.set_column(rows.schema.get_field_index(column), layouts.schema.field(column), pa.array(hashes))
        yield rows
