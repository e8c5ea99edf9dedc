"""One immutable file of state: rows sorted by the hash of their key, in chunks, each with a checksum.

    chunk, chunk, …, index (JSON), length and CRC-32 of the index, MAGIC

A shard is a range of hashes, so the rows of a shard are adjacent in a file sorted by hash, and the index tells which chunks
have them. A task writes one file in a batch for all its shards. Chunks are memory-mapped Arrow record batches, so state may be
larger than memory.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import mmap
import os
import resource
import socket
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide import durable
from springtide.errors import CheckpointError, SetupError
from springtide.model.state import NEVER
from springtide.policy.group.shards import shards_of
from springtide.spark.state import sound

MAGIC = b"SPRTIDE1"
_TRAILER = struct.Struct("<II8s")
_ALIGNED = 64
CHUNK_BYTES = 1 << 20
"""End a chunk at the next shard boundary after this size: large enough to search many keys at once, small enough that a task
reads little of other tasks' shards."""
MAPPED_BYTES = 256 << 20
"""Limits the chunks that stay mapped in a process. Mapping 80 chunks again took 30 ms of a task with 100 MB of state."""
MAPPED_SHARE = 1 / 16
"""Limits them to this share of a Python worker's address space, too."""

HASH, HASH2, GONE, TOUCHED = "_hash", "_hash2", "_gone", "_touched"
OWN = pa.schema([(HASH, pa.uint64()), (HASH2, pa.uint64()), (GONE, pa.bool_()), (TOUCHED, pa.int64())])
"""The columns of every segment: the key's identity, whether it is deleted, and the time of its last write."""
KEY, STATE = "key.", "state."
"""Prefixes of a segment's other columns: those of the key, and the variables."""

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


class ChunkIndex(NamedTuple):
    """The place and summary of a chunk."""

    offset: int
    length: int
    crc: int
    rows: int
    first_shard: int
    last_shard: int
    due: int  # its earliest timer in event time; NEVER if it has none
    alarm: int  # its earliest timer in processing time


class Damage(CheckpointError):
    """A state file is torn or was changed."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(f"state file {path} is damaged: {fault}")
        self.path = path


def encode(rows: pa.RecordBatch, shards: int, timers: Sequence[str | None]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Sorted rows as chunks, split between shards, each with its part of the index entry."""
    if not rows.num_rows:
        return
    of = shards_of(rows.column(0).to_numpy(), shards)
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    wide = max(1, round(rows.nbytes / rows.num_rows))
    begin = 0
    while begin < rows.num_rows:
        after = starts[np.searchsorted(starts, begin + max(1, CHUNK_BYTES // wide)) :]
        end = int(after[0]) if len(after) else rows.num_rows
        part = rows.slice(begin, end - begin)
        due, alarm = (_earliest(part, name) for name in timers)
        yield _packed(part), {
            "rows": end - begin, "first_shard": int(of[begin]), "last_shard": int(of[end - 1]), "due": due, "alarm": alarm,
        }  # fmt: skip
        begin = end


def _packed(part: pa.RecordBatch) -> bytes:
    return bytes(pa.concat_batches([part]).serialize() if part.column(0).offset else part.serialize())


def _earliest(part: pa.RecordBatch, timer: str | None) -> int:
    if timer is None:
        return NEVER
    times = part.column(timer).drop_null()
    return int(times.to_numpy().min()) if len(times) else NEVER


class Writer:
    """Writes a segment chunk by chunk. Only a finished segment is valid."""

    def __init__(self, path: Path, schema: pa.Schema, shards: int, timers: Sequence[str | None]) -> None:
        self._path, self._schema, self._shards, self._timers = path, schema, shards, timers
        try:
            self._file = path.open("wb")
        except FileNotFoundError:  # a new folder would be on this node's disk alone
            raise SetupError(
                f"{path.parent}, where state lies, is not there on node {socket.gethostname()}; mount it"
            ) from None
        self._index: list[ChunkIndex] = []
        self._present = np.zeros(shards, dtype=np.bool_)
        self._at = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append sorted rows that follow the earlier ones."""
        self._present[shards_of(rows.column(0).to_numpy(), self._shards)] = True
        for chunk, summary in encode(rows, self._shards, self._timers):
            self._file.write(chunk)
            pad = -len(chunk) % _ALIGNED
            self._file.write(b"\0" * pad)
            self._index.append(ChunkIndex(self._at, len(chunk), zlib.crc32(chunk), **summary))
            self._at += len(chunk) + pad
            self.rows += summary["rows"]

    def sync(self) -> None:
        """Write the rows so far to the disk, so that ``finish`` has less to wait for."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)

    def finish(self) -> dict[str, Any]:
        """Make the segment durable, and return its entry for the catalog."""
        schema = base64.b64encode(self._schema.serialize()).decode()
        present = np.packbits(self._present).tobytes().hex()
        document = {"schema": schema, "shards": self._shards, "chunks": self._index, "present": present}
        index = json.dumps(document).encode()
        self._file.write(index + _TRAILER.pack(len(index), zlib.crc32(index), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        status = os.fstat(self._file.fileno())
        self._file.close()
        sound.remember(str(self._path), status, (1 << len(self._index)) - 1)
        durable.sync_folder(self._path.parent)
        size = self._at + len(index) + _TRAILER.size
        return {"name": self._path.name, "bytes": size, "rows": self.rows}


class Index(NamedTuple):
    """The end of a segment's file."""

    schema: pa.Schema
    shards: int
    chunks: tuple[ChunkIndex, ...]
    present: npt.NDArray[np.bool_]  # by shard, whether the segment has rows of it
    size: int  # of the file, in bytes


def tail_of(path: str, size: int, read: Callable[[int, int], bytes]) -> bytes:
    """The end of a segment's file: the index and the trailer. ``read(offset, length)`` returns bytes of the file."""
    if size < _TRAILER.size:
        raise Damage(path, f"it has {size} bytes, fewer than its trailer")
    length, _, magic = _TRAILER.unpack(read(size - _TRAILER.size, _TRAILER.size))
    if magic != MAGIC or length > size - _TRAILER.size:
        raise Damage(path, "it does not end as a state file does; it was cut or overwritten")
    return read(size - _TRAILER.size - length, length + _TRAILER.size)


def index_of(path: str, tail: bytes) -> Index:
    """Parse and verify the end of a segment's file."""
    if len(tail) < _TRAILER.size:
        raise Damage(path, f"its index and trailer have {len(tail)} bytes, fewer than the trailer alone")
    index = tail[: -_TRAILER.size]
    length, crc, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
    if magic != MAGIC or length != len(index) or zlib.crc32(index) != crc:
        raise Damage(path, "the checksum of its index is wrong")
    document = json.loads(index)
    chunks = tuple(ChunkIndex(*one) for one in document["chunks"])
    end = chunks[-1].offset + chunks[-1].length if chunks else 0
    shards: int = document["shards"]
    present = np.ones(shards, dtype=np.bool_)
    if "present" in document:  # the first versions did not write it
        bits = np.frombuffer(bytes.fromhex(document["present"]), dtype=np.uint8)
        present = np.unpackbits(bits, count=shards).astype(np.bool_)
    return Index(_schema(document["schema"]), shards, chunks, present, end + -end % _ALIGNED + len(tail))


@functools.lru_cache(maxsize=64)
def _schema(text: str) -> pa.Schema:
    """Cached: most segments of an operator have the same schema."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


class LookupChunk(NamedTuple):
    """A chunk for the lookup of identities."""

    rows: pa.RecordBatch
    one: Hashes
    two: Hashes
    keys: pa.RecordBatch

    @classmethod
    def into(cls, rows: pa.RecordBatch) -> LookupChunk:
        return cls(rows, rows.column(HASH).to_numpy(), rows.column(HASH2).to_numpy(), keys_in(rows))


def keys_in(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The key columns of rows of state."""
    return rows.select([name for name in rows.schema.names if name.startswith(KEY)])


class Segment:
    """Reads a segment: the index at once, chunks on demand."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.schema, self.shards, self.chunks, self.present, self.size = self._index()
        self._sound: set[int] = set()  # chunks whose checksum was verified

    def _index(self) -> Index:
        try:
            with open(self.path, "rb") as file:
                self._status = os.fstat(file.fileno())
                tail = tail_of(self.path, self._status.st_size, lambda at, length: os.pread(file.fileno(), length, at))
        except FileNotFoundError:
            raise Damage(self.path, "it is gone") from None
        return index_of(self.path, tail)

    @functools.cached_property
    def _ranges(self) -> tuple[Places, Places]:
        first, last = ([getattr(chunk, name) for chunk in self.chunks] for name in ("first_shard", "last_shard"))
        return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)

    def within(self, first_shard: int, last_shard: int) -> Iterator[int]:
        """The chunks with rows of these shards."""
        for number, chunk in enumerate(self.chunks):
            if chunk.first_shard <= last_shard and chunk.last_shard >= first_shard:
                yield number

    def asked(self, shards: Places) -> Iterator[tuple[int, slice]]:
        """The chunks that may have rows of these sorted shards, and the slice of the shards in each."""
        first, last = self._ranges
        begin, end = shards.searchsorted(first), shards.searchsorted(last, side="right")
        for number in np.flatnonzero(end > begin).tolist():
            yield number, slice(int(begin[number]), int(end[number]))

    def read(self, number: int) -> pa.RecordBatch:
        """One chunk, mapped; its checksum is verified the first time."""
        return self._mapped(number, trusted=False)

    def look(self, number: int) -> LookupChunk:
        """One chunk, for lookups in this batch and later ones: it stays mapped, and is not verified twice on a node."""
        chunks = _mapped_chunks.of(self)
        if number not in chunks:
            chunks[number] = chunk = LookupChunk.into(self._mapped(number, trusted=bool(self._seen >> number & 1)))
            _mapped_chunks.grown(self, self.chunks[number].length)
            return chunk
        return chunks[number]

    def _mapped(self, number: int, trusted: bool) -> pa.RecordBatch:
        chunk = self.chunks[number]
        body = mapped(self.path, chunk.offset, chunk.length)
        if not trusted and number not in self._sound:
            self.check(number, body)
            self._sound.add(number)
        return pa.ipc.read_record_batch(body, self.schema)

    @functools.cached_property
    def _seen(self) -> int:
        return sound.seen(self.path, self._status)

    def remember(self) -> None:
        """Share with the node's other processes which chunks are verified."""
        bits = sum(1 << number for number in self._sound)
        if bits & ~self._seen:
            self._seen |= bits
            sound.remember(self.path, self._status, self._seen)

    def check(self, number: int, body: pa.Buffer) -> None:
        """Raise Damage unless a chunk's checksum is right."""
        chunk = self.chunks[number]
        if zlib.crc32(body) != chunk.crc:
            shards = f"shards {chunk.first_shard} to {chunk.last_shard}"
            raise Damage(self.path, f"the checksum of chunk {number}, {shards}, is wrong")


def mapped(path: str, offset: int, length: int) -> pa.Buffer:
    """A memory-mapped part of a file."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    skipped = offset - start
    with open(path, "rb") as file:
        whole = mmap.mmap(file.fileno(), skipped + length, access=mmap.ACCESS_READ, offset=start)
    return pa.py_buffer(whole).slice(skipped, length)


class _MappedChunks:
    """The chunks that stay mapped in this process, by segment. The least recently used segment is evicted first."""

    def __init__(self) -> None:
        self._chunks: dict[Segment, dict[int, LookupChunk]] = {}
        self._bytes: dict[Segment, int] = {}

    def of(self, segment: Segment) -> dict[int, LookupChunk]:
        self._chunks[segment] = self._chunks.pop(segment, {})  # to the end
        return self._chunks[segment]

    def grown(self, segment: Segment, length: int) -> None:
        self._bytes[segment] = self._bytes.get(segment, 0) + length
        while sum(self._bytes.values()) > _most_mapped():
            self._evict(next(iter(self._chunks)))

    def _evict(self, segment: Segment) -> None:
        self._chunks.pop(segment).clear()
        self._bytes.pop(segment, None)

    def keep_only(self, folder: str, paths: Collection[str]) -> None:
        """Evict the other segments of a folder: a removed file takes disk space while it is mapped."""
        for segment in list(self._chunks):
            if segment.path.rpartition("/")[0] == folder and segment.path not in paths:
                self._evict(segment)


_mapped_chunks = _MappedChunks()
keep_only = _mapped_chunks.keep_only


def _most_mapped() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return MAPPED_BYTES if limit == resource.RLIM_INFINITY else min(MAPPED_BYTES, int(limit * MAPPED_SHARE))


def opened(path: str) -> Segment:
    """A segment, cached in the process while its file has the same time and size."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise Damage(path, "it is gone") from None
    return _opened(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1024)
def _opened(path: str, changed: int, size: int) -> Segment:
    return Segment(path)


def verify(path: str) -> int:
    """Read a whole segment; returns the number of rows, or raises Damage."""
    segment = Segment(path)
    return sum(segment.read(number).num_rows for number in range(len(segment.chunks)))


def written(
    path: Path, parts: Iterable[pa.RecordBatch], schema: pa.Schema, shards: int, timers: Sequence[str | None] = (None, None)
) -> dict[str, Any]:
    """Write a whole segment."""
    writer = Writer(path, schema, shards, timers)
    for part in parts:
        writer.add(part)
    return writer.finish()
