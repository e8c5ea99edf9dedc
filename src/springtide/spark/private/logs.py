"""Spark's own part of a checkpoint, <checkpoint>/spark: its offset log, its commit log, and the logs of its sources.

    offsets/N      the input of batch N: a version, a line of metadata, and the end offset of each source. In version 1 the
                   position of a line is the source's number, and "-" means no offset; in version 2 each line begins with the
                   number and a colon, in any order, and sources without an offset have no line
    commits/N      batch N is done
    sources/I/N    the files that source I has seen; N.compact has all from the first on. Sources of other kinds store their
                   start in sources/I/0
    metadata       the query's id

Spark does not fsync any of them.

Why: a replay has to read the same records, so a damaged log is mended from manifests; and closing batches are logged in the
same way as Spark's.
Seen to work on: Spark 4.2 and 4.3, whose logs are of version 1 or 2.
Without it: a start refuses logs of another version, and names the file.
"""

from __future__ import annotations

import io
import json
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from springtide.durable import make_folder, write_whole
from springtide.errors import CheckpointError

VERSION = re.compile("v[12]")
"""The log versions that Spark 4 reads. It does not start from a file of another version."""
_OF_SOURCE = re.compile("([0-9]{1,9}):(.*)")
"""A line of version 2: the number of a source, and its offset."""
NO_OFFSET = "-"
"""The offset of a source that has none yet."""
COMPACT = ".compact"
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""The text of a commit, if the query has no Spark watermark."""


class SourceLogEntry(NamedTuple):
    """A file of a source's log."""

    source: int
    number: int
    compact: bool = False

    @property
    def name(self) -> str:
        return f"{self.source}/{self.number}{COMPACT if self.compact else ''}"

    @classmethod
    def of(cls, name: str) -> SourceLogEntry | None:
        found = re.fullmatch(rf"(\d+)/(\d+)({re.escape(COMPACT)})?", name)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3] is not None)


class Logs:
    """The folder with Spark's logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, log: str, batch: int) -> Path:
        return self.folder / log / str(batch)

    def numbers(self, log: str) -> list[int]:
        """The batches in ``offsets`` or ``commits``, in ascending order."""
        return sorted(int(path.name) for path in (self.folder / log).glob("[0-9]*") if path.name.isdigit())

    def text(self, log: str, batch: int) -> str | None:
        try:
            return self.file(log, batch).read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def texts(self, log: str) -> dict[int, str]:
        found = {batch: self.text(log, batch) for batch in self.numbers(log)}
        return {batch: text for batch, text in found.items() if text is not None}

    def replace(self, file: Path, text: str | None) -> None:
        """Write or remove a file of these logs, and remove Hadoop's checksum beside it, which would not match."""
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        if text is None:
            file.unlink(missing_ok=True)
            return
        make_folder(file.parent)
        write_whole(file, text)

    @property
    def has_state(self) -> bool:
        """Whether Spark has state of its own, with a version for each batch, for example of a DataFrame with an aggregation."""
        return (self.folder / "state").is_dir()

    def begin_after(self, committed: int, at_ms: int) -> int:
        """Log the batch after a committed one with the same offsets, at a later time; returns its number.

        A stopped query may lack the commit of its last batch, and may have logged the next batch, which then stays unchanged.
        """
        self.commit(committed)
        batch = committed + 1
        if self.text("offsets", batch) is None:
            version, metadata, *offsets = _lines(self.file("offsets", committed).read_text(encoding="utf-8"))
            described = json.loads(metadata)
            described["batchTimestampMs"] = max(at_ms, described["batchTimestampMs"] + 1)  # no two batches have one time
            described_text = json.dumps(described, separators=(",", ":"))
            self.replace(self.file("offsets", batch), "\n".join([version, described_text, *offsets]))
        return batch

    def commit(self, batch: int) -> None:
        """Log the commit of a batch, with the text of its predecessor's, unless it is logged."""
        if self.text("commits", batch) is None:
            self.replace(self.file("commits", batch), self.text("commits", batch - 1) or COMMIT)

    def batch_time(self, batch: int) -> int:
        """The first start of a batch in microseconds since 1970: a replay has the same."""
        metadata = _lines(self.file("offsets", batch).read_text(encoding="utf-8"))[1]
        return int(json.loads(metadata)["batchTimestampMs"]) * 1000

    def entry_checksum(self, entry: SourceLogEntry) -> int | None:
        try:
            return zlib.crc32((self.folder / "sources" / entry.name).read_bytes())
        except FileNotFoundError:
            return None

    def entries(self, source: int) -> list[SourceLogEntry]:
        """All files of a source's log, in ascending order."""
        names = (f"{source}/{path.name}" for path in (self.folder / "sources" / str(source)).glob("[0-9]*"))
        return sorted(entry for entry in map(SourceLogEntry.of, names) if entry is not None)

    def all_entries(self) -> list[SourceLogEntry]:
        sources = [int(path.name) for path in (self.folder / "sources").glob("[0-9]*") if path.name.isdigit()]
        return [entry for source in sorted(sources) for entry in self.entries(source)]

    def settled(self, offsets: str, known: Mapping[str, int]) -> dict[str, int]:
        """The checksums of the log entries that a start reads after a batch with these offsets: of each source of files, the
        last compaction and later entries. ``known``: the checksums after the previous batch; only new files are read.
        """
        _check_numbered(offsets)
        found: dict[str, int] = {}
        for source, last in log_offsets(offsets).items():
            before = {entry: checksum for entry, checksum in _entries(known) if _is_read(entry, source, last)}
            fresh = self._fresh(source, last, max(before, default=None))
            every = {**before, **{entry: sum_ for entry in fresh if (sum_ := self.entry_checksum(entry)) is not None}}
            start = max((entry for entry in every if entry.compact), default=SourceLogEntry(source, -1))
            found |= {entry.name: checksum for entry, checksum in sorted(every.items()) if entry >= start}
        return found

    def _fresh(self, source: int, last: int | None, known: SourceLogEntry | None) -> list[SourceLogEntry]:
        """The entries after ``known``, up to the last that a batch reads. ``last``: None for a source without such a log."""
        if last is None:
            return [SourceLogEntry(source, 0)] if known is None else []
        if known is None:
            return [entry for entry in self.entries(source) if entry.number <= last]
        return [
            SourceLogEntry(source, number, compact) for number in range(known.number + 1, last + 1) for compact in (False, True)
        ]

    def mend_metadata(self) -> str | None:
        """Give the query a new id if its own cannot be read, because Spark would not start; returns the fault."""
        file = self.folder / "metadata"
        begun = self.numbers("offsets") or self.numbers("commits")
        try:
            document: Any = json.loads(file.read_text(encoding="utf-8"))
            uuid.UUID(document["id"])
        except FileNotFoundError:
            if not begun:
                return None
            fault = "is gone"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            fault = "cannot be read"
        else:
            return None
        self.replace(file, json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")))
        return fault


def log_offsets(offsets: str) -> dict[int, int | None]:
    """By source, the last entry of its log that a batch reads; None for a source without a log."""
    return {source: _log_offset(offset) for source, offset in _by_source(_lines(offsets)).items()}


def offsets_by_source(offsets: str) -> dict[int, str]:
    """The text of each source's offset."""
    return _by_source(_lines(offsets))


def _log_offset(offset: str) -> int | None:
    found = re.fullmatch(r'\{"logOffset":(-?\d+)\}', offset)
    return None if found is None else int(found[1])


def _lines(text: str) -> list[str]:
    """Split lines as Java's readers do: only at \\n, \\r and \\r\\n, unlike ``str.splitlines``."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def _by_source(lines: Sequence[str]) -> dict[int, str]:
    """The offsets in a file of the offset log by source. Lines without a source's number are left out."""
    version, offsets = lines[:1], lines[2:]
    if version != ["v2"]:
        return dict(enumerate(offsets))
    return {int(found[1]): found[2] for line in offsets if (found := _OF_SOURCE.fullmatch(line)) is not None}


def _check_numbered(offsets: str) -> None:
    """Refuse named sources, which Spark uses instead of numbers if it is set to allow changes of the set of sources."""
    lines = _lines(offsets)
    if len(_by_source(lines)) != len(lines[2:]):
        raise CheckpointError(
            "Spark's log of offsets names the sources of this query, and Springtide knows them by their numbers: leave out"
            " spark.sql.streaming.queryEvolution.enableSourceEvolution, and give a new checkpoint"
        )


def _is_read(entry: SourceLogEntry, source: int, last: int | None) -> bool:
    return entry.source == source and (last is None or entry.number <= last)


def _entries(checksums: Mapping[str, int]) -> Iterator[tuple[SourceLogEntry, int]]:
    for name, checksum in checksums.items():
        entry = SourceLogEntry.of(name)
        if entry is not None:
            yield entry, checksum


def are_offsets(text: str) -> bool:
    """Whether Spark can read a file of its offset log. The format of offsets depends on the source; usually it is JSON."""
    lines = _lines(text)
    offsets = _by_source(lines)
    if len(lines) < 3 or not VERSION.fullmatch(lines[0]) or len(offsets) != len(lines[2:]):
        return False
    try:
        metadata = json.loads(lines[1])
        for offset in offsets.values():
            if offset.startswith("{"):
                json.loads(offset)
    except ValueError:
        return False
    return isinstance(metadata, dict) and type(metadata.get("batchTimestampMs")) is int


def is_commit(text: str) -> bool:
    """Whether Spark can read a file of its commit log."""
    lines = _lines(text)
    if len(lines) != 2 or not VERSION.fullmatch(lines[0]):
        return False
    try:
        metadata = json.loads(lines[1])
    except ValueError:
        return False
    return isinstance(metadata, dict) and type(metadata.get("nextBatchWatermarkMs", 0)) is int
