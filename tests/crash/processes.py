"""The processes of a job: the Python driver, its JVM, the Python workers, the executors."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from crash import outputs
from crash.job import Settings

PATIENCE_S = 300.0
"""How long anything may take before a test gives up; many times what it takes on an idle machine."""

STARTING_S = 6.0
"""About what a job takes to its first batch."""


@dataclass(frozen=True)
class Member:
    """A process as it was found: looked at once, because it may be gone the next instant."""

    process: psutil.Process
    parent: int
    command: tuple[str, ...]

    def runs(self, program: str) -> bool:
        """Whether it is of that program: the executable's name, a module, or a Java class."""
        if program in ("java", "python"):
            return bool(self.command) and program in Path(self.command[0]).name
        return any(word.endswith(program) for word in self.command)


class Job:
    """A job's process, with all that it started. Started again, it goes on from the same checkpoint."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._root: psutil.Process | None = None  # knows when another process has got the same number
        self._seen: set[psutil.Process] = set()
        self._workers: set[psutil.Process] = set()
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
                [sys.executable, settings.script], env={**os.environ, **settings.environment()}, cwd=settings.root,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._root = psutil.Process(self._process.pid)

    def signal(self, number: int, to_group: bool = False) -> None:
        """A signal to the driver alone, or, as a terminal's Ctrl-C, to its whole process group."""
        (os.killpg if to_group else os.kill)(self.pid, number)

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

    def run_to_the_end(self, failures: int = 0) -> None:
        """Start it as often as it takes. Only a kill may end it otherwise than well, or so many failures."""
        while True:
            code = self.wait()
            if code == 0:
                return
            failures -= code != -signal.SIGKILL
            assert failures >= 0, f"the job ended with {code}\n{self.tail()}"
            self.start()

    def driver(self) -> list[psutil.Process]:
        return [one.process for one in self._family() if one.process == self._root]

    def jvm(self) -> list[psutil.Process]:
        return [one.process for one in self._family() if one.parent == self.pid and one.runs("java")]

    def workers(self) -> list[psutil.Process]:
        """The Python workers that run tasks. A daemon forks them, so that they have its command line; when it is killed they go
        on, as orphans."""
        forked = [one for one in self._family() if one.runs("python") and one.runs("springtide.spark.private.daemon")]
        daemons = {one.process.pid for one in forked}
        self._workers |= {one.process for one in forked if one.parent in daemons}
        return sorted((worker for worker in self._workers if _runs(worker)), key=lambda worker: worker.pid)

    def helpers(self) -> list[psutil.Process]:
        """The other Python processes of the JVM's: those that plan the source's batches, and the daemons."""
        tasks = {worker.pid for worker in self.workers()} | {self.pid}
        return [one.process for one in self._family() if one.runs("python") and one.process.pid not in tasks]

    def executors(self) -> list[psutil.Process]:
        return [one.process for one in self._family() if one.runs("CoarseGrainedExecutorBackend")]

    def _family(self) -> list[Member]:
        """The driver and all that descends from it and still runs."""
        family = []
        assert self._root is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._root, *self._root.children(recursive=True)):
                self._seen.add(process)
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        family.append(Member(process, process.ppid(), tuple(process.cmdline())))
        return family

    def tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])

    def end(self) -> None:
        """Leave nothing behind, also nothing that a killed driver has orphaned."""
        self._family()
        for process in self._seen:
            kill(process)
        if self._process is not None:
            self._process.wait()


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
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


def victims(running: Job, kind: str, rng: random.Random) -> list[psutil.Process]:
    """Whom a kill hits, chosen at the instant of the kill; nobody when there is no such process just now."""
    if kind == "both":
        return [*running.driver(), *running.jvm()]
    found = {"driver": running.driver, "jvm": running.jvm, "worker": running.workers, "helper": running.helpers}[kind]()
    return rng.sample(found, min(1, len(found)))


@dataclass(frozen=True)
class Kill:
    """One kill: the newest batch at that instant, and what it had come to."""

    victim: str
    batch: int
    phase: str


def phase(settings: Settings, newest: int) -> str:
    """What the newest batch had come to, read from the checkpoint as the kill left it.

    starting: there is none yet. running: begun, nothing staged. staged: files written, not committed. committed: the
    manifest is there, the files are not yet all visible. published: they are, but Spark does not know that the batch
    is over. between: it does.
    """
    if newest < 0:
        return "starting"
    manifest = outputs.manifests(settings).get(newest)
    if manifest is None:
        staged = settings.output.glob(f"*/_springtide/*/epoch-*/*-{newest:08d}-*")
        return "staged" if any(staged) else "running"
    if any(outputs.staged(settings, receipt).exists() for receipt in manifest["receipts"]):
        return "committed"
    return "between" if (settings.checkpoint / "spark" / "commits" / str(newest)).exists() else "published"


def strike(running: Job, kind: str, rng: random.Random) -> Kill | None:
    """Kill at a random instant; None if the job ended before.

    The instant is drawn from the two batches after the next; in half of the cases from the seconds before that, in which
    Spark starts or the driver recovers.
    """
    settings = running.settings
    already = len(outputs.manifests(settings))
    early = time.monotonic() + rng.uniform(0.0, STARTING_S) if rng.random() < 0.5 else math.inf

    def went_on() -> bool:
        return len(outputs.manifests(settings)) > already

    if not running.wait_until(lambda: went_on() or time.monotonic() > early, "a batch"):
        return None
    if went_on():
        time.sleep(rng.uniform(0.0, 2 * batch_seconds(settings)))
    if not running.wait_until(lambda: kill(*victims(running, kind, rng)) > 0, f"a {kind} to kill"):
        return None
    if kind in ("driver", "both"):
        running.wait()
    newest = outputs.begun(settings)
    return Kill(kind, newest, phase(settings, newest))


def batch_seconds(settings: Settings) -> float:
    """How long a batch takes: the least time between two commits, which may have a start of Spark between them; at most 1 s."""
    files = (settings.checkpoint / "springtide" / "manifests").glob("[0-9]*.json")
    times = sorted(file.stat().st_mtime for file in files)
    return min([1.0, *(after - before for before, after in itertools.pairwise(times))])
