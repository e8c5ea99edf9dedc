"""Folders that a run cannot write to are named before Spark starts, with what is needed, and nothing is changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import springtide as st
from springtide.errors import CheckpointError, OptionError, SpringtideError

pytest.importorskip("pyspark")

from springtide.spark.driver import room


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def topology(out: Path, dead: Path | None = None) -> st.Topology:
    flow = st.source.generate(number, rate=1).to(st.sink.files(out), name="out")
    return st.topology("rooms", flow, dead_letters=None if dead is None else st.sink.files(dead, format="json"))


FOLDERS: dict[str, tuple[str, type[SpringtideError]]] = {
    "checkpoint": ("checkpoint ", CheckpointError),
    "runs": ("the folder of runs ", OptionError),
    "out": ("the folder of sink 'out' ", OptionError),
    "dead": ("the folder of the dead letters ", OptionError),
}


def started(places: dict[str, Path]) -> None:
    """Spark would start, and take seconds, if nothing were wrong."""
    st.run(topology(places["out"], places["dead"]), checkpoint=places["checkpoint"], runs=places["runs"])


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Of each folder one that can be made, in a folder of its own."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    return {name: tmp_path / name / "new" / "folder" for name in FOLDERS}


def made(places: dict[str, Path]) -> list[Path]:
    return [file for place in places.values() for file in place.parents[1].rglob("*")]


@pytest.mark.parametrize("which", FOLDERS)
def test_a_folder_below_a_file_is_refused(which: str, places: dict[str, Path]) -> None:
    what, error = FOLDERS[which]
    file = places[which].parents[1] / "file"
    file.write_text("mine")
    places[which] = file / "folder"
    with pytest.raises(error, match=f"^{what}{places[which]} cannot be made: {file} is a file; give a folder"):
        started(places)
    assert made(places) == [file], "nothing was made"


@pytest.mark.parametrize("which", FOLDERS)
def test_a_folder_that_cannot_be_written_to_is_refused(
    which: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may be run by root, whom no permission stops: the system call fails as on a read-only file system."""
    what, error = FOLDERS[which]
    there = places[which].parents[1]
    monkeypatch.setattr("os.open", failing(os.open, there, errno.EROFS))
    with pytest.raises(error, match=f"^{what}{places[which]} cannot be made: Read-only.*allow this user to write to {there}"):
        started(places)
    assert made(places) == []


@pytest.mark.parametrize("which", FOLDERS)
def test_a_file_system_that_is_full_is_refused_with_what_is_needed(
    which: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    what, error = FOLDERS[which]
    full(monkeypatch, places[which].parents[1], f_bavail=1000)
    with pytest.raises(
        error, match=rf"^{what}{places[which]}: 4\.1 MB are free there, and at least 67 MB are needed; free some"
    ):
        started(places)
    assert made(places) == []


def test_a_file_system_without_free_inodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, tmp_path, f_favail=0)
    with pytest.raises(OptionError, match="no free inode"):
        room.check([room.Need("the folder of runs", tmp_path)])


def test_a_disk_that_is_full_though_it_does_not_say_so_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a quota."""
    monkeypatch.setattr("os.open", failing(os.open, tmp_path, errno.EDQUOT))
    with pytest.raises(OptionError, match=r"cannot be written to: .*; free some space, or give another folder"):
        room.check([room.Need("the folder of runs", tmp_path)])


def test_an_existing_checkpoint_is_tried_in_its_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "checkpoint" / "springtide"
    own.mkdir(parents=True)
    monkeypatch.setattr("os.open", failing(os.open, own, errno.EACCES))
    with pytest.raises(CheckpointError, match=f"checkpoint {own} cannot be written to: Permission denied"):
        room.check(room.needs(topology(tmp_path / "out"), tmp_path / "checkpoint", tmp_path / "runs"))


def test_what_has_room_is_left_as_it_was(tmp_path: Path) -> None:
    room.check(room.needs(topology(tmp_path / "out", tmp_path / "dead"), tmp_path / "checkpoint", tmp_path / "runs"))
    assert list(tmp_path.iterdir()) == []


def failing(original: Callable[..., int], folder: Path, number: int) -> Callable[..., int]:
    """``os.open``, but files directly in a folder cannot be made."""

    def opened(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path).parent == folder:
            raise OSError(number, os.strerror(number), str(path))
        return original(path, *rest, **more)

    return opened


def full(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: int) -> None:
    """Let the file system of a folder say something else: blocks of 4 kB."""
    roomy = {"f_bavail": 10**6, "f_frsize": 4096, "f_blocks": 10**7, "f_files": 10**6, "f_favail": 10**5}
    original = os.statvfs
    told = SimpleNamespace(**{**roomy, **changes})
    monkeypatch.setattr("os.statvfs", lambda path: told if Path(path) == folder else original(path))
