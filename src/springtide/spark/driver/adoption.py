"""What Spark's own file source has read in a checkpoint of an earlier version, for the list of files that takes its place.

Spark's offset names an entry of its log in ``sources/I/``. Every entry has the files of one batch, and every tenth one repeats
all before it. The manifests guard these logs by their checksums; a start has compared them before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from springtide.connectors.files.enumerator import FilesEnumerator, SparksFile
from springtide.errors import DamageError
from springtide.spark.private.logs import NO_OFFSET, Logs, offsets_by_source
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out


def adopt(enumerator: FilesEnumerator, logs: Logs, source: int, batch: int) -> bool:
    """Put the files that Spark's source ``source`` has read up to a batch into the list, unless they are there.

    Returns whether Spark read that batch."""
    text = logs.text("offsets", batch)
    offset = NO_OFFSET if text is None else offsets_by_source(text).get(source, NO_OFFSET)
    found = re.fullmatch(r'\{"logOffset":(-?\d+)\}', offset)
    if found is None:
        return False
    if not enumerator.knows({"logOffset": int(found[1])}):
        enumerator.adopt(_files(logs, source, int(found[1])), int(found[1]))
    return True


def _files(logs: Logs, source: int, last: int) -> list[SparksFile]:
    """The files up to an entry, in the order of entries."""
    entries = [entry for entry in logs.entries(source) if entry.number <= last]
    start = max((entry for entry in entries if entry.compact), default=None)
    found = [
        file
        for entry in entries
        if start is None or entry >= start
        for file in _parsed(logs, f"{source}/{entry.name.split('/')[1]}")
    ]
    return sorted(set(found), key=lambda file: (file.batch, file.mtime, file.path))


def _parsed(logs: Logs, name: str) -> list[SparksFile]:
    path = logs.folder / "sources" / name
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        return [_file(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamageError(path, f"cannot be read ({error}): it was changed from outside", ways_out(PUT_BACK, ANEW)) from None


def _file(document: Mapping[str, Any]) -> SparksFile:
    """Spark writes encoded URIs: ``file:///in/a%20b.json``."""
    parts = urlsplit(document["path"])
    place = parts.path if parts.scheme == "file" else f"{parts.netloc}{parts.path}"
    return SparksFile(unquote(place), int(document["timestamp"]) * 1000, int(document["batchId"]))
