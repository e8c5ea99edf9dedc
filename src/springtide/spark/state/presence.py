"""Checks at a start that the state files exist with the right sizes; reads check their content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from springtide.errors import DamageError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state.catalog import SEEDED, Catalog, File, SegmentRun
from springtide.spark.state.stepping import StateLayout
from springtide.spark.state.store import below, store_of


def check(checkpoint: Checkpoint, layouts: Mapping[str, StateLayout]) -> None:
    """Refuse to start without a needed state file, unless the files that it was merged from can replace it."""
    if not layouts:
        return
    stored, begun = checkpoint.catalogs(), checkpoint.last_manifest() is not None
    for name, layout in layouts.items():
        if name in stored:
            fault = lost_file(layout.folder, Catalog.from_json(stored[name]))
            if fault is not None:
                differs = f"{fault.differs}: it is state of operator {layout.operator!r}"
                raise DamageError(fault.path, differs, ways_out(PUT_BACK, ANEW))
        elif not begun:
            _check_not_seeded(checkpoint.own / "seed.json", layout, store_of(layout.folder).sizes())


class LostFile(NamedTuple):
    """A missing or truncated state file, and how it differs."""

    path: str
    differs: str


def lost_file(folder: str, catalog: Catalog) -> LostFile | None:
    """The first missing or truncated file that the files it was merged from cannot replace."""
    sizes = store_of(folder).sizes()
    for run in catalog.runs:
        lost = _lost(run, sizes)
        if lost is None or (run.before and not any(_lost(earlier, sizes) for earlier in run.before)):
            continue
        differs = f"has {sizes[lost.name]} bytes of {lost.bytes}" if lost.name in sizes else "is gone"
        merged = ", and the files that it was merged from are not all there either" if run.before else ""
        return LostFile(below(folder, lost.name), f"{differs}{merged}")
    return None


def _lost(run: SegmentRun, sizes: Mapping[str, int]) -> File | None:
    return next((file for file in run.files if sizes.get(file.name) != file.bytes), None)


def _check_not_seeded(seed: Path, layouts: StateLayout, sizes: Mapping[str, int]) -> None:
    """Refuse imported state without its document: the document was lost, or the import did not finish."""
    found = next((name for name in sorted(sizes) if SEEDED in name), None)
    if found is None:
        return
    anew = f"import the state of operator {layouts.operator!r} again"
    without = f"to begin without that state, remove {below(layouts.folder, found)}"
    fault = f"is gone, or does not name operator {layouts.operator!r}, whose imported state is there"
    raise DamageError(seed, fault, ways_out(PUT_BACK, anew, without))
