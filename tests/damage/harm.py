"""What is done to a checkpoint: each harm to each file, and to each folder."""

from __future__ import annotations

import fnmatch
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from damage.moments import Moment, staged

Content = Callable[[bytes, random.Random], bytes]


def _flipped(place: Callable[[int], int], bit: int | None = None) -> Content:
    def flip(content: bytes, rng: random.Random) -> bytes:
        if not content:
            return content
        at = place(len(content))
        flipped = content[at] ^ 1 << (rng.randrange(8) if bit is None else bit)
        return content[:at] + bytes([flipped]) + content[at + 1 :]

    return flip


def _other_digit(content: bytes, rng: random.Random) -> bytes:
    """A bit of a digit near the end: the text stays well formed, and a number in it, such as an offset, is another one."""
    digits = [at for at in range(max(0, len(content) - 40), len(content)) if content[at : at + 1].isdigit()]
    return _flipped(lambda size: rng.choice(digits), bit=0)(content, rng) if digits else content


CONTENTS: Mapping[str, Content] = MappingProxyType({
    "flip-first": _flipped(lambda size: 0),
    "flip-third": _flipped(lambda size: size // 3),  # half of a small state file is padding, which nobody reads
    "flip-last": _flipped(lambda size: size - 1),
    "flip-digit": _other_digit,
    "cut": lambda content, _: content[: len(content) // 2],
    "empty": lambda content, _: b"",
    "garbage": lambda content, rng: rng.randbytes(len(content)),
    "object": lambda content, _: b"{}",
    "list": lambda content, _: b"[]",
    "null": lambda content, _: b"null",
})  # fmt: skip
"""Harms that give a file another content."""
DELETE, OLDER = "delete", "older"
HARMS = (*CONTENTS, DELETE, OLDER)
JSON_ONLY = ("list", "null")
"""Other files get one kind of valid JSON only: to them it is garbage like any other."""


@dataclass(frozen=True)
class Case:
    """One harm to one file or folder at one moment. ``path`` is relative to the folder of the job's life."""

    moment: str
    path: str
    harm: str
    kind: str  # the path without numbers and identities, and whether it is the last of its series
    folder: bool = False

    def __str__(self) -> str:
        return f"{self.moment}:{self.path}{'/' if self.folder else ''}:{self.harm}"

    def matches(self, glob: str | None, harm: str | None) -> bool:
        return fnmatch.fnmatch(self.path, glob or "*") and fnmatch.fnmatch(self.harm, harm or "*")


def kind_of(path: str) -> str:
    """Files of one kind hold the same sort of thing.

    >>> kind_of("checkpoint/springtide/manifests/00000012.json")
    'checkpoint/springtide/manifests/N.json'
    >>> kind_of("checkpoint/springtide/state/window/00000000-00000008-000004-m2-96.state")
    'checkpoint/springtide/state/window/merged.state'
    """
    path = re.sub(r"[^/]*-m\d+-[^/]*\.state$", "merged.state", path)
    path = re.sub(r"(?<=[-_.])[0-9a-f]{12,32}(?=[-./]|$)", "X", path)
    path = re.sub(r"(?<![A-Za-z0-9])\d+(?:-\d+)*(?![A-Za-z])", "N", path)
    return path


def cases(moment: Moment, older: Path) -> list[Case]:
    """Every harm to every file and folder of a moment that changes anything. ``older``: the same tree, some batches before."""
    return [*_file_cases(moment, older), *_folder_cases(moment, older)]


def _file_cases(moment: Moment, older: Path) -> Iterator[Case]:
    files = {file.relative_to(moment.copy).as_posix(): file for file in targets(moment.copy)}
    kinds = _kinds(files)
    for path, file in files.items():
        content = file.read_bytes()
        for harm in HARMS:
            case = Case(moment.name, path, harm, kinds[path])
            if harm in JSON_ONLY and not content.startswith((b"{", b"[")):
                continue
            if _harmed(case, content, older) != content:
                yield case


def _folder_cases(moment: Moment, older: Path) -> Iterator[Case]:
    for folder in sorted((moment.copy / "checkpoint").rglob("*")):
        if folder.is_dir():
            path = folder.relative_to(moment.copy).as_posix()
            kind = f"{kind_of(path)}/"
            yield Case(moment.name, path, DELETE, kind, folder=True)
            if folder.parent == moment.copy / "checkpoint" and (older / path).is_dir():
                yield Case(moment.name, path, OLDER, f"older {kind}", folder=True)


def _kinds(paths: Iterable[str]) -> dict[str, str]:
    """By path, its kind. The last file of a numbered series is a kind of its own, as the others are mostly history; run folders
    are history altogether."""
    kinds = {path: kind_of(path) for path in paths}
    last = {kind: max((path for path in kinds if kinds[path] == kind), key=_numbers) for kind in set(kinds.values())}
    series = {kind for kind in last if "N" in kind and not kind.startswith("runs/")}
    return {path: f"last {kind}" if kind in series and last[kind] == path else kind for path, kind in kinds.items()}


def _numbers(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]


def targets(life: Path) -> list[Path]:
    """All files of the checkpoint and of the run folders, and what is staged beside the output, listed from the disk.

    Published output is its readers': they may move or remove it, so it is no part of the checkpoint.
    """
    found = [Path(folder) / name for folder, _, names in os.walk(life) for name in names]
    return sorted(file for file in found if not file.is_relative_to(life / "output") or staged(file.relative_to(life)))


def apply(case: Case, life: Path, older: Path) -> list[Path]:
    """Do the harm to the tree at ``life``; returns the files that were damaged with a folder."""
    place = life / case.path
    if not case.folder:
        content = _harmed(case, place.read_bytes(), older)
        if content is None:
            place.unlink()
        else:
            place.write_bytes(content)
        return []
    within = [path for path in place.rglob("*") if path.is_file()]
    shutil.rmtree(place)
    if case.harm == OLDER:
        shutil.copytree(older / case.path, place, copy_function=shutil.copy)
        within += [path for path in place.rglob("*") if path.is_file() and path not in within]
    return within


def _harmed(case: Case, content: bytes, older: Path) -> bytes | None:
    """The content after the harm; None for a file that is gone. Where there is no older copy, the file stays as it is."""
    if case.harm == DELETE:
        return None
    if case.harm == OLDER:
        before = older / case.path
        return before.read_bytes() if before.is_file() else content
    return CONTENTS[case.harm](content, random.Random(f"{case.moment} {case.kind} {case.harm}"))
