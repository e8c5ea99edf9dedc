"""The Python workers as the driver sees them: where each one is, which are stuck, and which died at a record."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from springtide.spark.shared.progress import FAULT, PAGE_BYTES, Place, parse


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

    def busy(self, batch: int) -> list[Worker]:
        """The workers that are in a task of a batch."""
        return [one for one in self._read(batch) if one.alive and one.batch == batch]

    def dead(self, batch: int | None) -> list[Worker]:
        """The workers that died in a task of a batch."""
        return [one for one in self._read() if not one.alive and one.batch == batch]

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

    def _read(self, batch: int | None = None) -> Iterator[Worker]:
        """The workers that were in a task when last heard of: they are still, or died in it. The pages of workers that ended
        without a task, or in one before ``batch``, are removed: Spark may be told to start a worker for every task."""
        with contextlib.suppress(OSError):  # the folder could not be made
            for path in sorted(self._folder.iterdir()):
                with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or no page
                    worker, alive = _read(path)
                    if not alive and (worker is None or (batch is not None and worker.batch < batch)):
                        path.unlink()
                        path.with_name(path.name + FAULT).unlink()
                    elif worker is not None:
                        yield worker


def _read(path: Path) -> tuple[Worker | None, bool]:
    """What a page tells, None of a worker without a task; and whether the worker lives."""
    host, _, pid = path.name.rpartition("-")
    number = int(pid)
    with path.open("r+b") as file:
        found = parse(file.read(PAGE_BYTES))
        alive = _is_locked(file.fileno())
    if found is None:
        return None, alive
    fault = None if alive else _fault(path.with_name(path.name + FAULT))
    return Worker(host, number, *found, alive, fault), alive


def _is_locked(file: int) -> bool:
    """Whether another process holds the lock, which ends with that process."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _fault(path: Path) -> str | None:
    """What Python wrote when the process got a fatal signal, in a line: the signal, and where the user's function was."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    named = re.search(r"Fatal Python error: (.+)", text)
    if named is None:
        return None
    frames = re.findall(r'File "(.+)", line (\d+)', text)  # the innermost first
    users = list(itertools.takewhile(lambda frame: "/springtide/spark/" not in frame[0], frames)) or frames
    return named[1] + (f" in {users[-1][0]}, line {users[-1][1]}" if users else "")


def _is_python_worker(pid: int) -> bool:
    """Whether a process of this host is one that Spark's daemon forked, where the system tells."""
    try:
        return b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()
