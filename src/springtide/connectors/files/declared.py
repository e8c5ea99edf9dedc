"""The declaration of a folder of files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from springtide.connectors.files.enumerator import FilesEnumerator
from springtide.connectors.files.listing import Folder
from springtide.connectors.files.options import Options
from springtide.connectors.files.reader import FilesReader
from springtide.connectors.files.seen import Seen
from springtide.errors import OptionError
from springtide.model.source import Memory, Position, Source

EVERYTHING = 2**62
"""More records than a batch can have: the limit of files is applied where the limit of records is."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilesSource(Source):
    """New files of a folder, at a path or a URI, the oldest first.

    ``created`` names the column with a record's creation time; without it that is the time of its file. ``max_files`` bounds a
    batch. ``stored``: the folder in the checkpoint for the list of files.
    """

    path: str
    format: str
    options: Options = field(default_factory=Options)
    created: str | None = None
    max_files: int | None = None
    on_data_loss: str = "stop"
    stored: Path | None = None

    @property
    def most(self) -> int | None:
        return None if self.max_files is None else EVERYTHING

    @property
    def lenient(self) -> bool:
        return self.on_data_loss == "go on"

    def describe(self) -> str:
        return f"{self.format} files of {self.path.split('?', maxsplit=1)[0]}"

    def check(self) -> None:
        """Look at the folder: a wrong name or a missing right shows before Spark starts."""
        next(iter(self.folder.listed()), None)

    def begin(self) -> Memory:
        return {"folder": self.path}

    def stored_in(self, folder: Path) -> FilesSource:
        return replace(self, stored=folder)

    def enumerator(self, memory: Memory) -> FilesEnumerator:
        if self.stored is None:
            raise OptionError("a files source needs a folder for the list of its files")
        if memory.get("folder") not in (None, self.path):
            _log.warning(
                "files are read from %s, before it was %s: files whose names are known count as read",
                self.path,
                memory["folder"],
            )
        header = self.format == "csv" and self.options.csv.header
        return FilesEnumerator(self.folder, self.format, header, Seen(self.stored), self.max_files, self.lenient)

    def check_resumed(self, memory: Memory, positions: Sequence[Position]) -> None:
        enumerator = self.enumerator(memory)
        for position in positions or [enumerator.first()]:
            enumerator.check(position)

    def in_tasks(self) -> FilesSource:
        return replace(self, stored=None)

    def reader(self, schema: pa.Schema, record: type | None) -> FilesReader:
        return FilesReader(self.folder, self.format, self.options, schema, self.created, self.lenient)

    @property
    def folder(self) -> Folder:
        return Folder(self.path, self.options.pattern)
