"""A task's report on state: the file that it wrote, and the time that this took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.spark.state.catalog import File


@dataclass
class StateReceipt:
    """The changes of a task to the state of an operator. ``Stepping`` fills it in."""

    operator: str
    task: int
    file: File | None = None
    shards: list[int] = field(default_factory=list)  # with changes
    added: int = 0
    removed: int = 0
    revived: int = 0  # keys written again that a concurrent merge drops as expired
    late: int = 0
    load_s: float = 0.0
    commit_s: float = 0.0
    groups: int = 0
    piece_bytes: int | None = None  # the size limit of a group; None if there was no group
    seconds: dict[int, float] = field(default_factory=dict)  # by shard
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "file": None if self.file is None else vars(self.file)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StateReceipt:
        file = None if document["file"] is None else File(**document["file"])
        seconds = {int(shard): took for shard, took in document["seconds"].items()}
        return cls(**{**document, "file": file, "seconds": seconds})
