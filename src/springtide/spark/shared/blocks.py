"""Blocks: the data that travels between tasks.

A task writes one block for each task of the next stage, with all records for that task: an Arrow record batch behind a
small header. Spark then shuffles a handful of blocks instead of thousands of rows. The order of the records needs no column:
it is the order of (consumer, producer, stage, gate, origin, chunk) of the blocks, and of the rows inside them, in whatever
order the blocks arrive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

_HEADER = struct.Struct("<BBHHIBHIII")
HEADER_BYTES = _HEADER.size
KEY_BYTES = 8
MAX_ROWS = 65_536
"""Limits the rows of a block, to stay far below 2 GB, the maximum of a Java array."""


class BlockKind(IntEnum):
    DATA = 0  # records for an operator that runs in Python
    ROWS = 1  # records for a sql operator, read by the JVM before the next stage
    REPORT = 2  # a task's ``report.Report``
    COSTS = 3  # the costs of a task's records, by key


@dataclass(frozen=True, order=True)
class Header:
    """Destination and origin of a block. Headers sort as the records do."""

    kind: BlockKind
    level: int  # of the stage that consumes it
    consumer: int  # the operator's number
    producer: int
    target: int  # the task within that stage; arbitrary for rows and reports
    stage: int  # the level of the stage that wrote it: behind a union, an operator may run in several stages
    gate: int  # how records entered that stage, 0 by a shuffle: tasks behind different gates have the same numbers
    origin: int  # the task that wrote it
    chunk: int

    def block(self, payload: bytes) -> bytes:
        """The header, with the payload's size, and the payload."""
        packed = _HEADER.pack(
            self.kind, self.level, self.consumer, self.producer, self.target, self.stage, self.gate, self.origin, self.chunk,
            len(payload),
        )  # fmt: skip
        return packed + payload


def parse(block: bytes) -> Header:
    kind, *rest, _ = _HEADER.unpack_from(block)
    return Header(BlockKind(kind), *rest)


def payload(block: bytes) -> memoryview:
    return memoryview(block)[HEADER_BYTES:]


def records(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The records of a block of kind DATA or ROWS."""
    return pa.ipc.read_record_batch(pa.py_buffer(payload(block)), schema)


def pair(target: int, block: bytes) -> Iterator[bytes]:
    """A block for a task in the format of Spark's ``PairwiseRDD``: the key, then the value."""
    yield target.to_bytes(KEY_BYTES, "big")
    yield block


def split(pairs: bytes) -> Iterator[bytes]:
    """The blocks of concatenated pairs."""
    start = 0
    while start < len(pairs):
        start += KEY_BYTES
        end = start + HEADER_BYTES + _HEADER.unpack_from(pairs, start)[-1]
        yield pairs[start:end]
        start = end
