"""The segments that make up the state of an operator after a batch: runs, newest first. Part of the batch's manifest.

A batch, or a merge of consecutive batches, writes a run: one or more segments with disjoint shards. The newest run that has
a key defines its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from springtide.errors import CheckpointError
from springtide.model.names import ALLOWED, is_plain
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out

if TYPE_CHECKING:
    from springtide.spark.state.receipt import StateReceipt

SUFFIX = ".state"
"""Suffix of the names of segments."""
SEEDED = "-seed-"
"""Part of the names of imported segments."""
FEW = 8
"""Merge only with at least this many runs. A lookup searches every run for every key, in about 20 µs."""
GROWN = 2
"""Merge a run with the newer runs if it has at most this many times their bytes: each byte is then written log₂(n) times."""
MANY = 32
"""With more runs than this, merge all, whatever their sizes."""


@dataclass(frozen=True)
class File:
    """One segment."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class SegmentRun:
    """The changes of the batches from ``first`` to ``last``, in files with disjoint shards.

    ``before``: the runs that it was merged from. They are retained with it, and replace it if its file is damaged.
    """

    first: int
    last: int
    files: tuple[File, ...]
    before: tuple[SegmentRun, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class Catalog:
    """The state of one operator after a batch. ``keys``: the number of keys. ``hashing``: how they were hashed, see
    ``hashing_mark``; "" for state of earlier versions."""

    runs: tuple[SegmentRun, ...] = ()  # the newest first
    keys: int = 0
    hashing: str = ""

    def after(self, batch: int, receipts: Iterable[StateReceipt]) -> Catalog:
        """The catalog with the files that the tasks of a batch have written."""
        receipts = list(receipts)
        files = tuple(receipt.file for receipt in receipts if receipt.file is not None)
        keys = self.keys + sum(receipt.added - receipt.removed for receipt in receipts)
        return replace(self, runs=(SegmentRun(batch, batch, files), *self.runs) if files else self.runs, keys=keys)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)

    @property
    def names(self) -> frozenset[str]:
        """The names of all files that are in use."""
        return frozenset(file.name for run in self.runs for part in (run, *run.before) for file in part.files)

    def merge_due(self) -> tuple[SegmentRun, ...]:
        """The runs to merge into one, newest first; empty while a merge would not pay."""
        newer, count = 0, 0
        for run in self.runs:
            if count and run.bytes > GROWN * newer and len(self.runs) <= MANY:
                break
            newer, count = newer + run.bytes, count + 1
        return self.runs[:count] if count >= FEW else ()

    def merged(self, runs: Sequence[SegmentRun], files: Iterable[File], expired: int = 0) -> Catalog:
        """Replace runs by their merge, which dropped ``expired`` keys; unchanged if one of the runs is gone."""
        place = self.runs.index(runs[0]) if runs[0] in self.runs else -1
        if place < 0 or self.runs[place : place + len(runs)] != tuple(runs):
            return self
        new = SegmentRun(runs[-1].first, runs[0].last, tuple(files), tuple(replace(run, before=()) for run in runs))
        rest = self.runs[:place], self.runs[place + len(runs) :]
        return replace(self, runs=(*rest[0], *((new,) if new.files else ()), *rest[1]), keys=self.keys - expired)

    def restored(self, run: SegmentRun) -> Catalog:
        """Replace a run by the runs that it was merged from."""
        place = self.runs.index(run)
        return replace(self, runs=(*self.runs[:place], *run.before, *self.runs[place + 1 :]))

    def to_json(self) -> dict[str, Any]:
        return {"keys": self.keys, "runs": [_run_to_json(run) for run in self.runs], "hashing": self.hashing}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Catalog:
        runs = tuple(_run_from_json(run) for run in document["runs"])
        return cls(runs, document["keys"], document.get("hashing", ""))


def _run_to_json(run: SegmentRun) -> list[Any]:
    files = [[file.name, file.bytes, file.rows] for file in run.files]
    return [run.first, run.last, files, list(map(_run_to_json, run.before))]


def _run_from_json(document: Sequence[Any]) -> SegmentRun:
    first, last, files, before = document
    for name, *_ in files:
        if not is_plain(name):  # it could name a file in another folder, to be read and later removed
            raise CheckpointError(
                f"the newest manifest, batch {last} or later, names the state file {name!r}, and {ALLOWED}; it was changed from"
                f" outside. {ways_out(PUT_BACK, ANEW)}"
            )
    return SegmentRun(first, last, tuple(File(*file) for file in files), tuple(map(_run_from_json, before)))
