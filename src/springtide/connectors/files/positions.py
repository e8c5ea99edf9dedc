"""The arithmetic of positions: which parts of which files a batch reads. Pure functions of the list of files.

A position is ``{"next": 17, "at": 0, "list": 3735928559}``: 17 files of the list are read, and of the next one ``at`` row
groups, or bytes of uncompressed JSON lines. ``list`` is the checksum of the first 17 entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from springtide.connectors.files.listing import codec_of
from springtide.connectors.files.seen import Entry

MIN_CUT_BYTES = 1 << 20
"""Files of lines are cut into parts of at least this size: a smaller part reads faster than a task starts."""


class Piece(NamedTuple):
    """A part of a file: row groups, bytes, or the whole file as the only unit."""

    number: int
    entry: Entry
    first: int
    last: int


class Cutting:
    """How the files of a format can be cut."""

    def __init__(self, format: str) -> None:
        self._format = format

    def by_bytes(self, entry: Entry) -> bool:
        return self._format == "json" and entry.size >= 2 * MIN_CUT_BYTES and codec_of(entry.path) is None

    def units(self, entry: Entry) -> int:
        """The number of units that the file can be cut into."""
        return entry.size if self.by_bytes(entry) else max(1, len(entry.groups))

    def rows(self, piece: Piece) -> int | None:
        """The number of records of a piece; None if it is unknown."""
        if piece.entry.groups:
            return sum(piece.entry.groups[piece.first : piece.last])
        if piece.entry.rows is None or not self.by_bytes(piece.entry):
            return piece.entry.rows
        return round(piece.entry.rows * (piece.last - piece.first) / piece.entry.size)

    def bytes(self, piece: Piece) -> int:
        return round(piece.entry.size * (piece.last - piece.first) / max(1, self.units(piece.entry)))

    def pieces(self, entries: Sequence[Entry], since: Mapping[str, Any], until: Mapping[str, Any]) -> list[Piece]:
        """What lies between two positions. ``entries``: the files from the first that ``since`` has not read as a whole."""
        found = []
        for number, entry in enumerate(entries, start=since["next"]):
            first = since["at"] if number == since["next"] else 0
            last = self.units(entry) if number < until["next"] else until["at"]
            if number <= until["next"] and first < last:
                found.append(Piece(number, entry, first, last))
        return found

    def taken(self, pieces: Sequence[Piece], most: int, files: int | None) -> tuple[int, int] | None:
        """How far a batch of about ``most`` records goes: the number of the file and the units of it. None: all.

        Whole files, the oldest first; a file that exceeds the limit is cut if its format allows. Something is always taken.
        """
        total = 0
        for index, piece in enumerate(pieces):
            rows = self.rows(piece)
            if files is not None and index >= files:
                return piece.number, piece.first
            if rows is not None and total + rows <= most:
                total += rows
                continue
            cut = self._cut(piece, most - total) if rows else 0
            if index == 0 and not cut:  # unknown, or too large and not to be cut
                cut = self._least(piece)
            if cut >= piece.last - piece.first:
                total = most  # nothing more fits
                continue
            return piece.number, piece.first + cut
        return None

    def _cut(self, piece: Piece, rows: int) -> int:
        """The number of units of a piece with at most so many records."""
        if piece.entry.groups:
            count = 0
            for group in range(piece.first, piece.last):
                rows -= piece.entry.groups[group]
                if rows < 0:
                    break
                count += 1
            return count
        if not self.by_bytes(piece.entry) or not piece.entry.rows:
            return 0
        cut = piece.entry.size * rows // piece.entry.rows
        return cut if cut >= MIN_CUT_BYTES else 0

    def _least(self, piece: Piece) -> int:
        if piece.entry.groups:
            return 1
        return min(piece.last - piece.first, MIN_CUT_BYTES) if self.by_bytes(piece.entry) else 1

    def dealt(self, pieces: Sequence[Piece], tasks: int) -> list[list[Piece]]:
        """The pieces in at most ``tasks`` lists of about as many bytes each, in order."""
        total = sum(map(self.bytes, pieces))
        units = [unit for piece in pieces for unit in self._split(piece, max(MIN_CUT_BYTES, total // max(1, tasks)))]
        dealt: dict[int, list[Piece]] = {}
        passed = 0
        for index, unit in enumerate(units):
            size = self.bytes(unit)
            share = (2 * passed + size) * tasks // (2 * total) if total else index * tasks // len(units)
            passed += size
            held = dealt.setdefault(min(tasks - 1, share), [])
            if held and held[-1].number == unit.number:
                held[-1] = held[-1]._replace(last=unit.last)
            else:
                held.append(unit)
        return [dealt[share] for share in sorted(dealt)]

    def _split(self, piece: Piece, size: int) -> Iterator[Piece]:
        if piece.entry.groups:
            steps = range(piece.first, piece.last)
        elif self.by_bytes(piece.entry):
            steps = range(piece.first, piece.last, size)
        else:
            yield piece
            return
        for first in steps:
            yield piece._replace(first=first, last=min(piece.last, first + (steps.step or 1)))
