"""The folder of a run: a document at the start, JSON lines of batches and decisions, and a document at the end.

    run.json         the topology's name, the policy and the settings at the start
    batches.jsonl    a line for every committed batch
    decisions.jsonl  a line for every decision, with its reason
    summary.json     the totals

Only the user who runs it can read the folder, because spark.log and the reasons may contain parts of records or of settings.

Batches and decisions are lines, so that a killed run leaves a record of all that it did: at worst its last line is torn.
Readers skip a torn line, and a writer cuts it off before it appends.
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

CHUNK_BYTES = 64 * 1024
"""The size of a read in the search for the last newline: about two lines."""


class RunFolder:
    """The record of a run, finished or under way. Any thread may write to it.

    ``batch`` and ``decision`` return when the operating system has the line, so that it outlives this process. They raise
    OSError if the disk refuses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._mended: set[str] = set()

    @classmethod
    def create(cls, root: Path, topology: str, now: float) -> RunFolder:
        """A new folder ``<root>/<topology>-<YYYYmmdd-HHMMSS>`` in local time.

        ``now`` is in seconds since 1970. If two runs start in the same second, the name of the second folder ends in ``-2``.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"runs={str(root)!r}: cannot make that folder ({error.strerror}); give another") from None
        name = f"{topology}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
        number = 1
        while True:
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(mode=0o700)  # a check before mkdir would be a race with other processes
            except FileExistsError:
                number += 1
            else:
                return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run, finished or under way. Nothing in it is changed."""
        if not any((path / name).is_file() for name in (RUN, BATCHES, DECISIONS, SUMMARY)):
            raise OptionError(
                f"{str(path)!r} is not a run's folder: it has none of {RUN}, {BATCHES}, {DECISIONS} and"
                f" {SUMMARY}; give the run_dir that the run printed"
            )
        return cls(path)

    def batch(self, report: BatchReport) -> None:
        self._append(BATCHES, report.to_json())

    def decision(self, entry: Mapping[str, object]) -> None:
        self._append(DECISIONS, entry)

    def write_run(self, document: Mapping[str, object]) -> None:
        """Record the topology, the policy and the settings."""
        self._write(RUN, document)

    def write_summary(self, document: Mapping[str, object]) -> None:
        self._write(SUMMARY, document)

    def batches(self, last: int | None = None) -> list[BatchReport]:
        """Every recorded batch, or the ``last`` batches, in the order of their commits.

        A line has 27 kB for 100 tasks: use ``each_batch`` to read batches one at a time.
        """
        lines = self._lines(BATCHES)
        return [_report(line) for line in (lines if last is None else deque(lines, maxlen=last))]

    def each_batch(self) -> Iterator[BatchReport]:
        """Every recorded batch in the order of their commits, read one at a time."""
        return map(_report, self._lines(BATCHES))

    def decisions(self) -> list[dict[str, Any]]:
        """Every recorded decision, the oldest first."""
        return [line.document() for line in self._lines(DECISIONS)]

    def run(self) -> dict[str, Any] | None:
        """The topology, the policy and the settings; None if they were never recorded."""
        return self._document(RUN)

    def summary(self) -> dict[str, Any] | None:
        """The totals; None while the run is under way, or if it was killed."""
        return self._document(SUMMARY)

    def _append(self, name: str, document: Mapping[str, object]) -> None:
        line = _encoded(document) + b"\n"
        with self._lock, open(self.path / name, "ab", opener=owners_only) as file:
            if name not in self._mended:
                _cut_torn_line(self.path / name)
                self._mended.add(name)
            file.write(line)

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        """Write a file atomically: to a temporary name, which is then renamed."""
        beside = self.path / f".{name}.part"
        with self._lock:
            with open(beside, "wb", opener=owners_only) as file:
                file.write(_encoded(document, indent=2) + b"\n")
            beside.replace(self.path / name)

    def _document(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return _decoded(path.read_bytes(), str(path)) if path.is_file() else None

    def _lines(self, name: str) -> Iterator[_Line]:
        """The complete lines of a file, read one at a time. A line without a newline is torn, and skipped."""
        path = self.path / name
        if not path.is_file():
            return
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if text.endswith(b"\n"):
                    yield _Line(path, number, text)


class _Line(NamedTuple):
    """A line of a file. It is parsed on demand, because parsing takes ten times as long as reading."""

    path: Path
    number: int
    text: bytes

    def document(self) -> dict[str, Any]:
        return _decoded(self.text, f"{self.path}, line {self.number}")


def _report(line: _Line) -> BatchReport:
    return BatchReport.from_json(line.document())


def owners_only(path: str, flags: int) -> int:
    """An opener for files that only their owner can read, whatever the umask allows."""
    return os.open(path, flags, 0o600)


def finite(value: object) -> Any:
    """Convert a value to JSON's types: a number that is not finite becomes null, and an unsupported type becomes text.

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
    """Truncate a file after its last newline: a torn line of a killed process would spoil the next line too.

    The search begins at the end, because after a month the file has gigabytes.
    """
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - CHUNK_BYTES)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
