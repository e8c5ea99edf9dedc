"""Taking back the last commit, so that Spark hands the same batch to the run again.

A batch whose manifest is there and whose output cannot be published is computed again from what is still there: its offsets in
Spark's log, its plan, and the state of the batch before, whose files outlive two commits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from springtide.errors import CheckpointError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.shared.durable import sync_folder
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state import presence
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.declared import folder_of
from springtide.spark.state.store import below

log = logging.getLogger("springtide.spark")

OLDER = "restore the whole checkpoint from an older copy, and remove what the sinks received since"


def take_back(checkpoint: Checkpoint, batch: int, fault: str, published: Iterable[Path]) -> None:
    """Undo the commit of the last batch, or say why that cannot be. ``published``: where files of the batch may be visible.

    The files are removed before the manifest: a crash in between leaves a committed batch whose output is missing, and the next
    start comes here again.
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
    checkpoint.uncommit(batch)


def _hindrance(checkpoint: Checkpoint, batch: int) -> str | None:
    """What is missing for the batch to be computed again, None if nothing is."""
    if checkpoint.begun() != batch:
        return f"the last batch in Spark's log of offsets is {checkpoint.begun()}"
    if checkpoint.plan(batch) is None:
        return "its plan is missing"
    before = checkpoint.manifest(batch - 1) if batch else {"state": checkpoint.recall(SEED) or {}}
    if before is None:
        return f"the manifest of batch {batch - 1} is missing, which has the state before it"
    for operator, document in before.get("state", {}).items():
        fault = presence.lost_file(below(checkpoint.state_root(), folder_of(operator)), Catalog.from_json(document))
        if fault is not None:
            return f"of the state before it {fault.path} {fault.differs}"
    return None
