"""Checks that a run can write to its folders, before Spark starts and before anything is changed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from springtide.errors import CheckpointError, OptionError, SpringtideError
from springtide.model.endpoints import FilesSink
from springtide.model.topology import Topology

LEAST_FREE_BYTES = 64 << 20
"""Minimal free space of each file system at a start. It suffices for Spark's log, staged output and state of the first minutes;
with less, a run would fail during a batch instead of here."""
PROBE_BYTES = 4096
"""Size of the file for the write test. It is one block of most file systems, which a full disk refuses."""


@dataclass(frozen=True)
class Need:
    """A folder to which a run writes. ``what``: its name in errors."""

    what: str
    folder: Path
    error: type[SpringtideError] = OptionError

    @property
    def there(self) -> Path:
        """The folder, or the nearest one above it that exists."""
        absolute = self.folder.absolute()
        return next(path for path in (absolute, *absolute.parents) if os.path.exists(path))


def needs(topology: Topology, checkpoint: Path | None, runs: Path) -> list[Need]:
    """The folders of a run. ``checkpoint``: None if it will be in the run's folder."""
    parts = [] if checkpoint is None else [checkpoint, checkpoint / "springtide", checkpoint / "spark"]
    files = [(f"the folder of sink {o.name!r}", o.sink) for o in topology.sinks]
    files.append(("the folder of the dead letters", topology.dead_letters))
    return [
        *(Need("checkpoint", part, CheckpointError) for part in parts),
        Need("the folder of runs", runs),
        *(Need(what, Path(sink.path)) for what, sink in files if isinstance(sink, FilesSink)),
    ]


def check(needed: Iterable[Need]) -> None:
    """Refuse a folder without write access, and a full file system."""
    tried: set[Path] = set()
    for need in needed:
        if need.there in tried:
            continue
        tried.add(need.there)
        _check_space(need)
        _check_writable(need)


def _check_space(need: Need) -> None:
    found = os.statvfs(need.there)
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and free < LEAST_FREE_BYTES:  # a file system without blocks does not report its free space
        raise need.error(
            f"{need.what} {need.folder}: {free / 1e6:.1f} MB are free there, and at least {LEAST_FREE_BYTES / 1e6:.0f} MB are"
            " needed; free some space, or give another folder"
        )
    if found.f_files and not found.f_favail:
        raise need.error(
            f"{need.what} {need.folder}: its file system has no free inode, and each file needs one; remove some files, or give"
            " another folder"
        )


def _check_writable(need: Need) -> None:
    if not need.there.is_dir():
        done = "is" if need.there == need.folder.absolute() else f"cannot be made: {need.there} is"
        raise need.error(f"{need.what} {need.folder} {done} a file; give a folder")
    try:
        _write_probe(need.there / f".springtide-{secrets.token_hex(8)}")
    except OSError as error:
        done = "written to" if need.there == need.folder.absolute() else "made"
        mend = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"allow this user to write to {need.there}"
        raise need.error(
            f"{need.what} {need.folder} cannot be {done}: {error.strerror}; {mend}, or give another folder"
        ) from None


def _write_probe(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, bytes(PROBE_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        file.unlink()
