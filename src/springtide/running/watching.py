"""A thread that passes a run's snapshots to a view."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from springtide.control.loop import ControlLoop
from springtide.model.snapshot import Snapshot

POLL_S = 0.5
Watch = Callable[[Snapshot, float], None]
"""Gets every snapshot, with the seconds since the start."""


@contextlib.contextmanager
def watching(loop: ControlLoop, watch: Watch | None) -> Iterator[None]:
    """Pass snapshots to ``watch`` during the run."""
    if watch is None:
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def show() -> None:
        while not over.wait(POLL_S):
            if loop.snapshot is not None:
                watch(loop.snapshot, time.monotonic() - started)

    thread = threading.Thread(target=show, name="springtide-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)
