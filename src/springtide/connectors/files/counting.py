"""The number of records of new files: from Parquet's footers, else an estimate from a sample of their lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from springtide.connectors.files.listing import Folder, Found, codec_of
from springtide.connectors.files.seen import Entry

FOOTERS_AT_ONCE = 16
"""Limits the footers that are read at the same time: an object store answers after tens of ms, and takes hundreds at once."""
SETTLE_S = 10.0
"""A Parquet file without a footer may still be written as long as it changed within this time."""
SAMPLE_BYTES = 256 << 10
SAMPLES = 8
"""Limits the files that are sampled in each listing: about a millisecond each on a local disk."""

Sampled = tuple[int, int]
"""Lines of all samples so far, and the bytes of the files that hold them, as they are stored."""


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
    samples: dict[str, tuple[int, int, bool]] = {}
    step = max(1, len(files) // SAMPLES)
    for found in files[::step]:
        sample = _sample(folder, found, header)
        if sample is not None:
            samples[found.path] = sample
    lines, size = sampled
    lines += sum(sample[0] for sample in samples.values())
    size += sum(sample[1] for sample in samples.values())
    return [_by_sample(found, samples.get(found.path), (lines, size)) for found in files], (lines, size)


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


def _sample(folder: Folder, found: Found, header: bool) -> tuple[int, int, bool] | None:
    """The lines at the beginning of a file, the bytes that hold them, and whether that is the whole file."""
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
    return max(0, lines - header), found.size if whole else stored, whole


def _by_sample(found: Found, sample: tuple[int, int, bool] | None, sampled: Sampled) -> Entry:
    if sample is not None and sample[2]:
        return Entry(*found, sample[0], True)
    lines, size = sampled
    return Entry(*found, max(1, round(found.size * lines / size)) if size and found.size else None)
