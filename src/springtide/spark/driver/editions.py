"""The knowledge of groupings in a checkpoint: <checkpoint>/springtide/knowledge/N.npz, written atomically."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.durable import sync_folder

log = logging.getLogger("springtide.spark")

EDITIONS_TO_RETAIN = 8
"""Limits the stored editions. A replay needs the edition of the last plan, and newer editions may exist by then."""


class Editions:
    """Stores numbered sets of arrays, without pickles: write access to the folder must not allow to run code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, edition: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        objects = [name for name, array in arrays.items() if array.dtype.hasobject]
        if objects:
            raise ValueError(f"{objects[0]} holds Python objects; a grouping's state is arrays of numbers or text")
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._file(edition)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for options
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(self._folder)
        for old in self._numbers()[:-EDITIONS_TO_RETAIN]:
            self._file(old).unlink(missing_ok=True)

    def load(self, edition: int) -> dict[str, npt.NDArray[Any]] | None:
        """The arrays of an edition; None if its file is gone or damaged."""
        try:
            with self._file(edition).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  numpy and zipfile raise many kinds on damaged files, KeyError among them
            log.warning("%s cannot be read (%s); what was learned is learned anew", self._file(edition), error)
            return None

    def latest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("[0-9]*.npz") if path.stem.isdigit())

    def _file(self, edition: int) -> Path:
        return self._folder / f"{edition:08d}.npz"
