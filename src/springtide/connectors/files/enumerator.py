"""The driver's part: finds new files, and cuts a batch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from springtide.connectors.files.counting import counted
from springtide.connectors.files.listing import Folder, Found
from springtide.connectors.files.positions import Cutting, Piece
from springtide.connectors.files.seen import MEND, Entry, Seen
from springtide.errors import DamageError, RunError
from springtide.model.source import Enumerator, Position, Range, Waiting
from springtide.once import Once

BATCHES_TO_RETAIN = 3
"""A start may replay the last batch; one more can be taken back."""
REST_S, REST_STORE_S = 0.1, 1.0
"""After a listing, do not list again for this time, of a folder and of an object store, where each listing is paid for. Spark
asks every 10 ms while nothing comes."""
REST_SHARE = 4
"""The same in durations of the last listing: a folder of many files takes a fifth of a core at most."""
GO_ON = 'or read on with on_data_loss="go on", which counts what is lost'

UNKNOWN_SIZE = -1
"""The size of a file that an earlier version read: Spark's log does not have it."""

_log = logging.getLogger(__name__)


class SparksFile(NamedTuple):
    """A file that Spark's own file source has read. ``batch``: the entry of its log."""

    path: str
    mtime: int
    batch: int


class FilesEnumerator(Enumerator):
    """Lists the folder when ``end`` is called, unless it has just done so. A file is new if its path is not in the list."""

    def __init__(
        self, folder: Folder, format: str, header: bool, seen: Seen, max_files: int | None, lenient: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._folder, self._format, self._header, self._seen = folder, format, header, seen
        self._max_files, self._lenient = max_files, lenient
        self._cutting = Cutting(format)
        self._present: Sequence[Found] = ()
        self._ends: deque[int] = deque(maxlen=BATCHES_TO_RETAIN)
        self._told = Once()
        self._clock = clock
        self._end: Position | None = None  # by the last listing
        self._rests_until = 0.0

    def first(self) -> Position:
        return {"next": 0, "at": 0, "list": 0}

    def end(self, since: Position) -> Position:
        end = self._end
        if end is not None and self._clock() < self._rests_until and end["next"] >= self._place(since)["next"]:
            return end
        began = self._clock()
        self._end = self._listed(since)
        took = self._clock() - began
        self._rests_until = began + took + max(REST_S if self._folder.is_local else REST_STORE_S, REST_SHARE * took)
        return self._end

    def _listed(self, since: Position) -> Position:
        found = sorted(self._folder.listed(), key=lambda each: (each.mtime, each.path))
        with self._seen.locked():
            self._check_unchanged(found, self._place(since)["next"])
            new = [each for each in found if each.path not in self._seen.known]
            if new:
                entries, sampled = counted(self._folder, self._format, new, self._seen.sampled, self._header)
                if entries:
                    self._seen.add(entries, sampled)
            self._present = found
            return self._position(self._seen.next, 0)

    def _check_unchanged(self, found: Sequence[Found], read: int) -> None:
        """Notice files that grew after they were read. Their readers notice changes of those that wait."""
        pending = {entry.path for entry in self._seen.entries(read, self._seen.next)} if read < self._seen.next else set()
        for now in found:
            before = self._seen.known.get(now.path)
            if before is None or before[1] in (now.size, UNKNOWN_SIZE) or now.path in pending:
                continue
            what = (
                f"{self._folder.shown(now.path)} changed after it was read: it had {before[1]:,} bytes, and has {now.size:,};"
                " what was added is not read"
            )
            if not self._lenient:
                raise RunError(f"{what}. Write new records to a new file, and restore or remove this one, {GO_ON}")
            if self._told.begins((now.path, now.size)):
                _log.warning("%s", what)

    def check(self, position: Position) -> None:
        try:
            self._seen.refresh()
        except DamageError as error:
            if position != self.first():
                raise
            _log.warning("%s; no batch has read a file yet, so the list is made anew", error)
            self._seen.clear()
        self._place(position)

    def count(self, since: Position, until: Position) -> int | None:
        rows = [self._cutting.rows(piece) for piece in self._pieces(since, until)]
        return None if None in rows else sum(row for row in rows if row is not None)

    def waiting(self, since: Position, until: Position) -> Waiting:
        pieces = self._pieces(since, until)
        return Waiting(
            self.count(since, until), len({piece.number for piece in pieces}), sum(map(self._cutting.bytes, pieces)),
            exact=all(piece.entry.exact for piece in pieces),
        )  # fmt: skip

    def limited(self, since: Position, end: Position, most: int) -> Position:
        taken = self._cutting.taken(self._pieces(since, end), max(1, most), self._max_files)
        return end if taken is None else self._position(*taken)

    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        dealt = self._cutting.dealt(self._pieces(since, until), max(1, tasks))
        return [{"files": [self._part(piece) for piece in held]} for held in dealt]

    def _part(self, piece: Piece) -> list[Any]:
        whole = (piece.first, piece.last) == (0, self._cutting.units(piece.entry))
        cut = None if whole else [piece.first, piece.last]
        return [piece.entry.path, piece.entry.mtime, piece.entry.size, cut, self._cutting.rows(piece)]

    def committed(self, until: Position) -> None:
        number = self._place(until)["next"]
        if not self._ends or self._ends[-1] != number:
            self._ends.append(number)
        if len(self._ends) == BATCHES_TO_RETAIN and self._present:
            with self._seen.locked():
                self._seen.forget(self._ends[0], self._present)

    # Checkpoints of earlier versions

    def knows(self, position: Position) -> bool:
        """Whether the list has what Spark's file source had read up to its position."""
        self._seen.refresh()
        return str(position["logOffset"]) in self._seen.spark

    def adopt(self, files: Sequence[SparksFile], last: int) -> None:
        """Put the files that Spark's file source had read into the list, so that none is read twice. ``last``: its position."""
        with self._seen.locked():
            entries, ends = [], dict[str, int]()
            start = self._seen.next
            for number, file in enumerate(files, start=start):
                ends.setdefault(str(file.batch - 1), number)
                entries.append(self._adopted(file, waits=file.batch >= last))
            self._seen.add(entries, spark={**ends, str(last): start + len(entries)})

    def _adopted(self, file: SparksFile, waits: bool) -> Entry:
        name = file.path.removeprefix(self._folder.root + "/")
        now = self._folder.look(name) if waits else None
        if now is None:
            return Entry(name, file.mtime, UNKNOWN_SIZE)
        entries, _ = counted(self._folder, self._format, [now], self._seen.sampled, self._header)
        return entries[0] if entries else Entry(*now)

    # Positions

    def _pieces(self, since: Position, until: Position) -> list[Piece]:
        start, end = self._place(since), self._place(until)
        return self._cutting.pieces(self._entries(start["next"], end), start, end)

    def _entries(self, first: int, end: Mapping[str, Any]) -> list[Entry]:
        return self._seen.entries(first, end["next"] + (1 if end["at"] else 0))

    def _position(self, number: int, at: int) -> Position:
        return {"next": number, "at": at, "list": self._seen.checksum(number)}

    def _place(self, position: Position) -> Mapping[str, Any]:
        """A position, checked against the list. Spark's own positions are those of checkpoints of earlier versions."""
        if "logOffset" in position:
            number = self._seen.spark.get(str(position["logOffset"]))
            if number is None:
                raise DamageError(
                    self._seen.folder, f"does not know what Spark's file source read up to its entry {position}", MEND
                )
            return {"next": number, "at": 0, "list": self._seen.checksum(number)}
        number, begun = position["next"], position["next"] + (1 if position["at"] else 0)
        if begun > self._seen.next:
            self._seen.refresh()
        found = self._seen.checksum(number)
        if begun > self._seen.next:
            gone = f"is gone: the list of files ends at {self._seen.next}, but batches have read {begun}"
            raise DamageError(self._seen.following, gone, MEND)
        if found is not None and found != position["list"]:
            raise DamageError(self._seen.folder, "lists other files than this checkpoint has read", MEND)
        return position
