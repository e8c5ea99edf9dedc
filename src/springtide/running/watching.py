"""The thread that shows a run's snapshots to a view."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from springtide.control.loop import ControlLoop
from springtide.model.snapshot import Snapshot

LOOK_S = 0.5
Watch = Callable[[Snapshot, float], None]
"""Gets every snapshot, with the seconds since the start; for views."""


@contextlib.contextmanager
def watching(loop: ControlLoop, watch: Watch | None) -> Iterator[None]:
    """Show every new snapshot while the run goes on."""
    if watch is None:
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def show() -> None:
        while not over.wait(LOOK_S):
            if loop.snapshot is not None:
                watch(loop.snapshot, time.monotonic() - started)

    thread = threading.Thread(target=show, name="springtide-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)
