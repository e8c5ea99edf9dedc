"""Whether the files of the state are there at a start, by their names and sizes; their content is checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from springtide.errors import DamageError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state.catalog import SEEDED, Catalog, File, Run
from springtide.spark.state.stepping import Kept
from springtide.spark.state.store import below, place_of


def check(checkpoint: Checkpoint, kept: Mapping[str, Kept]) -> None:
    """Refuse to start without a file that the state needs. One that was merged from others is mended when it is read."""
    if not kept:
        return
    stored, begun = checkpoint.catalogs(), checkpoint.last_manifest() is not None
    for name, one in kept.items():
        if name in stored:
            fault = fault_of(one.folder, Catalog.from_json(stored[name]))
            if fault is not None:
                differs = f"{fault.differs}: it is state of operator {one.operator!r}"
                raise DamageError(fault.path, differs, ways_out(PUT_BACK, ANEW))
        elif not begun:
            _check_not_seeded(checkpoint.own / "seed.json", one, place_of(one.folder).sizes())


class Fault(NamedTuple):
    """A file that the state needs, and what is wrong with it."""

    path: str
    differs: str


def fault_of(folder: str, catalog: Catalog) -> Fault | None:
    """The first file of a state that is gone or cut, if the files that it was merged from cannot stand in for it."""
    sizes = place_of(folder).sizes()
    for run in catalog.runs:
        lost = _lost(run, sizes)
        if lost is None or (run.before and not any(_lost(one, sizes) for one in run.before)):
            continue
        differs = f"has {sizes[lost.name]} bytes of {lost.bytes}" if lost.name in sizes else "is gone"
        merged = ", and the files that it was merged from are not all there either" if run.before else ""
        return Fault(below(folder, lost.name), f"{differs}{merged}")
    return None


def _lost(run: Run, sizes: Mapping[str, int]) -> File | None:
    return next((file for file in run.files if sizes.get(file.name) != file.bytes), None)


def _check_not_seeded(seed: Path, kept: Kept, sizes: Mapping[str, int]) -> None:
    """Imported state that nothing names: the document was lost, or an import did not come to its end."""
    found = next((name for name in sorted(sizes) if SEEDED in name), None)
    if found is None:
        return
    anew = f"import the state of operator {kept.operator!r} again"
    without = f"to begin without that state, remove {below(kept.folder, found)}"
    told = f"is gone, or does not name operator {kept.operator!r}, whose imported state is there"
    raise DamageError(seed, told, ways_out(PUT_BACK, anew, without))
