"""Files that survive a crash: they are written atomically, also if the machine loses power.

Each document has the checksum of its content. Reading a damaged document raises DamageError; a missing document is None.
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
"""The field with a document's checksum. Older documents have none, and only their shape is checked."""
PRIVATE = 0o600
"""The mode of documents: only their owner may read them, because they contain secrets and records."""


@dataclass(frozen=True)
class Shape:
    """The fields of a document, each with its allowed types. Further fields are allowed, as later versions may add some."""

    required: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    optional: Mapping[str, tuple[type, ...]] = field(default_factory=dict)

    def fault(self, document: Mapping[str, Any]) -> str | None:
        """The first deviation of a document, in words; None if it has the shape."""
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
    """The content of a file. ``checksum``: None for older documents without one."""

    content: dict[str, Any]
    checksum: int | None


def write_atomic(path: Path, document: Mapping[str, Any]) -> int:
    """Write JSON atomically, also with respect to a loss of power; returns its checksum."""
    checksum = _checksum(document)
    write_whole(path, json.dumps({**document, CHECKSUM: checksum}))
    return checksum


def encoded(document: Mapping[str, Any]) -> str:
    """The JSON of a document, with its checksum."""
    return json.dumps({**document, CHECKSUM: _checksum(document)})


def write_whole(path: Path, text: str) -> None:
    """Write any text atomically, also with respect to a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    with open(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, shape: Shape = ANY) -> dict[str, Any] | None:
    """A document's content, None if there is no such file. DamageError if the file has changed since it was written."""
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
    raise ValueError(f"{text} is not a JSON number")


def _kind(value: object) -> str:
    return {"list": "a list", "str": "a text", "NoneType": "null"}.get(type(value).__name__, "a number")


def _checksum(document: Mapping[str, Any]) -> int:
    """The checksum of a document's JSON, which reading and encoding it again does not change."""
    return zlib.crc32(json.dumps(document, allow_nan=False).encode())
