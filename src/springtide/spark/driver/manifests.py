"""The manifests of a checkpoint: batch N is committed if and only if manifests/N.json is there.

Each names the checksum of the one before it, so that the files of two histories cannot be mixed without notice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from springtide.errors import DamageError
from springtide.spark.shared.durable import Document, Shape, read_document, sync_folder, write_atomic

log = logging.getLogger("springtide.spark")

KEPT_BATCHES = 100
"""How many plans and manifests stay. A start needs the last two; the others are for people."""
SHAPE = Shape(
    {"batch": (int,), "epoch": (int,)},
    {
        "plan": (dict,), "receipts": (list,), "sources": (dict,), "state": (dict,), "times": (dict,),
        "offsets": (str, int),  # their text; older manifests have only its checksum
        "previous": (int, type(None)), "logs": (dict,), "topology": (dict,), "schedule": (dict,), "ticks": (dict,),
    },
)  # fmt: skip


class Link(NamedTuple):
    """A manifest, as the next one names it."""

    batch: int
    checksum: int | None


class Manifests:
    """A folder of manifests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: Link | None = None  # the last one that was written here

    def file(self, batch: int) -> Path:
        return self._folder / f"{batch:08d}.json"

    def numbers(self) -> list[int]:
        """Of those that are there, readable or not, in ascending order."""
        return sorted(int(path.stem) for path in self._folder.glob("[0-9]*.json") if path.stem.isdigit())

    def read(self, batch: int) -> dict[str, Any] | None:
        document = self._document(batch)
        return None if document is None else document.content

    def last(self) -> dict[str, Any] | None:
        """That of the last committed batch. DamageError if it cannot be read: the one before it is no substitute."""
        return next(self._newest_first(), None)

    def readable(self) -> Iterator[dict[str, Any]]:
        """The newest first, without damaged ones; only the last one is needed."""
        for batch in reversed(self.numbers()):
            try:
                manifest = self.read(batch)
            except DamageError as error:
                log.warning("%s; no batch needs it, so the run goes on without it", error)
                continue
            if manifest is not None:
                yield manifest

    def check_chain(self) -> None:
        """Refuse manifests of two histories: one names a predecessor that is not the one which is there."""
        links: dict[int, tuple[int | None, int | None]] = {}  # by batch: its checksum, and the one that it names
        for batch in self.numbers():
            try:
                document = self._document(batch)
            except DamageError:
                continue
            if document is not None:
                links[batch] = document.checksum, document.content.get("previous")
        for (before, (checksum, _)), (batch, (_, previous)) in pairwise(sorted(links.items())):
            if batch == before + 1 and None not in (previous, checksum) and previous != checksum:
                raise DamageError(
                    self.file(batch),
                    f"names a predecessor with the checksum {previous}, but {self.file(before).name} has {checksum}: manifests"
                    " of two histories are mixed",
                    "put back both files, from the same copy",
                )

    def add(self, manifest: Mapping[str, Any]) -> None:
        """Commit a batch: one rename."""
        batch = int(manifest["batch"])
        checksum = write_atomic(self.file(batch), {**manifest, "previous": self._checksum_before(batch)})
        self._last = Link(batch, checksum)
        self.file(batch - KEPT_BATCHES).unlink(missing_ok=True)

    def amend(self, manifest: Mapping[str, Any]) -> None:
        """Put another manifest in the place of the last one."""
        write_atomic(self.file(int(manifest["batch"])), manifest)
        self._last = None

    def remove(self, batch: int) -> None:
        """Take back the last commit."""
        self.file(batch).unlink(missing_ok=True)
        sync_folder(self._folder)
        self._last = None

    def _checksum_before(self, batch: int) -> int | None:
        if self._last is not None and self._last.batch == batch - 1:
            return self._last.checksum
        try:
            before = self._document(batch - 1)
        except DamageError:  # a start has warned of it
            return None
        return None if before is None else before.checksum

    def _newest_first(self) -> Iterator[dict[str, Any]]:
        for batch in reversed(self.numbers()):
            manifest = self.read(batch)
            if manifest is not None:  # else it was removed meanwhile: this reader does not hold the checkpoint
                yield manifest

    def _document(self, batch: int) -> Document | None:
        file = self.file(batch)
        document = read_document(file, SHAPE)
        if document is not None and document.content["batch"] != batch:
            raise DamageError(file, f"is the manifest of batch {document.content['batch']}: it was changed from outside")
        return document
