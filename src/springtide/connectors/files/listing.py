"""The files of a folder: which ones count, and the columns that their paths hold."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from springtide.model import location
from springtide.model.source import SourceUnavailable

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The folder of records without a value, as Hive and Spark name it."""
UNFINISHED = "._COPYING_"
"""The end of a name under which Hadoop's tools write a file before they rename it."""

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""The compression of files of lines, by the end of their names."""


class Found(NamedTuple):
    """A file as it was listed. ``path``: below the folder. ``mtime``: its time of modification, in µs since 1970."""

    path: str
    mtime: int
    size: int


class Folder:
    """A folder at a path or a URI."""

    def __init__(self, place: str, pattern: str | None = None) -> None:
        self._place, self._pattern = place, pattern

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, LocalFileSystem)

    @property
    def files(self) -> FileSystem:
        return self._opened[0]

    @property
    def root(self) -> str:
        return str(self._opened[1])

    @property
    def _opened(self) -> tuple[Any, str]:
        return location.filesystem(self._place) if location.is_uri(self._place) else (LocalFileSystem(), self._place)

    def path(self, name: str) -> str:
        """The path of a file for the file system. A file that Spark read from elsewhere has an absolute path."""
        return name if name.startswith("/") else f"{self.root}/{name}"

    def shown(self, name: str) -> str:
        """The file in messages."""
        return name if name.startswith("/") else f"{self._place.split('?', maxsplit=1)[0].rstrip('/')}/{name}"

    def listed(self) -> Iterator[Found]:
        """All files that count, in any order. Raises SourceUnavailable."""
        try:
            stores = not self.is_local  # they have no folders without files
            infos = self.files.get_file_info(FileSelector(self.root, allow_not_found=stores, recursive=True))
        except (OSError, ValueError) as error:
            raise SourceUnavailable(" ".join(str(error).split())[:300]) from error
        start = len(self.root) + 1
        return (found(info, info.path[start:]) for info in infos if self._counts(info, info.path[start:]))

    def look(self, name: str) -> Found | None:
        """A file as it is now; None if there is none."""
        info = self.files.get_file_info(self.path(name))
        return found(info, name) if info.type == FileType.File else None

    def _counts(self, info: FileInfo, name: str) -> bool:
        """Names that begin with a dot or an underscore are hidden, as Spark and Hadoop have it."""
        parts = name.split("/")
        if info.type != FileType.File or any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in parts):
            return False
        return not name.endswith(UNFINISHED) and (self._pattern is None or fnmatch.fnmatchcase(parts[-1], self._pattern))


def codec_of(path: str) -> str | None:
    return CODECS.get(os.path.splitext(path)[1].lower())


def found(info: FileInfo, name: str) -> Found:
    return Found(name, (info.mtime_ns or 0) // 1000, int(info.size or 0))


def in_path(name: str) -> Mapping[str, str | None]:
    """The columns in a path such as ``day=2024-05-01/part.parquet``.

    >>> in_path("day=2024-05-01/route=A%2FB/part.parquet")
    {'day': '2024-05-01', 'route': 'A/B'}
    """
    pairs = [part.split("=", 1) for part in os.path.dirname(name).split("/") if "=" in part]
    return {unquote(column): None if value == NO_VALUE else unquote(value) for column, value in pairs}
