"""Files of lines in blocks of whole lines, with the number of each line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from springtide.connectors.files.listing import codec_of

BLOCK_BYTES = 1 << 20
"""About 10,000 records: native parsers are fast from here on, and a task has few of them in memory."""
MAX_LINE_BYTES = 256 << 20
"""A line beyond this is no record, but probably a file of another format; a task's memory has to hold it several times."""
BOM = b"\xef\xbb\xbf"


class TooLong(Exception):
    """A line is too long to be a record."""


class Block(NamedTuple):
    """Whole lines, each with its end. ``first``: the number of the first line, from 1 on, or its byte in a part of a file.
    ``start``: the byte at which the block begins, counted without compression."""

    content: bytes
    first: int
    start: int


def blocks(stream: Any, encoding: str, start: int = 0, end: int | None = None) -> Iterator[Block]:
    """The lines of a stream that begin before the byte ``end``. ``start``: the byte at which the stream is."""
    rest, number, at = b"", 1, start
    while end is None or at < end:
        read = stream.read(BLOCK_BYTES)
        if at == 0 and not rest:
            read, at = (read[len(BOM) :], len(BOM)) if read.startswith(BOM) else (read, 0)
        held = rest + read
        if not read:
            if held:
                yield _block(held + b"\n", number, at, encoding)
            return
        cut = held.rfind(b"\n") + 1
        if end is not None and at + cut > end:
            cut = held.find(b"\n", max(0, end - at - 1)) + 1
        if not cut:
            if len(held) > MAX_LINE_BYTES:
                raise TooLong(f"line {number} has more than {MAX_LINE_BYTES >> 20} MB: this is no file of lines")
            rest = held
            continue
        yield _block(held[:cut], number, at, encoding)
        number += held.count(b"\n", 0, cut)
        at += cut
        rest = held[cut:]


def _block(content: bytes, number: int, at: int, encoding: str) -> Block:
    if encoding != "utf-8":
        content = content.decode(encoding, "surrogateescape").encode("utf-8", "surrogateescape")
    return Block(content, number, at)


def opened(files: Any, path: str, first: int) -> Any:
    """A stream of the file's text from a byte on: behind the end of the line that has the byte before it."""
    if not first:
        return files.open_input_stream(path, compression=codec_of(path))
    stream = files.open_input_file(path)
    stream.seek(first - 1)
    return stream


def skipped(stream: Any, first: int) -> tuple[Any, int]:
    """Skip the line that began before ``first``: its own part of the file reads it."""
    passed, rest = first - 1, b""
    while read := stream.read(BLOCK_BYTES):
        cut = read.find(b"\n") + 1
        if cut:
            passed, rest = passed + cut, read[cut:]
            break
        passed += len(read)
    return _Chained(rest, stream), passed


class _Chained:
    """Bytes that were read already, before the rest of a stream."""

    def __init__(self, rest: bytes, stream: Any) -> None:
        self._rest, self._stream = rest, stream

    def read(self, size: int) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or bytes(self._stream.read(size))


def lines_of(block: Block) -> list[tuple[int, bytes]]:
    """The lines of a block that are not blank, each with its place in the block."""
    return [(index, line) for index, line in enumerate(block.content.split(b"\n")) if line.strip()]
