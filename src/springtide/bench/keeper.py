"""A server in a process of its own, which ends with the process that started it, even if that one is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = '"$@" </dev/null & echo $!; read -r _; kill -9 $! 2>/dev/null; wait'
"""A shell keeps the server: when the pipe to the shell closes, for whatever reason, the shell kills the server."""

LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that systems give to clients, so that nobody takes the port of a server that is down for a moment."""


class Kept:
    """A running server process; ``log`` gets what it prints."""

    def __init__(self, command: Sequence[str | os.PathLike[str]], log: Path, environ: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            self._shell = subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", _SCRIPT, "keeper", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=environ, start_new_session=True,
            )  # fmt: skip
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def running(self) -> bool:
        """Whether the process lives: the shell leaves one that has ended as a zombie."""
        import psutil

        try:
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        """A signal to the server, for example SIGSTOP and SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.wait()
        self._shell.stdout.close()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(LOWEST, HIGHEST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
