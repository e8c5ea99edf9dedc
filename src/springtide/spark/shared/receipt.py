"""The receipt of a staged file: the task that wrote the file makes the receipt, and the manifest repeats it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from springtide.spark.shared.program import Staging


@dataclass(frozen=True)
class Receipt:
    """A staged file. ``sink`` is "" for dead letters; ``name`` is the published name. Size and checksum are None in manifests
    of earlier versions.

    File names have no folder: the sink determines the folders, so that a changed manifest cannot move other files. ``place``:
    the folder below the sink's that the values of columns name, such as ``day=2024-05-01``.
    """

    sink: str
    epoch: int
    file: str
    name: str
    rows: int
    bytes: int | None = None
    crc32: int | None = None
    place: str = ""


def folder(staging: Staging, epoch: int) -> Path:
    """Where the tasks of an epoch stage the files of a sink."""
    return Path(staging.folder) / f"epoch-{epoch:06d}"
