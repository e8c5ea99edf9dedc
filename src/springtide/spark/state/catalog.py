"""Which segments make up the state of an operator at a batch: runs, newest first. A part of the batch's manifest.

A run is what one batch, or a merge of batches that follow one another, has written: one or more segments with different shards.
The newest run that has a key says what its state is.
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
"""How the names of segments end."""
SEEDED = "-seed-"
"""What the names of imported segments hold."""
FEW = 8
"""Fewer runs than this are left alone. Every run is searched for every key, in about 20 µs."""
GROWN = 2
"""A run is merged with the newer ones if it has at most so many times their bytes: each byte is written log₂ times in all."""
MANY = 32
"""With more runs than this, all are merged, whatever their sizes."""


@dataclass(frozen=True)
class File:
    """One segment."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class Run:
    """What the batches from ``first`` to ``last`` have left, in files with different shards.

    ``before``: the runs that it was merged from, which are kept for as long as it is: if its file is damaged, they are used.
    """

    first: int
    last: int
    files: tuple[File, ...]
    before: tuple[Run, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class Catalog:
    """The state of one operator after a batch. ``keys``: how many there are. ``hashing``: how they were hashed, see
    ``hashing_mark``; "" of state that earlier versions wrote."""

    runs: tuple[Run, ...] = ()  # the newest first
    keys: int = 0
    hashing: str = ""

    def after(self, batch: int, receipts: Iterable[StateReceipt]) -> Catalog:
        """With what the tasks of a batch have written."""
        receipts = list(receipts)
        files = tuple(receipt.file for receipt in receipts if receipt.file is not None)
        keys = self.keys + sum(receipt.added - receipt.removed for receipt in receipts)
        return replace(self, runs=(Run(batch, batch, files), *self.runs) if files else self.runs, keys=keys)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)

    @property
    def names(self) -> frozenset[str]:
        """Of all files that are to stay."""
        every = [one for run in self.runs for one in (run, *run.before)]
        return frozenset(file.name for run in every for file in run.files)

    def merge_due(self) -> tuple[Run, ...]:
        """The runs that are to become one, newest first; none as long as there are few, or it would not pay."""
        newer, count = 0, 0
        for run in self.runs:
            if count and run.bytes > GROWN * newer and len(self.runs) <= MANY:
                break
            newer, count = newer + run.bytes, count + 1
        return self.runs[:count] if count >= FEW else ()

    def merged(self, runs: Sequence[Run], files: Iterable[File], expired: int = 0) -> Catalog:
        """With one run in the place of some that are still there; unchanged if one of them is not. ``expired``: keys less."""
        place = self.runs.index(runs[0]) if runs[0] in self.runs else -1
        if place < 0 or self.runs[place : place + len(runs)] != tuple(runs):
            return self
        one = Run(runs[-1].first, runs[0].last, tuple(files), tuple(replace(run, before=()) for run in runs))
        rest = self.runs[:place], self.runs[place + len(runs) :]
        return replace(self, runs=(*rest[0], *((one,) if one.files else ()), *rest[1]), keys=self.keys - expired)

    def restored(self, run: Run) -> Catalog:
        """With the runs that one was merged from in its place."""
        place = self.runs.index(run)
        return replace(self, runs=(*self.runs[:place], *run.before, *self.runs[place + 1 :]))

    def to_json(self) -> dict[str, Any]:
        return {"keys": self.keys, "runs": [_run_to_json(run) for run in self.runs], "hashing": self.hashing}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Catalog:
        runs = tuple(_run_from_json(run) for run in document["runs"])
        return cls(runs, document["keys"], document.get("hashing", ""))


def _run_to_json(run: Run) -> list[Any]:
    files = [[file.name, file.bytes, file.rows] for file in run.files]
    return [run.first, run.last, files, [_run_to_json(one) for one in run.before]]


def _run_from_json(document: Sequence[Any]) -> Run:
    first, last, files, before = document
    for name, *_ in files:
        if not is_plain(name):  # it would be read from, and later removed from, another folder than the operator's
            raise CheckpointError(
                f"the newest manifest, batch {last} or later, names the state file {name!r}, and {ALLOWED}; it was changed from"
                f" outside. {ways_out(PUT_BACK, ANEW)}"
            )
    return Run(first, last, tuple(File(*file) for file in files), tuple(_run_from_json(one) for one in before))
