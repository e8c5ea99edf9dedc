"""Files that outlive a crash: written whole or not at all, also when the machine loses power.

Each document carries the checksum of the rest of it. One that is damaged is told from one that is missing: DamageError.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from springtide.errors import DamageError

CHECKSUM = "crc32"
"""The field with a document's checksum. Of documents from before there were checksums only the shape is checked."""
PRIVATE = 0o600
"""Documents hold secrets and records: nobody but their owner reads them."""


@dataclass(frozen=True)
class Shape:
    """The fields of a document, each with the types that it may have. Further fields are allowed: a later version adds some."""

    required: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    optional: Mapping[str, tuple[type, ...]] = field(default_factory=dict)

    def fault(self, document: Mapping[str, Any]) -> str | None:
        """What is wrong with a document, in words."""
        for name, kinds in {**self.required, **self.optional}.items():
            if name not in document:
                if name in self.required:
                    return f"has no field {name!r}"
            elif type(document[name]) not in kinds:
                wanted = " or ".join(kind.__name__ for kind in kinds)
                return f"has a field {name!r} of type {type(document[name]).__name__}, not {wanted}"
        return None


ANY = Shape()


class Document(NamedTuple):
    """What a file holds. ``checksum``: None if it was written before there were checksums."""

    content: dict[str, Any]
    checksum: int | None


def write_atomic(path: Path, document: Mapping[str, Any]) -> int:
    """Write JSON so that a reader sees all of it or nothing, also after the machine lost power; returns its checksum."""
    checksum = _checksum(document)
    write_whole(path, json.dumps({**document, CHECKSUM: checksum}))
    return checksum


def encoded(document: Mapping[str, Any]) -> str:
    """A document as it is written."""
    return json.dumps({**document, CHECKSUM: _checksum(document)})


def write_whole(path: Path, text: str) -> None:
    """Likewise, any text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    with open(descriptor, "wb") as file:
        file.write(text.encode())
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


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, shape: Shape = ANY) -> dict[str, Any] | None:
    """A document's content, None if there is no such file. DamageError if it is not what was written."""
    document = read_document(path, shape)
    return None if document is None else document.content


def read_document(path: Path, shape: Shape = ANY) -> Document | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DamageError(path, f"is not JSON ({error}): it was changed from outside") from None
    except OSError as error:
        raise DamageError(path, f"cannot be read ({error.strerror})", "allow this user to read it") from None
    if not isinstance(content, dict):
        raise DamageError(path, f"holds {_kind(content)} instead of an object: it was changed from outside")
    checksum = content.pop(CHECKSUM, None)
    if checksum not in (None, _checksum(content)):
        raise DamageError(path, "does not match its checksum: it was changed from outside")
    fault = shape.fault(content)
    if fault is not None:
        raise DamageError(path, f"{fault}: it was changed from outside")
    return Document(content, checksum)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _kind(value: object) -> str:
    return {"list": "a list", "str": "a text", "NoneType": "null"}.get(type(value).__name__, "a number")


def _checksum(document: Mapping[str, Any]) -> int:
    """Of its JSON, which is the same again after it was read."""
    return zlib.crc32(json.dumps(document, allow_nan=False).encode())
