"""The Python workers as the driver sees them: where each one is, which are stuck, and which died at a record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from springtide.spark.progress import FAULT, PAGE_BYTES, Place, parse


@dataclass(frozen=True)
class Worker:
    """A worker in a task, as its page had it."""

    host: str
    pid: int
    batch: int
    place: Place
    alive: bool
    fault: str | None = None  # of one that died of a fatal signal: which, and in which line


class Workers:
    """Reads the pages of the workers of one checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root

    def begin(self, epoch: int) -> None:
        """A folder for the pages of a new epoch, without those of earlier ones."""
        self.end()
        self._folder = self.root / str(epoch)
        with contextlib.suppress(OSError):  # a full disk: messages will lack the place of a record, and nothing else
            self._folder.mkdir(parents=True, mode=0o700)

    def end(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def busy(self) -> list[Worker]:
        """The workers that were in a task when last heard of: they are still, or died in it."""
        return list(self._read())

    def dead(self, batch: int | None = None) -> list[Worker]:
        """The workers that died in a task of a batch, or of any."""
        return [one for one in self._read() if not one.alive and batch in (None, one.batch)]

    def kill(self) -> list[Worker]:
        """End the workers on this host that are in a task: those that a cancelled job leaves behind. Spark closes their
        sockets, which a function that hangs does not notice."""
        killed = []
        for worker in self._read():
            if worker.alive and worker.host == socket.gethostname() and _is_python_worker(worker.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker)
        return killed

    def _read(self) -> Iterator[Worker]:
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                worker = None if path.name.endswith(FAULT) else _read(path)
                if worker is not None:
                    yield worker


def _read(path: Path) -> Worker | None:
    """A page; None of a worker without a task, or if the file is not a whole page."""
    host, _, pid = path.name.rpartition("-")
    try:
        with path.open("r+b") as file:
            found = parse(file.read(PAGE_BYTES))
            if not pid.isdigit() or found is None:
                return None
            alive = _is_locked(file.fileno())
    except OSError:
        return None
    batch, place = found
    return Worker(host, int(pid), batch, place, alive, None if alive else _fault(path.with_name(path.name + FAULT)))


def _is_locked(file: int) -> bool:
    """Whether another process holds the lock, which ends with that process."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _fault(path: Path) -> str | None:
    """What Python wrote when the process got a fatal signal, in a line: the signal and the innermost frame."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    named, frame = re.search(r"Fatal Python error: (.+)", text), re.search(r'File "(.+)", line (\d+)', text)
    if named is None:
        return None
    return named[1] + (f" in {frame[1]}, line {frame[2]}" if frame else "")


def _is_python_worker(pid: int) -> bool:
    """Whether a process of this host is one that Spark's daemon forked, where the system tells."""
    try:
        return b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()
