"""The node's cache of state at a URI: immutable pieces of segments, each in a file of its own.

    <Spark's local folder>/springtide-state-<uid>/<hash of the operator's URI>/writing/         incomplete files
                                                                              /SEGMENT/whole    written here, or small
                                                                              /SEGMENT/index    the end of another file
                                                                              /SEGMENT/0, 1, …  its chunks, fetched on demand

A missing or damaged piece is fetched again. A piece gets its name when it is complete. Readers that have mapped it may read on
after its removal.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.errors import SetupError
from springtide.spark.state.segment import Damage, Index, LookupChunk, Segment, index_of, mapped, tail_of

log = logging.getLogger("springtide.spark")

WRITING, WHOLE, INDEX = "writing", "whole", "index"
RETAIN_S = 600.0
"""Retain pieces of an obsolete segment for this long after their last use, for replays and speculative tasks."""
STALE_S = 86_400.0
"""Remove files of other runs and of killed writers after a day."""
TAIL_BYTES = 64 << 10
"""Fetch this much of a file's end at once: an index of about 1,000 chunks, or 1 GB of state; or all of a small file."""
OF_ONE_EXECUTOR = re.compile(r"(blockmgr|executor|spark)-[0-9a-f-]{36}")
"""Folders that Spark removes with an executor or an application; the cache stays above them."""

Mark = tuple[int, int, int, int]
"""A verified chunk's number, and the inode, time and size of the file."""


@dataclass
class Traffic:
    """Cache hits and misses, in pieces, and the bytes fetched for the misses."""

    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0

    def add(self, more: Mapping[str, Any]) -> None:
        """Add the figures in a mapping; missing figures count as 0."""
        for figure in vars(self):
            setattr(self, figure, getattr(self, figure) + more.get(figure, 0))


def node_folder() -> Path:
    """The folder of all caches of this user on this node. Other users cannot read or write it."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or tempfile.gettempdir()
    place = Path(named.split(",")[0])
    while OF_ONE_EXECUTOR.fullmatch(place.name) and os.access(place.parent, os.W_OK) and not os.path.ismount(place):
        place = place.parent  # not above a volume, as on Kubernetes
    folder = place / f"springtide-state-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SetupError(f"{folder}, where state is to be cached, belongs to somebody else; remove it, or set SPARK_LOCAL_DIRS"
                         " to another folder")  # fmt: skip
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


class Cache:
    """The pieces of one operator's segments on this node."""

    def __init__(self, uri: str) -> None:
        self._all = node_folder()
        self._own = self._all / hashlib.blake2b(uri.encode(), digest_size=10).hexdigest()
        self._writing = self._own / WRITING
        self._writing.mkdir(parents=True, exist_ok=True)
        self.used()

    def writing(self, name: str) -> Path:
        """The local file to which a segment is written before its upload."""
        return self._writing / name

    def adopt(self, name: str) -> None:
        """Add a segment to the cache after its upload."""
        with self._if_possible(self.writing(name)) as written:
            self._move(written, name, WHOLE)

    def has(self, name: str) -> bool:
        """Whether the cache has at least the index of a segment."""
        return self._piece(name, WHOLE).exists() or self._piece(name, INDEX).exists()

    def tail(self, name: str, piece: str) -> bytes | None:
        """The end of a segment, from one of its pieces."""
        path = self._piece(name, piece)
        try:
            with path.open("rb") as file:
                if piece != WHOLE:
                    return file.read()
                size = os.fstat(file.fileno()).st_size
                return tail_of(str(path), size, lambda at, length: os.pread(file.fileno(), length, at))
        except FileNotFoundError:
            return None

    def chunk(self, name: str, piece: str, offset: int, length: int) -> tuple[pa.Buffer, tuple[int, int, int]] | None:
        """A mapped part of a piece, and the file's inode, time and size."""
        path = self._piece(name, piece)
        try:
            status = path.stat()
            return mapped(str(path), offset, length), (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return None
        except ValueError:  # the file is too short
            self.drop(name, piece)
            return None

    def put(self, name: str, piece: str, body: bytes) -> None:
        with self._if_possible(self._writing / secrets.token_hex(8)) as temporary:
            temporary.write_bytes(body)
            self._move(temporary, name, piece)

    def drop(self, name: str, piece: str) -> None:
        log.warning("a cached piece of state file %s was wrong: %s; it is fetched anew", name, self._piece(name, piece))
        with contextlib.suppress(OSError):
            self._piece(name, piece).unlink(missing_ok=True)

    def used(self, name: str = "") -> None:
        """Record the time of the last use of a segment, or of the cache."""
        with contextlib.suppress(OSError):
            os.utime(self._own / name)

    def tidy(self, needed: Collection[str]) -> None:
        """Remove segments that are not needed and have not been used for a while."""
        self._remove_older(self._own, RETAIN_S, {*needed, WRITING})
        self._remove_older(self._writing, STALE_S, ())
        self._remove_older(self._all, STALE_S, {self._own.name})

    @staticmethod
    def _remove_older(folder: Path, age_s: float, but: Collection[str]) -> None:
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                if entry.name in but or time.time() - entry.stat(follow_symlinks=False).st_mtime < age_s:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)

    @contextlib.contextmanager
    def _if_possible(self, temporary: Path) -> Iterator[Path]:
        """Continue without the cache on an error, such as a full disk."""
        try:
            yield temporary
        except OSError as error:
            log.warning("a piece of the state could not be cached in %s: %s", self._own, error)
            temporary.unlink(missing_ok=True)

    def _move(self, temporary: Path, name: str, piece: str) -> None:
        target = self._piece(name, piece)
        target.parent.mkdir(exist_ok=True)
        os.replace(temporary, target)

    def _piece(self, name: str, piece: str) -> Path:
        return self._own / name / piece


class Cached(Segment):
    """A remote segment, read through the node's cache. ``fetch`` opens the remote file."""

    def __init__(self, path: str, cache: Cache, fetch: Callable[[], Any]) -> None:
        self._name, self._cache, self._fetch = path.rpartition("/")[2], cache, fetch
        self._file: Any = None
        self._verified: set[Mark] = set()
        self.traffic = Traffic()
        super().__init__(path)

    def read(self, number: int) -> pa.RecordBatch:
        body = self._here(number)
        if body is None:
            fetched = self._fetched(number)
            self._cache.put(self._name, str(number), fetched)
            body = pa.py_buffer(fetched)
        return pa.ipc.read_record_batch(body, self.schema)

    def look(self, number: int) -> LookupChunk:
        """As ``read``: ``_known`` has the verified chunks."""
        return LookupChunk.into(self.read(number))

    def remember(self) -> None:
        """``_known`` has them already."""

    def verify(self) -> int:
        """Read the whole remote file; returns the number of rows, or raises Damage."""
        index = index_of(self.path, self._tail(*self._fetched_end()))
        for number in range(len(index.chunks)):
            self._fetched(number)
        return sum(chunk.rows for chunk in index.chunks)

    def _index(self) -> Index:
        for piece in (WHOLE, INDEX):
            try:
                tail = self._cache.tail(self._name, piece)
                if tail is not None:
                    index, self._verified = _known(self.path, tail)
                    self._cache.used(self._name)
                    self.traffic.cache_hits += 1
                    return index
            except Damage:
                self._cache.drop(self._name, piece)
        start, end = self._fetched_end()
        tail = self._tail(start, end)
        index, self._verified = _known(self.path, tail)
        self._cache.put(self._name, *((INDEX, tail) if start else (WHOLE, end)))
        self.traffic.cache_misses += 1
        return index

    def _here(self, number: int) -> pa.Buffer | None:
        """A verified chunk from the cache, if it is there."""
        chunk = self.chunks[number]
        for piece, offset in ((WHOLE, chunk.offset), (str(number), 0)):
            found = self._cache.chunk(self._name, piece, offset, chunk.length)
            if found is None:
                continue
            body, mark = found[0], (number, *found[1])
            if mark in self._verified or zlib.crc32(body) == chunk.crc:
                self._verified.add(mark)
                self.traffic.cache_hits += 1
                return body
            self._cache.drop(self._name, piece)
        return None

    def _fetched(self, number: int) -> bytes:
        chunk = self.chunks[number]
        body = self._read(chunk.offset, chunk.length)
        self.traffic.cache_misses += 1
        self.check(number, pa.py_buffer(body))
        return body

    def _fetched_end(self) -> tuple[int, bytes]:
        """The file's last ``TAIL_BYTES``, and where they begin: enough for most indices, and all of a small file."""
        size = self._opened().size()
        start = max(0, size - TAIL_BYTES)
        return start, self._read(start, size - start)

    def _tail(self, start: int, end: bytes) -> bytes:
        def read(at: int, length: int) -> bytes:
            return end[at - start : at - start + length] if at >= start else self._read(at, length)

        return tail_of(self.path, start + len(end), read)

    def _read(self, offset: int, length: int) -> bytes:
        try:
            body: bytes = self._opened().read_at(length, offset)
        except FileNotFoundError:
            raise Damage(self.path, "it is gone") from None
        if len(body) != length:
            raise OSError(f"{self.path}: {len(body)} bytes came where {length} were asked for")
        self.traffic.fetched_bytes += len(body)
        return body

    def _opened(self) -> Any:
        """The remote file, opened once, since each opening is a request."""
        if self._file is None:
            try:
                self._file = self._fetch()
            except FileNotFoundError:
                raise Damage(self.path, "it is gone") from None
        return self._file


@functools.lru_cache(maxsize=1024)
def _known(path: str, tail: bytes) -> tuple[Index, set[Mark]]:
    """The parsed index, and the chunks that this process has verified; cached in the process."""
    return index_of(path, tail), set()
