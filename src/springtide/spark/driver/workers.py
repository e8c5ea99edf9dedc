"""The Python workers on the driver: the place of each worker, whether it is alive, and why it died."""

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

from springtide.spark.shared.progress import FAULT, PAGE_BYTES, RecordPlace, parse


@dataclass(frozen=True)
class Worker:
    """A worker in a task, as read from its page."""

    host: str
    pid: int
    batch: int
    place: RecordPlace
    alive: bool
    fault: str | None = None  # the fatal signal of which it died, and the line


class Workers:
    """Reads the pages of the workers of one checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root

    def begin(self, epoch: int) -> None:
        """Make a folder for the pages of a new epoch, and remove the pages of earlier epochs."""
        self.end()
        self._folder = self.root / str(epoch)
        with contextlib.suppress(OSError):  # if the disk is full, messages lack the place of a record
            self._folder.mkdir(parents=True, mode=0o700)

    def end(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def busy(self, batch: int) -> list[Worker]:
        """The workers that are in a task of a batch."""
        return [worker for worker in self._read(batch) if worker.alive and worker.batch == batch]

    def dead(self, batch: int | None) -> list[Worker]:
        """The workers that died in a task of a batch."""
        return [worker for worker in self._read() if not worker.alive and worker.batch == batch]

    def kill(self) -> list[Worker]:
        """Kill the workers on this host that are still in a task of a cancelled job. Spark closes their sockets, but a hanging
        function does not notice that."""
        killed = []
        for worker in self._read():
            if worker.alive and worker.host == socket.gethostname() and _is_python_worker(worker.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker)
        return killed

    def _read(self, batch: int | None = None) -> Iterator[Worker]:
        """The workers that are in a task, or died in it. Removes the pages of workers that ended without a task, or in a task
        before ``batch``: Spark can be set to start a worker for every task."""
        with contextlib.suppress(OSError):  # the folder could not be made
            for path in sorted(self._folder.iterdir()):
                with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or not a page
                    worker, alive = _read(path)
                    if not alive and (worker is None or (batch is not None and worker.batch < batch)):
                        path.unlink()
                        path.with_name(path.name + FAULT).unlink()
                    elif worker is not None:
                        yield worker


def _read(path: Path) -> tuple[Worker | None, bool]:
    """The worker of a page, None if it is without a task; and whether the worker is alive."""
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
    """Whether another process has locked the file. The kernel releases the lock when that process ends."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _fault(path: Path) -> str | None:
    """The fatal signal and the line of the user's function, from the stack that Python wrote when the process died."""
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
    """Whether Spark's daemon has forked a process of this host, as far as the system has ``/proc``."""
    try:
        return b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()
