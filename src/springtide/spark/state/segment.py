"""One immutable file of state: rows sorted by the hash of their key, in chunks, each with a checksum.

    chunk, chunk, …, index (JSON), length and CRC-32 of the index, MAGIC

A shard is a range of hashes, so a file that is sorted by hash has every shard in one piece, and the index tells which chunks
have it. A task writes one file in a batch for all its shards. Chunks are Arrow record batches that are read where they lie:
what is not looked at is not read, so that state may be larger than memory.
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

from springtide.errors import CheckpointError, SetupError
from springtide.model.state import NEVER
from springtide.policy.group.shards import shards_of
from springtide.spark.shared import durable
from springtide.spark.state import sound

MAGIC = b"SPRTIDE1"
_TRAILER = struct.Struct("<II8s")
_ALIGNED = 64
CHUNK_BYTES = 1 << 20
"""A chunk is cut at the next shard once it has so much: large enough to search many keys at once, small enough that a task
reads little of the shards that are not its own."""
HELD_BYTES = 256 << 20
"""Chunks of about so much stay mapped in a process: to map 80 of them anew took 30 ms of a task with 100 MB of state."""
HELD_SHARE = 1 / 16
"""And of so much of the addresses that a Python worker may use."""

HASH, HASH2, GONE, TOUCHED = "_hash", "_hash2", "_gone", "_touched"
OWN = pa.schema([(HASH, pa.uint64()), (HASH2, pa.uint64()), (GONE, pa.bool_()), (TOUCHED, pa.int64())])
"""The columns that every segment has: the key's identity, whether it was forgotten, and when it was written last."""
KEY, STATE = "key.", "state."
"""What the names of a segment's other columns begin with: a key's, and a variable's."""

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


class ChunkIndex(NamedTuple):
    """Where one chunk is, and what can be said of it without reading it."""

    offset: int
    length: int
    crc: int
    rows: int
    first_shard: int
    last_shard: int
    due: int  # the earliest timer in it by event time, NEVER for none
    alarm: int  # the same by the clock


class Damage(CheckpointError):
    """A file of state that is torn or changed."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(f"state file {path} is damaged: {fault}")
        self.path = path


def encode(rows: pa.RecordBatch, shards: int, timers: Sequence[str | None]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Sorted rows as chunks, cut between shards; each with what the index says of it."""
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
    """Writes a segment chunk by chunk. What is not finished is not there."""

    def __init__(self, path: Path, schema: pa.Schema, shards: int, timers: Sequence[str | None]) -> None:
        self._path, self._schema, self._shards, self._timers = path, schema, shards, timers
        try:
            self._file = path.open("wb")
        except FileNotFoundError:  # made here, it would be on the disk of this node alone
            raise SetupError(
                f"{path.parent}, where state lies, is not there on node {socket.gethostname()}; mount it"
            ) from None
        self._index: list[ChunkIndex] = []
        self._present = np.zeros(shards, dtype=np.bool_)
        self._at = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows that are sorted, and belong behind those before."""
        self._present[shards_of(rows.column(0).to_numpy(), self._shards)] = True
        for chunk, told in encode(rows, self._shards, self._timers):
            self._file.write(chunk)
            pad = -len(chunk) % _ALIGNED
            self._file.write(b"\0" * pad)
            self._index.append(ChunkIndex(self._at, len(chunk), zlib.crc32(chunk), **told))
            self._at += len(chunk) + pad
            self.rows += told["rows"]

    def sync(self) -> None:
        """Have what was added on the disk, that ``finish`` need not wait for all of it."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def discard(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)

    def finish(self) -> dict[str, Any]:
        """Make it durable, and return what the catalog shall know of it."""
        schema = base64.b64encode(self._schema.serialize()).decode()
        present = np.packbits(self._present).tobytes().hex()
        document = {"schema": schema, "shards": self._shards, "chunks": self._index, "present": present}
        index = json.dumps(document).encode()
        self._file.write(index + _TRAILER.pack(len(index), zlib.crc32(index), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        told = os.fstat(self._file.fileno())
        self._file.close()
        sound.remember(str(self._path), told, (1 << len(self._index)) - 1)
        durable.sync_folder(self._path.parent)
        size = self._at + len(index) + _TRAILER.size
        return {"name": self._path.name, "bytes": size, "rows": self.rows}


class Index(NamedTuple):
    """What is known of a segment once the end of its file was read."""

    schema: pa.Schema
    shards: int
    chunks: tuple[ChunkIndex, ...]
    present: npt.NDArray[np.bool_]  # by shard, whether it has rows of it
    size: int  # of the file, in bytes


def tail_of(path: str, size: int, read: Callable[[int, int], bytes]) -> bytes:
    """The end of a segment's file: the index and what is behind it. ``read`` gives so many bytes from a place on."""
    if size < _TRAILER.size:
        raise Damage(path, f"it has {size} bytes, fewer than its trailer")
    length, _, magic = _TRAILER.unpack(read(size - _TRAILER.size, _TRAILER.size))
    if magic != MAGIC or length > size - _TRAILER.size:
        raise Damage(path, "it does not end as a state file does; it was cut or overwritten")
    return read(size - _TRAILER.size - length, length + _TRAILER.size)


def index_of(path: str, tail: bytes) -> Index:
    """What the end of a segment's file says, if it is whole."""
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
    if "present" in document:  # which the first versions did not write
        bits = np.frombuffer(bytes.fromhex(document["present"]), dtype=np.uint8)
        present = np.unpackbits(bits, count=shards).astype(np.bool_)
    return Index(_schema(document["schema"]), shards, chunks, present, end + -end % _ALIGNED + len(tail))


@functools.lru_cache(maxsize=64)
def _schema(text: str) -> pa.Schema:
    """Most segments of an operator have the same."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


class Looked(NamedTuple):
    """A chunk in which identities are looked up."""

    rows: pa.RecordBatch
    one: Hashes
    two: Hashes
    keys: pa.RecordBatch

    @classmethod
    def into(cls, rows: pa.RecordBatch) -> Looked:
        return cls(rows, rows.column(HASH).to_numpy(), rows.column(HASH2).to_numpy(), keys_in(rows))


def keys_in(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The keys of rows of state, in the columns' order."""
    return rows.select([name for name in rows.schema.names if name.startswith(KEY)])


class Segment:
    """A segment as it is read: its index at once, its chunks when they are asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.schema, self.shards, self.chunks, self.present, self.size = self._index()
        self._sound: set[int] = set()  # chunks whose checksum was seen to be right

    def _index(self) -> Index:
        try:
            with open(self.path, "rb") as file:
                self._told = os.fstat(file.fileno())
                tail = tail_of(self.path, self._told.st_size, lambda at, length: os.pread(file.fileno(), length, at))
        except FileNotFoundError:
            raise Damage(self.path, "it is gone") from None
        return index_of(self.path, tail)

    @functools.cached_property
    def _ranges(self) -> tuple[Places, Places]:
        first, last = ([getattr(chunk, name) for chunk in self.chunks] for name in ("first_shard", "last_shard"))
        return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)

    def within(self, first_shard: int, last_shard: int) -> Iterator[int]:
        """The chunks that have something of these shards."""
        for number, chunk in enumerate(self.chunks):
            if chunk.first_shard <= last_shard and chunk.last_shard >= first_shard:
                yield number

    def asked(self, shards: Places) -> Iterator[tuple[int, slice]]:
        """The chunks that may have something of these shards, which are sorted, and where in those they are."""
        first, last = self._ranges
        begin, end = shards.searchsorted(first), shards.searchsorted(last, side="right")
        for number in np.flatnonzero(end > begin).tolist():
            yield number, slice(int(begin[number]), int(end[number]))

    def read(self, number: int) -> pa.RecordBatch:
        """One chunk, where it lies in the file; its checksum is tried the first time."""
        return self._mapped(number, trusted=False)

    def look(self, number: int) -> Looked:
        """One chunk, of which a few rows are wanted, now and in batches to come: it stays mapped, and what this node has seen
        to be right is not tried again."""
        held = _holding.held(self)
        if number not in held:
            held[number] = looked = Looked.into(self._mapped(number, trusted=bool(self._seen >> number & 1)))
            _holding.grown(self, self.chunks[number].length)
            return looked
        return held[number]

    def _mapped(self, number: int, trusted: bool) -> pa.RecordBatch:
        chunk = self.chunks[number]
        body = mapped(self.path, chunk.offset, chunk.length)
        if not trusted and number not in self._sound:
            self.check(number, body)
            self._sound.add(number)
        return pa.ipc.read_record_batch(body, self.schema)

    @functools.cached_property
    def _seen(self) -> int:
        return sound.seen(self.path, self._told)

    def remember(self) -> None:
        """Tell the other processes of this node which chunks are right."""
        bits = sum(1 << number for number in self._sound)
        if bits & ~self._seen:
            self._seen |= bits
            sound.remember(self.path, self._told, self._seen)

    def check(self, number: int, body: pa.Buffer) -> None:
        """Whether these are the bytes of a chunk as they were written."""
        chunk = self.chunks[number]
        if zlib.crc32(body) != chunk.crc:
            shards = f"shards {chunk.first_shard} to {chunk.last_shard}"
            raise Damage(self.path, f"the checksum of chunk {number}, {shards}, is wrong")


def mapped(path: str, offset: int, length: int) -> pa.Buffer:
    """A part of a file where it lies: what is not looked at is not read."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    skipped = offset - start
    with open(path, "rb") as file:
        whole = mmap.mmap(file.fileno(), skipped + length, access=mmap.ACCESS_READ, offset=start)
    return pa.py_buffer(whole).slice(skipped, length)


class _Holding:
    """The chunks that stay mapped in this process, by segment; the segment that was not looked at for longest goes first."""

    def __init__(self) -> None:
        self._held: dict[Segment, dict[int, Looked]] = {}
        self._bytes: dict[Segment, int] = {}

    def held(self, segment: Segment) -> dict[int, Looked]:
        self._held[segment] = self._held.pop(segment, {})  # to the end
        return self._held[segment]

    def grown(self, segment: Segment, length: int) -> None:
        self._bytes[segment] = self._bytes.get(segment, 0) + length
        while sum(self._bytes.values()) > _most_held():
            self.let_go(next(iter(self._held)))

    def let_go(self, segment: Segment) -> None:
        self._held.pop(segment).clear()
        self._bytes.pop(segment, None)

    def keep_only(self, folder: str, paths: Collection[str]) -> None:
        """Of the segments in a folder keep no others: they may be removed, and what is mapped keeps its place on the disk."""
        for segment in [one for one in self._held if one.path.rpartition("/")[0] == folder and one.path not in paths]:
            self.let_go(segment)


_holding = _Holding()
keep_only = _holding.keep_only


def _most_held() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return HELD_BYTES if limit == resource.RLIM_INFINITY else min(HELD_BYTES, int(limit * HELD_SHARE))


def opened(path: str) -> Segment:
    """A segment, whose index this process may have read already: segments never change, and one that did is read anew."""
    try:
        told = os.stat(path)
    except FileNotFoundError:
        raise Damage(path, "it is gone") from None
    return _opened(path, told.st_mtime_ns, told.st_size)


@functools.lru_cache(maxsize=1024)
def _opened(path: str, changed: int, size: int) -> Segment:
    return Segment(path)


def verify(path: str) -> int:
    """Read all of a segment; the number of its rows, or Damage."""
    segment = Segment(path)
    return sum(segment.read(number).num_rows for number in range(len(segment.chunks)))


def written(
    path: Path, parts: Iterable[pa.RecordBatch], schema: pa.Schema, shards: int, timers: Sequence[str | None] = (None, None)
) -> dict[str, Any]:
    """A whole segment at once."""
    writer = Writer(path, schema, shards, timers)
    for part in parts:
        writer.add(part)
    return writer.finish()
