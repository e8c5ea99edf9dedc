"""The number of records of new files: from Parquet's footers, else an estimate from a sample of their lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from springtide.connectors.files.listing import Folder, Found, codec_of
from springtide.connectors.files.seen import Entry, Sampled

FOOTERS_AT_ONCE = 16
"""Limits the footers that are read at the same time: an object store answers after tens of ms, and takes hundreds at once."""
SETTLE_S = 10.0
"""A Parquet file without a footer may still be written as long as it changed within this time."""
SAMPLE_BYTES = 256 << 10
SAMPLES = 8
"""Limits the files that are sampled in each listing: about a millisecond each on a local disk."""


def counted(
    folder: Folder, format: str, files: Sequence[Found], sampled: Sampled, header: bool,
    clock: Callable[[], float] = time.time,
) -> tuple[list[Entry], Sampled]:  # fmt: skip
    """New files with their numbers of records, in the same order, and the samples so far. Files that are still being written
    are left out."""
    if format == "parquet":
        with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, max(1, len(files)))) as threads:
            entries = threads.map(lambda found: _by_footer(folder, found, clock), files)
        return [entry for entry in entries if entry is not None], sampled
    known, samples = dict(sampled), dict[str, Sample]()
    for kind in {_kind(found) for found in files}:
        chosen = [found for found in files if _kind(found) == kind]
        fresh = {found.path: _sample(folder, found, header) for found in chosen[:: math.ceil(len(chosen) / SAMPLES)]}
        held = {path: sample for path, sample in fresh.items() if sample is not None}
        lines, size = known.get(kind, (0, 0))
        known[kind] = lines + sum(one.lines for one in held.values()), size + sum(one.size for one in held.values())
        samples |= held
    return [_by_sample(found, samples.get(found.path), known[_kind(found)]) for found in files], known


def _kind(found: Found) -> str:
    """Files of one compression are alike; a compressed file has many more lines for its bytes."""
    return codec_of(found.path) or ""


def _by_footer(folder: Folder, found: Found, clock: Callable[[], float]) -> Entry | None:
    try:
        with folder.files.open_input_file(folder.path(found.path)) as file:
            footer = pq.read_metadata(file)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException):
        # a broken file becomes part of the list: its reader says what is wrong, and nothing is skipped in silence
        return None if clock() - found.mtime / 1e6 < SETTLE_S else Entry(*found)
    groups = tuple(footer.row_group(index).num_rows for index in range(footer.num_row_groups))
    return Entry(*found, footer.num_rows, True, groups)


class Sample(NamedTuple):
    """The lines at the beginning of a file, the bytes that hold them, and whether that is the whole file."""

    lines: int
    size: int
    whole: bool


def _sample(folder: Folder, found: Found, header: bool) -> Sample | None:
    codec = codec_of(found.path)
    try:
        with folder.files.open_input_file(folder.path(found.path)) as raw:
            stream = pa.CompressedInputStream(raw, codec) if codec else raw
            read = stream.read(SAMPLE_BYTES)
            whole = len(read) < SAMPLE_BYTES
            stored = min(found.size, raw.tell())
    except (OSError, pa.ArrowException):  # gone or broken: its reader says so
        return None
    lines = read.count(b"\n") + (whole and not read.endswith(b"\n") and bool(read))
    return Sample(max(0, lines - header), found.size if whole else stored, whole)


def _by_sample(found: Found, sample: Sample | None, sampled: tuple[int, int]) -> Entry:
    if sample is not None and sample.whole:
        return Entry(*found, sample.lines, True)
    lines, size = sampled
    return Entry(*found, max(1, round(found.size * lines / size)) if size and found.size else None)
