"""The processes of a job: the Python driver, its JVM, the Python workers, the executors."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from crash import job, outputs
from crash.job import Settings

PATIENCE_S = 600.0
"""How long anything may take before a test gives up; many times what it takes on an idle machine."""


class Job:
    """A job's process, with all that it started. Started again, it goes on from the same checkpoint."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()
        Path(settings.root).mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return Path(self.settings.root) / "log.txt"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Every start wants another plan than the one before, so that a replay shows whose plan it took."""
        settings = replace(self.settings, max_slots=self.settings.max_slots - self.starts % 3)
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, job.__file__], env={**os.environ, **settings.environment()}, cwd=settings.root,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait_until(self, there: Callable[[], bool], what: str) -> bool:
        """Whether it came about before the driver ended."""
        end = time.monotonic() + PATIENCE_S
        while not there():
            if self.exit_code() is not None:
                return there()
            assert time.monotonic() < end, f"{what}: not within {PATIENCE_S:.0f} s\n{self.tail()}"
            time.sleep(0.01)
        return True

    def wait(self) -> int:
        """Its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {PATIENCE_S:.0f} s\n{self.tail()}") from None

    def run_to_the_end(self) -> None:
        """Start it as often as it takes; only a kill may end it otherwise than well."""
        while True:
            code = self.wait()
            if code == 0:
                return
            assert code == -9, f"the job ended with {code}\n{self.tail()}"
            self.start()

    def jvm(self) -> psutil.Process | None:
        found = [p for p in self._family() if p.ppid() == self.pid and "java" in p.name()]
        return found[0] if found else None

    def workers(self) -> list[psutil.Process]:
        """The Python workers that run tasks: the children of the daemon that forks them."""
        family = self._family()
        daemons = {p.pid for p in family if "springtide.spark.daemon" in p.cmdline()}
        return [p for p in family if p.pid not in daemons and p.ppid() in daemons]

    def helpers(self) -> list[psutil.Process]:
        """The other Python processes of the JVM's: those that plan the source's batches, and the daemon."""
        workers = self.workers()
        return [p for p in self._family() if "python" in p.name() and p.pid != self.pid and p not in workers]

    def executors(self) -> list[psutil.Process]:
        return [p for p in self._family() if any("CoarseGrainedExecutorBackend" in word for word in p.cmdline())]

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            family = [root, *root.children(recursive=True)]
            self._seen.update(family)
            return [p for p in family if _is_there(p)]
        return []

    def tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])

    def end(self) -> None:
        """Leave nothing behind, also nothing that a killed driver has orphaned."""
        self._family()
        for process in self._seen:
            kill(process)
        if self._process is not None:
            self._process.wait()


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and bool(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def kill(*victims: psutil.Process) -> int:
    """SIGKILL to all at once; how many of them were there."""
    hit = 0
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            hit += 1
    return hit


@contextlib.contextmanager
def started(settings: Settings) -> Iterator[Job]:
    running = Job(settings)
    running.start()
    try:
        yield running
    finally:
        running.end()


VICTIMS: dict[str, Callable[[Job, random.Random], list[psutil.Process]]] = {
    "driver": lambda running, rng: [psutil.Process(running.pid)],
    "jvm": lambda running, rng: [p for p in [running.jvm()] if p],
    "both": lambda running, rng: [psutil.Process(running.pid), *(p for p in [running.jvm()] if p)],
    "worker": lambda running, rng: rng.sample(running.workers(), min(1, len(running.workers()))),
    "helper": lambda running, rng: rng.sample(running.helpers(), min(1, len(running.helpers()))),
}
"""Whom a kill hits, chosen at the instant of the kill."""


@dataclass(frozen=True)
class Kill:
    """One kill: how many batches were committed, and what the batch after them had come to."""

    victim: str
    batches: int
    phase: str


def phase(settings: Settings) -> str:
    """What the newest batch had come to, read from the checkpoint as the kill left it.

    running: planned, nothing staged; staged: files written, not committed; committed: the manifest is there, the files
    are not yet all visible; published: they are, but Spark does not know that the batch is over; between: it does.
    """
    planned, done = outputs.plans(settings), outputs.manifests(settings)
    newest = max(planned, default=-1)
    if newest not in done:
        staged = settings.output.glob(f"*/_springtide/*/epoch-*/part-{newest:08d}-*")
        return "staged" if any(staged) else "running"
    if any(Path(receipt["staged"]).exists() for receipt in done[newest]["receipts"]):
        return "committed"
    return "between" if (settings.checkpoint / "spark" / "commits" / str(newest)).exists() else "published"
