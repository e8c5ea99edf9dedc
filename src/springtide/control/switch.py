"""On, dry run or off: what the control flow may do, looked up at every cycle, so that it can be switched while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from springtide.errors import OptionError, nearest
from springtide.once import Once

log = logging.getLogger("springtide.control")

FILE = "control"
"""In a run's folder: one word, the mode. Not there while nobody has switched."""


class Mode(StrEnum):
    """``on``: decide and do. ``dry-run``: decide and record, but change no degree. ``off``: the last plan stays in force."""

    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"

    @classmethod
    def named(cls, word: str) -> Mode:
        """The mode that goes by a word.

        >>> Mode.named("of")
        Traceback (most recent call last):
        springtide.errors.OptionError: mode 'of' does not exist; did you mean 'off' or 'on'? Allowed: dry-run, off, on
        """
        if word not in list(cls):
            raise OptionError(f"mode {word!r} does not exist; {nearest(word, [mode.value for mode in cls])}")
        return cls(word)


class Switch(Protocol):
    """What tells the mode. Asking returns at once and never raises."""

    def mode(self) -> Mode: ...


@dataclass(frozen=True)
class Fixed:
    """A mode that nobody switches."""

    value: Mode = Mode.ON

    def mode(self) -> Mode:
        return self.value


@dataclass
class FileSwitch:
    """The mode as a file has it: ``begun`` while there is none, and the last one while it cannot be read or understood."""

    path: Path
    begun: Mode = Mode.ON
    _last: Mode = field(init=False, repr=False)
    _unreadable: Once = field(init=False, default_factory=Once, repr=False)

    def __post_init__(self) -> None:
        self._last = self.begun

    def mode(self) -> Mode:
        try:
            self._last = read(self.path) or self.begun
            self._unreadable.end()
        except OptionError as fault:
            if self._unreadable.begins():
                log.warning("the mode stays %s: %s", self._last, fault)
        return self._last


def read(path: Path) -> Mode | None:
    """The mode in a file; None when there is no file. OptionError, which names what came, for anything else."""
    try:
        with path.open("rb") as file:
            word = file.read(100).decode("utf-8", "replace").strip()  # a mode is a word: whatever is longer is none
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise OptionError(f"{str(path)!r} cannot be read: {fault.strerror or fault}") from None
    try:
        return Mode.named(word)
    except OptionError as fault:
        raise OptionError(f"{str(path)!r}: {fault}") from None


def write(path: Path, mode: Mode) -> None:
    """Switch: whole or not at all, so that nobody reads half a word."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(f"{mode}\n", encoding="utf-8")
        beside.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise OptionError(f"{str(path)!r} cannot be written: {fault.strerror or fault}; it stays as it is") from None
