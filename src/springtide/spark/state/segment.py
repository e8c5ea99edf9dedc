"""One immutable file of state: rows sorted by the hash of their key, in chunks, each with a checksum.

    chunk, chunk, …, index (JSON), length and CRC-32 of the index, MAGIC

A shard is a range of hashes, so a file that is sorted by hash has every shard in one piece, and the index tells which chunks
have it. A task writes one file in a batch for all its shards. Chunks are Arrow record batches that are read where they lie:
what is not looked at is not read, so that state may be larger than memory.
"""

from __future__ import annotations

import base64
import functools
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import CheckpointError
from springtide.model.state import NEVER
from springtide.policy.group.shards import shards_of
from springtide.spark import durable

MAGIC = b"SPRTIDE1"
_TRAILER = struct.Struct("<II8s")
CHUNK_BYTES = 4 << 20
"""A chunk is cut at the next shard once it has so much: large enough to search many keys at once, small beside any memory."""

HASH, HASH2, GONE, TOUCHED = "_hash", "_hash2", "_gone", "_touched"
OWN = pa.schema([(HASH, pa.uint64()), (HASH2, pa.uint64()), (GONE, pa.bool_()), (TOUCHED, pa.int64())])
"""The columns that every segment has: the key's identity, whether it was forgotten, and when it was written last."""

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
        durable.make_folder(path.parent)
        self._file = path.open("wb")
        self._index: list[ChunkIndex] = []
        self._at = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows that are sorted, and belong behind those before."""
        for chunk, told in encode(rows, self._shards, self._timers):
            self._file.write(chunk)
            pad = -len(chunk) % 64
            self._file.write(b"\0" * pad)
            self._index.append(ChunkIndex(self._at, len(chunk), zlib.crc32(chunk), **told))
            self._at += len(chunk) + pad
            self.rows += told["rows"]

    def finish(self) -> dict[str, Any]:
        """Make it durable, and return what the catalog shall know of it."""
        schema = base64.b64encode(self._schema.serialize()).decode()
        index = json.dumps({"schema": schema, "shards": self._shards, "chunks": self._index}).encode()
        self._file.write(index + _TRAILER.pack(len(index), zlib.crc32(index), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        durable.sync_folder(self._path.parent)
        size = self._at + len(index) + _TRAILER.size
        return {"name": self._path.name, "bytes": size, "rows": self.rows}


class Segment:
    """A segment as it is read: its index at once, its chunks when they are asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                index = self._read_index(file)
        except FileNotFoundError:
            raise Damage(path, "it is gone") from None
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(index["schema"])))
        self.shards: int = index["shards"]
        self.chunks = tuple(ChunkIndex(*one) for one in index["chunks"])
        self._sound: set[int] = set()  # chunks whose checksum was seen to be right

    def _read_index(self, file: Any) -> dict[str, Any]:
        if self.size < _TRAILER.size:
            raise Damage(self.path, f"it has {self.size} bytes, fewer than its trailer")
        file.seek(self.size - _TRAILER.size)
        length, crc, magic = _TRAILER.unpack(file.read(_TRAILER.size))
        if magic != MAGIC or length > self.size - _TRAILER.size:
            raise Damage(self.path, "it does not end as a state file does; it was cut or overwritten")
        file.seek(self.size - _TRAILER.size - length)
        index = file.read(length)
        if zlib.crc32(index) != crc:
            raise Damage(self.path, "the checksum of its index is wrong")
        document: dict[str, Any] = json.loads(index)
        return document

    def within(self, first_shard: int, last_shard: int) -> Iterator[int]:
        """The chunks that have something of these shards."""
        for number, chunk in enumerate(self.chunks):
            if chunk.first_shard <= last_shard and chunk.last_shard >= first_shard:
                yield number

    def read(self, number: int) -> pa.RecordBatch:
        """One chunk, where it lies in the file; its checksum is tried the first time."""
        chunk = self.chunks[number]
        start = chunk.offset - chunk.offset % mmap.ALLOCATIONGRANULARITY
        skipped = chunk.offset - start
        with open(self.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), skipped + chunk.length, access=mmap.ACCESS_READ, offset=start)
        body = pa.py_buffer(mapped).slice(skipped, chunk.length)
        if number not in self._sound:
            self.check(number, body)
            self._sound.add(number)
        return pa.ipc.read_record_batch(body, self.schema)

    def check(self, number: int, body: pa.Buffer) -> None:
        """Whether these are the bytes of a chunk as they were written."""
        chunk = self.chunks[number]
        if zlib.crc32(body) != chunk.crc:
            shards = f"shards {chunk.first_shard} to {chunk.last_shard}"
            raise Damage(self.path, f"the checksum of chunk {number}, {shards}, is wrong")


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
