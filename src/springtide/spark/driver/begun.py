"""The note of the batch that began last. It repeats Spark's log for the batch, so that a damaged log can be put back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from springtide.durable import PRIVATE, encoded


@dataclass(frozen=True)
class Begun:
    """A batch before it runs. ``logs``: the checksums of its sources' logs. ``settled``: the documents that never change."""

    batch: int
    epoch: int
    offsets: str
    logs: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Begun:
        return cls(*(document[name] for name in ("batch", "epoch", "offsets", "logs", "settled")))


class Note:
    """The file begun.json. It is written in place by one call, which is whole even if this process dies.

    A new file and a rename, as for other documents, would take 4 ms on a busy disk instead of 60 µs. A loss of power may damage
    the note; then the batch begins anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None
        self._length = 0

    def write(self, begun: Begun, *, synced: bool) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, PRIVATE)
            self._length = os.fstat(self._descriptor).st_size
        content = encoded(begun.to_json()).encode()
        os.pwrite(self._descriptor, content.ljust(self._length), 0)  # JSON may end with spaces, here over a longer earlier note
        self._length = max(self._length, len(content))
        if synced:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
