"""A process that gets questions as lines on its standard input, and answers as lines on its standard output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from springtide.control.plane.wire import decoded, encoded

COMMAND = (sys.executable, "-P", "-m", "springtide.control.plane.served")
"""``-P``: otherwise a file of the working directory could replace a standard module of the same name."""

MAX_ANSWER_BYTES = 64 * 2**20
"""Limits the length of an answer. The state of 1,000 operators has some MB; a longer answer probably never ends."""

REAP_TIMEOUT_S = 5.0
"""Wait at most this long for a killed process. It ends at once, unless the kernel cannot end it; then it is left behind."""

NICENESS = 10
"""Lowers the priority of the process: batches come first, also before its start, whose imports take a second of a core."""


class Lost(Exception):
    """The process no longer answers; the text says why."""


class Child:
    """A process. ``ask`` waits no longer than its timeout, whatever the process does with its pipes.

    The process has its own session: Ctrl-C reaches the driver only, and its children end with it. It can import whatever this
    process can.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        try:
            self._process = subprocess.Popen(  # noqa: S603  the command is our own
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        except OSError as fault:  # no memory, or too many processes
            raise Lost(f"it could not be started: {fault}") from None
        with contextlib.suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._in, self._out):
            os.set_blocking(pipe, False)
        self._read = bytearray()
        self._ending, self._killed = threading.Lock(), False

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, document: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a document and wait for the answer. Raises Lost without a valid answer in time."""
        deadline = time.monotonic() + timeout_s
        self._write(encoded({**document, "timeout_s": timeout_s}), deadline, timeout_s)
        line = self._line(deadline, timeout_s)
        try:
            return decoded(line)
        except ValueError as fault:
            raise Lost(f"it answered nonsense, {line[:80]!r}: {fault}") from None

    def check(self) -> None:
        """Raises Lost when it died, or wrote without a question."""
        if self._ready(self._out, select.POLLIN, 0.0):
            self._receive()
            raise Lost(f"it wrote without a question: {bytes(self._read[:80])!r}")

    def end(self) -> int | None:
        """Kill it and its children; returns its exit code, negative for a signal. Any thread may call it, repeatedly."""
        with self._ending:
            if not self._killed:  # once: its pid may be reused
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._killed = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_TIMEOUT_S)
            return self._process.returncode

    def close(self) -> None:
        """Close the pipes of a process that has ended. Only the thread that calls ``ask`` may call it."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _write(self, line: bytes, deadline: float, timeout_s: float) -> None:
        rest = memoryview(line)
        while rest:
            if not self._ready(self._in, select.POLLOUT, deadline - time.monotonic()):
                raise Lost(f"it hangs: it did not read its question in {timeout_s:g} s")
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._ended() from None

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if searched > MAX_ANSWER_BYTES:
                raise Lost(f"it answered nonsense: over {MAX_ANSWER_BYTES:,} bytes, and no end")
            if not self._ready(self._out, select.POLLIN, deadline - time.monotonic()):
                raise Lost(f"it hangs: no answer in {timeout_s:g} s")
            self._receive()
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def _receive(self) -> None:
        try:
            came = os.read(self._out, 2**20)
        except BlockingIOError:
            return
        if not came:
            raise self._ended()
        self._read += came

    def _ended(self) -> Lost:
        """It has closed its pipes; its exit code follows a moment later."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_TIMEOUT_S)
        return Lost("it ended")

    def _ready(self, pipe: int, event: int, timeout_s: float) -> bool:
        """Whether a pipe is ready or broken. ``select`` would be limited to 1,024 files."""
        poll = select.poll()
        poll.register(pipe, event)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
