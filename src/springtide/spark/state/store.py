"""Stores an operator's segments in a plain folder, or at a URI of an object store or another file system.

A folder's files are mapped directly. Files at a URI are read through the node's cache: a task writes a segment locally and
uploads it before it sends its receipt; of other segments it fetches the index and the chunks with its shards.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from springtide.durable import make_folder, sync_folder
from springtide.errors import OptionError
from springtide.model.location import checked as checked
from springtide.model.location import filesystem
from springtide.model.location import is_uri as is_uri
from springtide.spark.state import segment
from springtide.spark.state.cache import Cache, Cached, Traffic
from springtide.spark.state.catalog import SUFFIX
from springtide.spark.state.segment import Segment

AT_ONCE = 8
"""Limits the concurrent fetches of indices: each takes two requests, and the first task on a node needs all of them."""
BLOCK = 4 << 20


def check_writable(uri: str) -> None:
    """Refuse a location that this process cannot write to."""
    try:
        Remote(uri).probe()
    except (OSError, ValueError, NotImplementedError, ImportError) as error:  # pyarrow raises these
        fault = " ".join(str(error).split())[:300]
        raise OptionError(
            f"state={uri!r} cannot be written to: {fault}; make it, allow this user to write there, or give another place"
        ) from None


def below(place: str, name: str) -> str:
    """A folder below a folder or URI."""
    if not is_uri(place):
        return f"{place}/{name}"
    parts = urlsplit(place)
    return parts._replace(path=f"{parts.path}/{quote(name)}").geturl()


def store_of(folder: str) -> SegmentStore:
    """The store of an operator's segments."""
    return Remote(folder) if is_uri(folder) else Folder(folder)


class SegmentStore(Protocol):
    """Stores segments. ``slow``: removing files takes long and should happen in the background."""

    slow: bool

    @property
    def traffic(self) -> Traffic:
        """The cache traffic of all segments opened so far."""

    def prepare(self) -> None:
        """Create the folder. Only the driver does: a node without the mount must not create its own."""

    def segments(self, names: Sequence[str]) -> list[Segment]: ...

    def writing(self, name: str) -> Path:
        """The path to write a segment to."""

    def publish(self, name: str) -> None:
        """Make a written segment durable in the store."""

    def scratch(self) -> Path:
        """A folder for temporary files."""

    def names(self) -> Iterator[str]:
        """The names of all stored segments."""

    def sizes(self) -> dict[str, int]:
        """The sizes of all stored segments in bytes, by name."""

    def remove(self, names: Collection[str]) -> None: ...

    def verify(self, name: str) -> None:
        """Raise Damage unless a whole segment is intact."""

    def tidy(self, names: Collection[str]) -> None:
        """Drop other segments than these from the node's memory or cache."""


class Folder:
    """Segments in a plain folder that all nodes have."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def segments(self, names: Sequence[str]) -> list[Segment]:
        return [segment.opened(f"{self._folder}/{name}") for name in names]

    slow = False

    def prepare(self) -> None:
        make_folder(Path(self._folder))

    def writing(self, name: str) -> Path:
        return Path(self._folder) / name

    def publish(self, name: str) -> None:
        """It was written in place."""

    def scratch(self) -> Path:
        return Path(self._folder)

    def names(self) -> Iterator[str]:
        return (path.name for path in Path(self._folder).glob(f"*{SUFFIX}"))

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in Path(self._folder).glob(f"*{SUFFIX}")}

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            (Path(self._folder) / name).unlink(missing_ok=True)

    def verify(self, name: str) -> None:
        segment.verify(f"{self._folder}/{name}")

    def tidy(self, names: Collection[str]) -> None:
        segment.keep_only(self._folder, {f"{self._folder}/{name}" for name in names})

    @property
    def traffic(self) -> Traffic:
        return Traffic()


class Remote:
    """Segments at a URI, read through this node's cache."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._location = urlsplit(uri)._replace(query="").geturl()
        self._opened: list[Cached] = []

    @functools.cached_property
    def _cache(self) -> Cache:
        return Cache(self._uri)

    @property
    def traffic(self) -> Traffic:
        total = Traffic()
        for opened in self._opened:
            total.add(vars(opened.traffic))
        return total

    def segments(self, names: Sequence[str]) -> list[Segment]:
        missing = [name for name in names if not self._cache.has(name)]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(AT_ONCE, len(missing)), thread_name_prefix="springtide-fetch") as threads:
                fetched = dict(zip(missing, threads.map(self._segment, missing), strict=True))
        else:
            fetched = {}
        opened = [fetched[name] if name in fetched else self._segment(name) for name in names]
        self._opened += opened
        return list(opened)

    def _segment(self, name: str) -> Cached:
        return Cached(f"{self._location}/{name}", self._cache, lambda: self._files.open_input_file(self._path(name)))

    slow = True  # each removal takes tens of ms

    def prepare(self) -> None:
        if self._files.type_name == "local":
            make_folder(Path(self._root))

    def writing(self, name: str) -> Path:
        return self._cache.writing(name)

    def publish(self, name: str) -> None:
        written = self._cache.writing(name)
        try:
            with written.open("rb") as source:
                self._write(name, source)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        self._cache.adopt(name)

    def scratch(self) -> Path:
        return self._cache.writing("")

    def names(self) -> Iterator[str]:
        return iter(self.sizes())

    def sizes(self) -> dict[str, int]:
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
        return {file.base_name: file.size for file in found if file.base_name.endswith(SUFFIX)}

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                continue

    def verify(self, name: str) -> None:
        self._segment(name).verify()

    def tidy(self, names: Collection[str]) -> None:
        self._cache.tidy(names)

    def probe(self) -> None:
        """Write and remove a small file."""
        self.prepare()
        name = f".springtide-{secrets.token_hex(8)}"
        self._write(name, io.BytesIO(b"Springtide was here.\n"))
        self.remove([name])

    def _write(self, name: str, source: Any) -> None:
        try:
            with self._files.open_output_stream(self._path(name)) as target:
                shutil.copyfileobj(source, target, BLOCK)
        except BaseException:  # a part of the file may be there
            with contextlib.suppress(Exception):
                self._files.delete_file(self._path(name))
            raise
        if self._files.type_name == "local":  # others are durable once closed
            with open(self._path(name), "rb") as file:
                os.fsync(file.fileno())
            sync_folder(Path(self._root))

    @property
    def _files(self) -> Any:
        return filesystem(self._uri)[0]

    @property
    def _root(self) -> str:
        return filesystem(self._uri)[1]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
