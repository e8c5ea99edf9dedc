"""Reads the parts of a checkpoint at a start, and refuses or mends parts that do not agree."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springtide.errors import DamageError
from springtide.model.endpoints import ForeachSink, TableSink
from springtide.model.topology import Topology
from springtide.spark.driver.agreement import Found, is_note_void, mendings_of, refusal_of
from springtide.spark.driver.begun import Begun
from springtide.spark.driver.manifests import Manifests
from springtide.spark.private.logs import Logs
from springtide.spark.shared.program import PRIVATE_FOLDER, Staging
from springtide.spark.shared.remedies import ANEW, EXPORT, PUT_BACK, ways_out

log = logging.getLogger("springtide.spark")


def hands_on(topology: Topology) -> bool:
    """Whether a sink delivers batches, before their commit, to a receiver that identifies them by their number."""
    return any(isinstance(operator.sink, TableSink | ForeachSink) for operator in topology.sinks)


@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint that have to agree. ``begun``: content of the ``note``; None if that is gone or damaged."""

    root: Path
    manifests: Manifests
    logs: Logs
    note: Path
    begun: Begun | None
    topology: Topology
    staged: tuple[Staging, ...]
    has_state: bool

    def agree(self) -> None:
        """Refuse parts that do not agree, or mend them. A refusal changes nothing."""
        try:
            last = self.manifests.last() or {}
            self.manifests.check_chain()
        except DamageError as error:
            ways = self._ways_out(error.remedy, f"move it away, then {EXPORT}")
            raise DamageError(error.path, error.fault, ways) from None
        found = self._found(last)
        refusal = refusal_of(found)
        if refusal is not None:
            raise DamageError(self.root / refusal.file, refusal.differs, self._ways_out(PUT_BACK, EXPORT))
        for mending in mendings_of(found):
            if mending.reason is not None:
                log.warning("%s %s", self.root / mending.file, mending.reason)
            self.logs.replace(self.root / mending.file, mending.text)
        if is_note_void(found):
            self.note.unlink()
        if (lost := self.logs.mend_metadata()) is not None:
            log.warning("%s %s; the query gets a new id", self.logs.folder / "metadata", lost)

    def _found(self, last: Mapping[str, Any]) -> Found:
        batch = last.get("batch", -1)
        recorded = {number: offsets for number in (batch - 1, batch) if (offsets := self._recorded(number)) is not None}
        named = {*last.get("logs", ()), *(self.begun.logs if self.begun is not None else ())}
        entries = {entry.name: entry for entry in self.logs.all_entries()}
        return Found(
            batch,
            recorded,
            last.get("logs"),
            self.logs.texts("offsets"),
            self.logs.texts("commits"),
            {name: self.logs.entry_checksum(entry) if name in named else None for name, entry in entries.items()},
            self.begun,
            self.begun is None and self.note.exists(),
            hands_on(self.topology),
            _published(self.staged),
        )

    def _recorded(self, batch: int) -> str | int | None:
        """The offsets of a batch in its manifest; None if there is no manifest, or if it has none."""
        try:
            return (self.manifests.read(batch) or {}).get("offsets")
        except DamageError:  # not the last manifest; ``Manifests.readable`` warns of it
            return None

    def _ways_out(self, mend: str, export: str) -> str:
        return ways_out(mend, *([export] if self.has_state else []), ANEW)


def _names(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder that has folders for the values of columns."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != PRIVATE_FOLDER]
        yield from ((name, Path(parent)) for name in names)


def _published(staged: Iterable[Staging]) -> dict[str, int]:
    """The newest visible file of each ``files`` sink and of the dead letters, with its batch."""
    found: dict[str, int] = {}
    for place in staged:
        folder = Path(place.folder).parent.parent
        if Path(place.folder).parent.name != PRIVATE_FOLDER or not folder.is_dir():
            continue
        numbered = re.compile(rf"{re.escape(place.stem)}-(\d{{8,}})-")
        names = _names(folder) if place.partition_by else ((name, folder) for name in os.listdir(folder))
        batches = {int(match[1]): parent / name for name, parent in names if (match := numbered.match(name))}
        if batches:
            found[str(batches[max(batches)])] = max(batches)
    return found
