"""A run's folder: batches and decisions as JSON lines while it runs, one document before it and one after it.

    run.json         the topology's name, the policy and the settings at the start
    batches.jsonl    one line for every committed batch
    decisions.jsonl  one line for every decision, with its reason
    summary.json     the totals

Only the user who runs it can read the folder: spark.log and the reasons may have pieces of records, or of settings.

Lines rather than one document, so that a run that was killed leaves all that it had done: at worst the last
line is torn. Such a line is passed over on reading, and cut off before the next one is appended.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from springtide.errors import OptionError
from springtide.model.report import BatchReport

BATCHES = "batches.jsonl"
DECISIONS = "decisions.jsonl"
RUN = "run.json"
SUMMARY = "summary.json"

PIECE = 64 * 1024
"""Bytes that the search for the last newline reads at a time: one or two lines."""


class RunFolder:
    """The record of one run, old or under way. Any thread may write to it.

    ``batch`` and ``decision`` return when the line is with the operating system, so that it outlives this process. They
    raise OSError when the disk refuses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._mended: set[str] = set()

    @classmethod
    def create(cls, root: Path, topology: str, now: float) -> RunFolder:
        """A new folder ``<root>/<topology>-<YYYYmmdd-HHMMSS>`` in local time.

        ``now`` is in seconds since 1970.
        Two runs that start in the same second do not share a folder: the second one's name ends in ``-2``.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"runs={str(root)!r}: no folder can be made there ({error.strerror}); give another") from None
        name = f"{topology}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
        number = 1
        while True:
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(mode=0o700)  # not a test and then a mkdir: another process may come between the two
            except FileExistsError:
                number += 1
            else:
                return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that has ended, or that is still under way. Nothing in it is changed."""
        if not any((path / name).is_file() for name in (RUN, BATCHES, DECISIONS, SUMMARY)):
            raise OptionError(
                f"{str(path)!r} is not a run's folder: it has none of {RUN}, {BATCHES}, {DECISIONS} and"
                f" {SUMMARY}; give the run_dir that the run printed"
            )
        return cls(path)

    def batch(self, report: BatchReport) -> None:
        """Record a committed batch."""
        self._append(BATCHES, report.to_json())

    def decision(self, entry: Mapping[str, object]) -> None:
        """Record what was decided, and why."""
        self._append(DECISIONS, entry)

    def write_run(self, document: Mapping[str, object]) -> None:
        """Record what is about to run."""
        self._write(RUN, document)

    def write_summary(self, document: Mapping[str, object]) -> None:
        """Record the totals."""
        self._write(SUMMARY, document)

    def batches(self, last: int | None = None) -> list[BatchReport]:
        """Every batch recorded, or the ``last`` ones, in the order in which they were committed.

        A line is 27 kB for 100 tasks: use ``each_batch`` where one is needed at a time.
        """
        lines = self._lines(BATCHES)
        return [_report(line) for line in (lines if last is None else deque(lines, maxlen=last))]

    def each_batch(self) -> Iterator[BatchReport]:
        """Every batch recorded, one in memory at a time, in the order in which they were committed."""
        return map(_report, self._lines(BATCHES))

    def decisions(self) -> list[dict[str, Any]]:
        """Every decision recorded, oldest first."""
        return [line.document() for line in self._lines(DECISIONS)]

    def run(self) -> dict[str, Any] | None:
        """What was about to run; None when that was never recorded."""
        return self._document(RUN)

    def summary(self) -> dict[str, Any] | None:
        """The totals; None while the run goes on, or when it was killed."""
        return self._document(SUMMARY)

    def _append(self, name: str, document: Mapping[str, object]) -> None:
        line = _encoded(document) + b"\n"
        with self._lock, open(self.path / name, "ab", opener=owners_only) as file:
            if name not in self._mended:
                _cut_torn_line(self.path / name)
                self._mended.add(name)
            file.write(line)

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        """Whole or not at all: written beside its place, and renamed into it."""
        beside = self.path / f".{name}.part"
        with self._lock:
            with open(beside, "wb", opener=owners_only) as file:
                file.write(_encoded(document, indent=2) + b"\n")
            beside.replace(self.path / name)

    def _document(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return _decoded(path.read_bytes(), str(path)) if path.is_file() else None

    def _lines(self, name: str) -> Iterator[_Line]:
        """The whole lines of a file, read one at a time; what comes after the last newline is nothing, or a torn line."""
        path = self.path / name
        if not path.is_file():
            return
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if text.endswith(b"\n"):
                    yield _Line(path, number, text)


class _Line(NamedTuple):
    """A line of a file, parsed only when it is needed: parsing takes ten times as long as reading."""

    path: Path
    number: int
    text: bytes

    def document(self) -> dict[str, Any]:
        return _decoded(self.text, f"{self.path}, line {self.number}")


def _report(line: _Line) -> BatchReport:
    return BatchReport.from_json(line.document())


def owners_only(path: str, flags: int) -> int:
    """An opener that makes files which nobody but their owner can read, whatever the umask allows."""
    return os.open(path, flags, 0o600)


def finite(value: object) -> Any:
    """The same in JSON's values: null for what is not a finite number, text for what JSON has no form for.

    >>> finite({"rate": float("nan"), "degrees": (1, 2), "root": Path("runs")})
    {'rate': None, 'degrees': [1, 2], 'root': 'runs'}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [finite(item) for item in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else None
    return str(value)


def _encoded(document: Mapping[str, object], indent: int | None = None) -> bytes:
    return json.dumps(finite(document), allow_nan=False, ensure_ascii=False, indent=indent).encode()


def _decoded(text: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{where} is not JSON ({error}); the record was changed after it was written") from None
    if not isinstance(document, dict):
        raise OptionError(f"{where} is {type(document).__name__}, wanted an object; the record was changed")
    return document


def _cut_torn_line(path: Path) -> None:
    """What a killed process left after the last newline would run into the next line, and spoil it too.

    The search begins at the end: after a month the file has gigabytes.
    """
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - PIECE)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
