"""What a start after the damage came to, and which endings pass: exact, or refused by name with a way out. Nothing else.

A start that refuses is repeated once: a refusal that gives way to wrong output at the second start is silent too.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from springtide.errors import SpringtideError

STARTS = 2
"""How often a run is started, at most, before its verdict."""

WAY_OUT = re.compile(
    r"(?:^|[.;:,(]\s*|\b(?:or|and|then|to go on|otherwise)\s+)"
    r"(?:put|restore|copy|remove|delete|export|import|move|start|run|take|let|set|give|rename|recompute|rebuild|accept|use)\b[^.;,]*",
    re.IGNORECASE | re.MULTILINE,
)
"""An imperative at the start of a clause, up to the clause's end."""
THROWS_STATE_AWAY = re.compile(
    r"\b(?:give|take|use|start)\b[^.;,]*\b(?:new|empty|another|other)\b[^.;,]*\b(?:checkpoint|folder)\b", re.I
)
"""A way out that loses all state and reads all records again. A message has to offer another one as well."""


class Verdict(enum.StrEnum):
    EXACT = "exact"
    REFUSED = "refused"
    SILENT = "silent"
    UNNAMED = "unnamed"

    @property
    def passes(self) -> bool:
        return self in (Verdict.EXACT, Verdict.REFUSED)


@dataclass(frozen=True)
class Ending:
    """How one start ended: well, with what differs from the expected output; with an error; or not in time."""

    difference: str | None = None
    error: BaseException | None = None
    hung: bool = False

    @property
    def text(self) -> str:
        if self.hung:
            return "did not end in time"
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return self.difference or "as expected"


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    text: str


def attempt(start: Callable[[], Ending], damaged: Path, within: Collection[Path] = ()) -> Judged:
    """Start until a start does not refuse, ``STARTS`` times at most. ``within``: the files in it, if a folder was damaged."""
    endings: list[Ending] = []
    while len(endings) < STARTS and all(of(ending, damaged, within) is Verdict.REFUSED for ending in endings):
        endings.append(start())
    return judged(endings, damaged, within)


def judged(endings: Sequence[Ending], damaged: Path, within: Collection[Path] = ()) -> Judged:
    """The worst of several starts, but exact after a refusal is a refusal."""
    order = [Verdict.EXACT, Verdict.REFUSED, Verdict.UNNAMED, Verdict.SILENT]
    verdict, worst = max(((of(ending, damaged, within), ending) for ending in endings), key=lambda one: order.index(one[0]))
    return Judged(verdict, worst.text)


def of(ending: Ending, damaged: Path, within: Collection[Path] = ()) -> Verdict:
    """The verdict on one start."""
    if ending.hung:
        return Verdict.UNNAMED
    if ending.error is not None:
        named = isinstance(ending.error, SpringtideError) and names(str(ending.error), damaged, within)
        return Verdict.REFUSED if named and has_way_out(str(ending.error)) else Verdict.UNNAMED
    return Verdict.SILENT if ending.difference else Verdict.EXACT


def names(message: str, damaged: Path, within: Collection[Path] = ()) -> bool:
    """Whether a message has the file's path, or at least its folder and its name: ``offsets/3`` is a name, ``3`` is none."""
    return any(_has_path(message, f"{path.parent.name}/{path.name}") for path in (damaged, *within))


def has_way_out(message: str) -> bool:
    """Whether a message tells what to do, other than to begin again with nothing."""
    return any(not THROWS_STATE_AWAY.search(way[0]) for way in WAY_OUT.finditer(message))


def _has_path(message: str, path: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-]|\.\w)", message) is not None
