"""Undoes the last commit, so that Spark repeats the batch.

If the output of a committed batch cannot be published, the batch is computed again from its offsets in Spark's log, its plan,
and the state of the previous batch, whose files are retained for two commits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from springtide.durable import sync_folder
from springtide.errors import CheckpointError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state import presence
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.declared import folder_of
from springtide.spark.state.store import below

log = logging.getLogger("springtide.spark")

OLDER = "restore the whole checkpoint from an older copy, and remove what the sinks received since"


def take_back(checkpoint: Checkpoint, batch: int, fault: str, published: Iterable[Path]) -> None:
    """Undo the commit of the last batch; CheckpointError with the reason if it is impossible. ``published``: the paths at which
    files of the batch may be visible.

    The files are removed before the manifest. After a crash in between, output of a committed batch is missing, and the next
    start repeats this undo.
    """
    hindrance = _hindrance(checkpoint, batch)
    if hindrance is not None:
        raise CheckpointError(
            f"batch {batch} of checkpoint {checkpoint.root} is committed, but {fault}; and it cannot be computed again, because"
            f" {hindrance}. {ways_out(PUT_BACK, OLDER, ANEW)}"
        )
    log.warning("batch %d is committed, but %s; it is computed again from its offsets and the state before it", batch, fault)
    folders = set()
    for file in published:
        file.unlink(missing_ok=True)
        folders.add(file.parent)
    for folder in folders:
        sync_folder(folder)
    checkpoint.manifests.remove(batch)


def _hindrance(checkpoint: Checkpoint, batch: int) -> str | None:
    """The reason why the batch cannot be computed again; None if it can."""
    if checkpoint.begun() != batch:
        return f"the last batch in Spark's log of offsets is {checkpoint.begun()}"
    if checkpoint.plans.read(batch) is None:
        return "its plan is missing"
    before = checkpoint.manifest(batch - 1) if batch else {"state": checkpoint.recall(SEED) or {}}
    if before is None:
        return f"the manifest of batch {batch - 1} is missing, which has the state before it"
    for operator, document in before.get("state", {}).items():
        fault = presence.lost_file(below(checkpoint.state_root(), folder_of(operator)), Catalog.from_json(document))
        if fault is not None:
            return f"of the state before it {fault.path} {fault.differs}"
    return None
