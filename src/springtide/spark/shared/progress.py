"""The progress of a Python worker: a page of numbers that outlives the process.

Each worker maps a small file in the checkpoint and stores the number of its current record there, in 30 ns a record.
The kernel retains the page when the process dies, and the driver can read it even while a function holds Python's
interpreter lock. The worker also locks the file; the kernel releases the lock when the process dies, so the driver can
distinguish a dead worker from a slow one, on any host, without relying on process numbers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Numbers: TypeAlias = "memoryview[int]"
INDEX, ROWS, OPERATOR, STEP, BATCH, LEVEL, GATE, TASK, BUSY = range(9)
"""The positions of the numbers in a page; see ``RecordPlace`` for their meaning."""
NUMBERS = 9
PAGE_BYTES = 8 * NUMBERS
NOWHERE = -1
"""The operator of a task between two operators; the record of an operator before its first record."""
DRAFT = ".new"
FAULT = ".fault"
"""The suffix of the file for the stack of a worker that dies of a fatal signal."""


@dataclass(frozen=True)
class RecordPlace:
    """A point in the work of one task of a batch. A repeated task passes the same points in the same order."""

    level: int
    gate: int
    task: int
    step: int  # the number of earlier operator calls of the task
    operator: int
    index: int  # of the record, from 0, among all that the operator gets in this task; for a keyed processor, of the call
    rows: int = 1  # the number of records that are processed together from there on: several for map_batches


def parse(page: bytes) -> tuple[int, RecordPlace] | None:
    """The batch and the place of a page; None if the worker has no task, or the page is incomplete."""
    if len(page) < PAGE_BYTES:
        return None
    numbers = struct.unpack(f"{NUMBERS}q", page)
    place = RecordPlace(*(numbers[field] for field in (LEVEL, GATE, TASK, STEP, OPERATOR, INDEX, ROWS)))
    return (numbers[BATCH], place) if numbers[BUSY] else None


class Crashed(Exception):
    """The error of a record that was set aside because it killed its worker."""

    def __init__(self, deaths: int) -> None:
        super().__init__(f"this record killed its Python worker {deaths} times")


class Page:
    """The page of this process. ``numbers`` is public because a method call per record would double the cost."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    @contextlib.contextmanager
    def task(self, batch: int, level: int, gate: int, task: int) -> Iterator[None]:
        """Marks a running task. The page is also cleared after an exception, which ends the task but not the worker."""
        numbers = self.numbers
        numbers[OPERATOR], numbers[INDEX], numbers[STEP] = NOWHERE, NOWHERE, 0
        numbers[BATCH], numbers[LEVEL], numbers[GATE], numbers[TASK] = batch, level, gate, task
        numbers[BUSY] = 1
        try:
            yield
        finally:
            numbers[BUSY] = 0

    @contextlib.contextmanager
    def operator(self, number: int) -> Iterator[None]:
        """Marks a running operator of the task."""
        numbers = self.numbers
        numbers[INDEX], numbers[ROWS] = NOWHERE, 1
        numbers[STEP] += 1
        numbers[OPERATOR] = number
        yield
        numbers[OPERATOR] = NOWHERE


@dataclass
class _Opened:
    """The open files of this process: a page for each checkpoint, and the file for the stack of a fatal signal."""

    pages: dict[str, tuple[int, Page]]
    faults: int | None = None


_opened = _Opened({})


def page_of(folder: str, epoch: int) -> Page:
    """The page of this process for a checkpoint's ``folder``. If it cannot be made, as on a node without that folder or with a
    full disk, the numbers are lost, and messages lack the place."""
    known = _opened.pages.get(folder)
    if known is None or known[0] != epoch:
        known = epoch, Page(_mapped(Path(folder, str(epoch))) if folder else _unmapped())
        _opened.pages[folder] = known
    return known[1]


def _unmapped() -> Numbers:
    return memoryview(bytearray(PAGE_BYTES)).cast("q")


def _mapped(folder: Path) -> Numbers:
    path = folder / f"{socket.gethostname()}-{os.getpid()}"
    draft = path.with_name(path.name + DRAFT)
    try:
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # stays open: closing it would release the lock
        os.pwrite(file, bytes(PAGE_BYTES), 0)  # allocates the disk space; later a full disk would kill the process
        _log_faults(path.with_name(path.name + FAULT))
        draft.rename(path)  # after the lock, so that a page without a lock belongs to a dead worker
        return memoryview(mmap.mmap(file, PAGE_BYTES)).cast("q")
    except OSError:
        return _unmapped()


def _log_faults(path: Path) -> None:
    """Have a fatal signal, such as a segmentation fault, write the stack to a file. A worker with several pages writes to the
    file of the newest."""
    if faulthandler.is_enabled() and _opened.faults is None:  # Spark can be set to do the same
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    faulthandler.enable(file, all_threads=False)
    if _opened.faults is not None:
        os.close(_opened.faults)
    _opened.faults = file
