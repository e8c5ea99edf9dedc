"""The list of files that a checkpoint has seen, in the order in which they are read.

A position in the stream is a number of files of this list, so it stays small however many files come. The list is a folder of
documents; each has a checksum, and each entry goes into a running checksum, which positions repeat: a list from another copy of
the checkpoint is noticed.

    N.json         the files from number N on that one listing found
    seen-N.json    the paths of the first N files, once no batch can be replayed that reads them

The driver and Spark's process for offsets both list, one at a time, under a lock of the kernel.
"""

from __future__ import annotations

import fcntl
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from springtide.connectors.files.listing import Found
from springtide.durable import Shape, make_folder, read_json, write_atomic
from springtide.errors import DamageError

PART = Shape({"first": (int,), "before": (int,), "files": (list,)}, {"sampled": (dict,), "spark": (dict,)})
SEEN = Shape({"next": (int,), "checksum": (int,), "seen": (dict,), "sampled": (dict,)}, {"spark": (dict,)})
MIN_TO_FORGET = 1_000
"""Rewrite the paths only once this many more can be added: it takes a second for a million."""
MAX_PARTS = 500
"""Limits the documents that a start reads."""
AGE_TO_FORGET_US = 7 * 86_400 * 10**6
"""A path whose file is gone is forgotten once the file would be a week older than the newest one. A listing of an object store
may miss a file for a while, and a file that comes back would be read again."""
MEND = (
    "put the folder back from a copy of the whole checkpoint, or start with a new checkpoint: state and progress are lost, and"
    " all files are read again"
)


class Entry(NamedTuple):
    """A file, and the number of its records. ``groups``: the records of each row group of a Parquet file. ``exact``: whether
    ``rows`` is no estimate; None if nothing is known."""

    path: str
    mtime: int
    size: int
    rows: int | None = None
    exact: bool = False
    groups: tuple[int, ...] = ()


def entry_of(document: Sequence[Any]) -> Entry:
    path, mtime, size, rows, exact, groups = document
    return Entry(str(path), int(mtime), int(size), None if rows is None else int(rows), bool(exact), tuple(map(int, groups)))


Sampled = Mapping[str, tuple[int, int]]
"""By compression, the lines of all samples so far, and the bytes of the files that hold them."""


def _pairs(document: Mapping[str, Sequence[int]]) -> Sampled:
    return {kind: (int(lines), int(size)) for kind, (lines, size) in document.items()}


class Seen:
    """The list, as far as this process has read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forget_all()

    def _forget_all(self) -> None:
        self._base = 0  # entries before this one are known by their paths only
        self._checksums = [0]  # before each entry from the base on
        self._entries: list[Entry] = []
        self._places: list[tuple[int, Path]] = []
        self.known: dict[str, tuple[int, int]] = {}  # by path: time of modification and size
        self.sampled: Sampled = {}
        self.spark: dict[str, int] = {}

    # Reading

    @property
    def next(self) -> int:
        """The number of files in the list."""
        return self._base + len(self._entries)

    @property
    def following(self) -> Path:
        """The document that goes on with the list."""
        return self.folder / f"{self.next:012d}.json"

    def checksum(self, number: int) -> int | None:
        """The checksum of the first ``number`` files; None if it is not known."""
        index = number - self._base
        return self._checksums[index] if 0 <= index < len(self._checksums) else None

    def entries(self, first: int, last: int) -> list[Entry]:
        return self._entries[first - self._base : last - self._base]

    def refresh(self) -> None:
        """Read what another process has added, and drop what it has summarised."""
        summary = max(self.folder.glob("seen-*.json"), default=None)
        if summary is not None and int(summary.stem.removeprefix("seen-")) > self._base:
            self._skip_to(summary)
        while (document := read_json(file := self.following, PART)) is not None:
            self._add(document, file)

    def _skip_to(self, summary: Path) -> None:
        number = int(summary.stem.removeprefix("seen-"))
        if number <= self.next:
            self._drop_before(number)
            return
        document = read_json(summary, SEEN)
        if document is None:  # a newer one has replaced it
            self.refresh()
            return
        self._forget_all()
        self._base, self._checksums = document["next"], [document["checksum"]]
        self.known = {path: (mtime, size) for path, (mtime, size) in document["seen"].items()}
        self.sampled, self.spark = _pairs(document["sampled"]), dict(document.get("spark", {}))

    def _drop_before(self, number: int) -> None:
        """Know the entries before a number by their paths only."""
        self._entries, self._checksums = self._entries[number - self._base :], self._checksums[number - self._base :]
        self._places = [(first, file) for first, file in self._places if first >= number]
        self._base = number

    def _add(self, document: Mapping[str, Any], file: Path) -> None:
        if document["first"] != self.next or document["before"] != self._checksums[-1]:
            raise DamageError(file, "does not continue the list of files before it: it was changed from outside", MEND)
        try:
            entries = [entry_of(each) for each in document["files"]]
        except (TypeError, ValueError):
            raise DamageError(file, "has a file without path, time and size: it was changed from outside", MEND) from None
        self._places.append((self.next, file))
        for entry, plain in zip(entries, document["files"], strict=True):
            self._entries.append(entry)
            self._checksums.append(zlib.crc32(json.dumps(plain).encode(), self._checksums[-1]))
            self.known[entry.path] = entry.mtime, entry.size
        self.sampled = _pairs(document.get("sampled", self.sampled))
        self.spark |= document.get("spark", {})

    # Writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from listing, and read what they have added."""
        with self._lock():
            self.refresh()
            yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        make_folder(self.folder)
        with open(self.folder / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, entries: Sequence[Entry], sampled: Sampled | None = None, spark: Mapping[str, int] | None = None) -> None:
        """Add files durably; the caller holds the lock. ``spark``: see ``Seen.spark``."""
        document: dict[str, Any] = {
            "first": self.next, "before": self._checksums[-1], "files": [[*each[:-1], list(each.groups)] for each in entries],
            "sampled": dict(sampled or self.sampled), **({"spark": dict(spark)} if spark else {}),
        }  # fmt: skip
        file = self.following
        write_atomic(file, document)
        self._add(document, file)

    def clear(self) -> None:
        """Begin anew, before any batch has read a file."""
        with self._lock():
            for file in self.folder.glob("*.json"):
                file.unlink(missing_ok=True)
            self._forget_all()

    def forget(self, before: int, present: Iterable[Found]) -> None:
        """Summarise the documents whose files all come before a number, if that is worth while; the caller holds the lock.

        ``present``: the files that are there now. Of others the path is forgotten after a while.
        """
        ends = [first for first, _ in self._places[1:]] + [self.next]
        done = [end for end in ends if end <= before]
        if not done or (done[-1] - self._base < max(MIN_TO_FORGET, len(self.known) // 4) and len(done) < MAX_PARTS):
            return
        there = {found.path for found in present}
        newest = max((mtime for mtime, _ in self.known.values()), default=0)
        pending = {entry.path for entry in self.entries(done[-1], self.next)}
        kept = {
            path: list(found)
            for path, found in self.known.items()
            if path in pending or path in there or found[0] > newest - AGE_TO_FORGET_US
        }
        summary = {"next": done[-1], "checksum": self.checksum(done[-1]), "seen": kept, "sampled": dict(self.sampled)}
        latest = dict(sorted(self.spark.items(), key=lambda item: int(item[0]))[-3:])
        read = [file for (_, file), end in zip(self._places, ends, strict=True) if end <= before]
        older = [*self.folder.glob("seen-*.json"), *read]
        write_atomic(self.folder / f"seen-{done[-1]:012d}.json", {**summary, "spark": latest})
        for file in older:
            file.unlink(missing_ok=True)
        self.known = {path: found for path, found in self.known.items() if path in kept}
        self._drop_before(done[-1])
