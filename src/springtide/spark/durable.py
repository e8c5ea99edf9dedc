"""Files that outlive a crash: written whole or not at all, also when the machine loses power.

Each document carries the checksum of the rest of it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from springtide.errors import CheckpointError

CHECKSUM = "crc32"
"""The name under which a document has it. Documents that were written before there was one are taken as they are."""


def write_atomic(path: Path, document: Mapping[str, Any], *, private: bool = False) -> None:
    """Write JSON so that a reader sees all of it or nothing, also after the machine lost power. ``private``: nobody but the
    owner may read it."""
    write_whole(path, json.dumps({**document, CHECKSUM: _checksum(document)}), private=private)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Likewise, any text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        if private:
            os.fchmod(file.fileno(), 0o600)  # before there is anything to read
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that they are there after a loss of power too."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_file(file: Path) -> None:
    """Make a file that somebody else wrote durable, and its name."""
    _sync(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}): it was changed from outside; give a new checkpoint") from None
    if document.pop(CHECKSUM, None) not in (None, _checksum(document)):
        raise CheckpointError(f"{path} does not have its checksum: it was changed from outside; give a new checkpoint")
    return document


def _checksum(document: Mapping[str, Any]) -> int:
    """Of its JSON, which is the same again after it was read."""
    return zlib.crc32(json.dumps(document, allow_nan=False).encode())
