"""The three moments at which a checkpoint is taken, made once and copied for every case.

    stopped      after a clean stop
    middle       in the middle of a batch: its tasks have run and staged their files, nothing is committed
    unpublished  after the commit of that batch, before its files are published

A kill leaves the files as they are at that instant. So a copy of the tree, made while the driver is held at that step, is what
a kill leaves there; it takes no process that has to die and no JVM that has to start. The crash tests kill real ones.

A checkpoint has absolute paths in it, so a moment is always put back to where it was made.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any
from unittest import mock

import springtide as st
from damage import job
from damage.job import Place

FIRST_BATCHES = 5
"""Batches of the first run; after five, a run knows the floor of a batch and writes ``floor.json``."""
MORE_BATCHES = 2
"""Batches of the second run. The moments are in the last one, so that an older copy is two batches older."""
NAMES = ("stopped", "middle", "unpublished")
OLDER = "older"
MADE = "made"
"""The name of the file that says that all moments of a folder are complete."""
REMOVALS = 50
"""Attempts to remove the tree of a case, 0.1 s apart."""
OPTIONS: dict[str, Any] = {"policy": "tide", "target": "60s", "max_slots": 2, "interval": 0.2}


@dataclass(frozen=True)
class Moment:
    """A copy of all that the job has written up to a moment."""

    name: str
    copy: Path


@dataclass(frozen=True)
class Moments:
    place: Place
    all: tuple[Moment, ...]
    older: Path  # the tree as the first run left it

    def __getitem__(self, name: str) -> Moment:
        return next(moment for moment in self.all if moment.name == name)

    def put_back(self, moment: Moment) -> None:
        """The tree as it was. Files get a new time: workers recognise a state file by its path, time and size."""
        _remove(self.place.life)
        _copy(moment.copy, self.place.life)


def make(root: Path, session: Any) -> Moments:
    """Run the job to the moments, in an empty folder."""
    place = Place(root / "job")
    job.write_input(place)
    copies = {name: root / name for name in (*NAMES, OLDER)}
    with quick():
        run(place, session, batches=FIRST_BATCHES)
        _copy(place.life, copies[OLDER])
        last = FIRST_BATCHES + MORE_BATCHES - 1
        with _copied(place, last, copies["middle"], "deliver"), _copied(place, last, copies["unpublished"], "publish"):
            run(place, session, batches=MORE_BATCHES)
    _copy(place.life, copies["stopped"])
    manifest = PurePath("checkpoint", "springtide", "manifests", f"{last:08d}.json")
    committed = [name for name in NAMES if (copies[name] / manifest).exists()]
    assert committed == ["stopped", "unpublished"], f"batch {last} is committed in the moments {committed}"
    (root / MADE).touch()
    return opened(root)


def opened(root: Path) -> Moments:
    """The moments that ``make`` has left in a folder."""
    assert (root / MADE).exists(), f"{root} has no moments; make them in an empty folder"
    return Moments(Place(root / "job"), tuple(Moment(name, root / name) for name in NAMES), root / OLDER)


def run(place: Place, session: Any, **options: Any) -> None:
    st.run(job.build(place), spark=session, checkpoint=place.checkpoint, runs=place.runs, **OPTIONS, **options)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Make a case shorter, and merge state after three batches instead of eight, so that there are merged files."""
    with contextlib.ExitStack() as patches:
        for name, value in (
            ("springtide.spark.state.catalog.FEW", 3),
            ("springtide.control.supervisor.BACKOFF_S", (0.05, 0.05, 0.05)),
            ("springtide.running.execution.draw", lambda *_: []),
        ):
            patches.enter_context(mock.patch(name, value))
        yield


def staged(path: PurePath) -> bool:
    """Whether a file lies in a folder that readers of a sink do not see."""
    return any(part.startswith(("_", ".")) for part in path.parent.parts)


@contextlib.contextmanager
def _copied(place: Place, batch: int, copy: Path, step: str) -> Iterator[None]:
    """Copy the tree when the driver comes to a step of ``Sinks`` in a batch, the first time."""
    from springtide.spark.driver.sinks import Sinks

    original: Callable[..., Any] = getattr(Sinks, step)

    def wrapped(*args: Any, **named: Any) -> Any:
        if not copy.exists() and (place.checkpoint / "spark" / "offsets" / str(batch)).exists():
            _copy(place.life, copy)
        return original(*args, **named)

    with mock.patch.object(Sinks, step, wrapped):
        yield
    assert copy.exists(), f"the run never came to Sinks.{step} in batch {batch}"


def _remove(tree: Path) -> None:
    """Tasks of the run before, which its driver no longer waits for, may write a file while the tree is removed."""
    for _ in range(REMOVALS):
        shutil.rmtree(tree, ignore_errors=True)
        if not tree.exists():
            return
        time.sleep(0.1)
    raise TimeoutError(f"{tree} cannot be removed: something writes into it still")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    """Drafts and merged state may go while a live tree is copied."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy(source, target)
