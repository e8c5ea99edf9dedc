"""The manifests of a checkpoint: batch N is committed if and only if manifests/N.json is there.

Each manifest names the checksum of its predecessor, so that a mixture of the files of two histories is detected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from springtide.durable import Document, Shape, read_document, sync_folder, write_atomic
from springtide.errors import DamageError

log = logging.getLogger("springtide.spark")

MANIFESTS_TO_RETAIN = 100
"""Limits the plans and the manifests of a checkpoint. A start needs the last two; the others are for people."""
SHAPE = Shape(
    {"batch": (int,), "epoch": (int,)},
    {
        "plan": (dict,), "receipts": (list,), "sources": (dict,), "state": (dict,), "times": (dict,), "published": (dict,),
        "offsets": (str, int),  # their text; older manifests have only its checksum
        "previous": (int, type(None)), "logs": (dict,), "topology": (dict,), "schedule": (dict,), "origins": (dict,),
        "ticks": (dict,), "waiting": (dict,), "rolled": (list,), "rolls": (int,),
    },
)  # fmt: skip


class Link(NamedTuple):
    """The reference of a manifest to its predecessor."""

    batch: int
    checksum: int | None


class Manifests:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: Link | None = None  # the last manifest that this process wrote

    def file(self, batch: int) -> Path:
        return self._folder / f"{batch:08d}.json"

    def numbers(self) -> list[int]:
        """The batches of all manifests, readable or not, in ascending order."""
        return sorted(int(path.stem) for path in self._folder.glob("[0-9]*.json") if path.stem.isdigit())

    def read(self, batch: int) -> dict[str, Any] | None:
        document = self._document(batch)
        return None if document is None else document.content

    def last(self) -> dict[str, Any] | None:
        """The manifest of the last committed batch. DamageError if it cannot be read: its predecessor is no substitute."""
        manifests = map(self.read, reversed(self.numbers()))  # None: removed meanwhile, as this reader does not own the lock
        return next((manifest for manifest in manifests if manifest is not None), None)

    def readable(self) -> Iterator[dict[str, Any]]:
        """All manifests that can be read, the newest first. No batch needs the others."""
        for batch in reversed(self.numbers()):
            try:
                manifest = self.read(batch)
            except DamageError as error:
                log.warning("%s; no batch needs it, so the run goes on without it", error)
                continue
            if manifest is not None:
                yield manifest

    def check_chain(self) -> None:
        """Refuse manifests of two histories: a manifest names another predecessor than the folder has."""
        links: dict[int, tuple[int | None, int | None]] = {}  # by batch: the checksum, and the predecessor's as it is named
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
        self.file(batch - MANIFESTS_TO_RETAIN).unlink(missing_ok=True)

    def amend(self, manifest: Mapping[str, Any]) -> None:
        """Replace the last manifest by one of the same batch, with the same state in other files."""
        write_atomic(self.file(int(manifest["batch"])), manifest)
        self._last = None

    def remove(self, batch: int) -> None:
        """Undo the last commit, which Spark has not logged: a replay has the same offsets and plan."""
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

    def _document(self, batch: int) -> Document | None:
        file = self.file(batch)
        document = read_document(file, SHAPE)
        if document is not None and document.content["batch"] != batch:
            raise DamageError(file, f"is the manifest of batch {document.content['batch']}: it was changed from outside")
        return document
