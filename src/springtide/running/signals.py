"""SIGTERM and Ctrl-C end a run between two batches."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C let the batch finish; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def finish(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in before:
        signal.signal(number, finish)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
