"""Sources on folders of a test, read as the driver and the tasks do."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.connectors.files import options
from springtide.connectors.files.declared import FilesSource
from springtide.connectors.files.enumerator import FilesEnumerator
from springtide.model.source import Position, Records

NUMBER = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Place:
    """A folder with files, and the folder for their list."""

    root: Path
    format: str = "json"
    schema: pa.Schema = NUMBER
    given: Mapping[str, Any] | None = None
    uri: str | None = None

    @property
    def folder(self) -> Path:
        return self.root / "in"

    @property
    def source(self) -> FilesSource:
        given = dict(self.given or {})
        parsed = options.parsed(self.format, given.pop("options", {}))
        made = FilesSource(self.uri or str(self.folder), self.format, parsed, **given)
        return made.stored_in(self.root / "list")

    def enumerator(self) -> FilesEnumerator:
        """It never rests between two listings: its clock goes faster and faster."""
        made = self.source.enumerator(self.source.begin())
        made._clock = itertools.accumulate(itertools.repeat(20), operator.mul).__next__
        return made

    def write(self, name: str, content: str | bytes, at: int = 1_000) -> Path:
        """A file that was modified ``at`` seconds since 1970."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(file, (at, at))
        return file

    def read(self, parts: Iterable[Mapping[str, Any]]) -> list[Records]:
        reader = self.source.in_tasks().reader(self.schema, None)
        return [records for part in parts for records in reader.read(part)]

    def everything(self, tasks: int = 1) -> list[Records]:
        enumerator = self.enumerator()
        return self.read(enumerator.ranges(enumerator.first(), enumerator.end(enumerator.first()), tasks))

    def between(self, enumerator: FilesEnumerator, since: Position, until: Position, tasks: int) -> list[int]:
        return numbers(self.read(enumerator.ranges(since, until, tasks)))


def rows(read: Iterable[Records]) -> list[dict[str, Any]]:
    return [row for records in read for row in records.values.to_pylist()]  # type: ignore[union-attr]


def numbers(read: Iterable[Records]) -> list[int]:
    return [int(row["n"]) for row in rows(read)]


def lines(values: Iterable[int]) -> str:
    return "".join(f'{{"n": {value}}}\n' for value in values)
