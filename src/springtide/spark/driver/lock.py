"""The lock that admits a single driver to a checkpoint."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

from springtide.errors import CheckpointError


class Lock:
    """A file in the checkpoint ``root`` that its driver locks; the kernel releases it when the process dies."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root, self._path = root, path
        self._lock: IO[str] | None = None

    def take(self) -> None:
        lock = self._path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # lockf would admit two drivers in the same process
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "an unknown process"
            lock.close()
            raise CheckpointError(
                f"checkpoint {self._root} is in use by {holder}; stop that run first, or give another checkpoint"
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
