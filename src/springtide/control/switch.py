"""On, dry run or off: what the control flow may do. It reads the mode in every cycle, so it can be switched during a run."""

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
"""The file in a run's folder with the mode, a word. It is missing until the first switch."""


class Mode(StrEnum):
    """``on``: decide and do. ``dry-run``: decide and record, but change no degree. ``off``: the last plan stays in force."""

    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"

    @classmethod
    def named(cls, word: str) -> Mode:
        """The mode with this name.

        >>> Mode.named("of")
        Traceback (most recent call last):
        springtide.errors.OptionError: mode 'of' does not exist; did you mean 'off' or 'on'? Allowed: dry-run, off, on
        """
        if word not in list(cls):
            raise OptionError(f"mode {word!r} does not exist; {nearest(word, [mode.value for mode in cls])}")
        return cls(word)


class Switch(Protocol):
    """Reads the mode. It returns at once and never raises."""

    def mode(self) -> Mode: ...


@dataclass(frozen=True)
class FixedMode:
    """A mode that never changes."""

    value: Mode = Mode.ON

    def mode(self) -> Mode:
        return self.value


@dataclass
class FileSwitch:
    """The mode in a file: ``begun`` without a file, and the last mode while the file is unreadable or invalid."""

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
    """The mode in a file; None without a file. Raises OptionError with the file's content for anything else."""
    try:
        with path.open("rb") as file:
            word = file.read(100).decode("utf-8", "replace").strip()  # longer text is no mode
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise OptionError(f"{str(path)!r} cannot be read: {fault.strerror or fault}") from None
    try:
        return Mode.named(word)
    except OptionError as fault:
        raise OptionError(f"{str(path)!r}: {fault}") from None


def write(path: Path, mode: Mode) -> None:
    """Write the mode in one step, so that nobody reads half a word."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(f"{mode}\n", encoding="utf-8")
        beside.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise OptionError(f"{str(path)!r} cannot be written: {fault.strerror or fault}; it stays as it is") from None
