"""What a task reports of the state: the file that it wrote, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.spark.state.catalog import File


@dataclass
class StateReceipt:
    """What a task did to the state of an operator. ``Stepping`` fills it in."""

    operator: str
    task: int
    file: File | None = None
    shards: list[int] = field(default_factory=list)  # of which something changed
    added: int = 0
    removed: int = 0
    revived: int = 0  # written in the place of rows that a merge, which runs meanwhile, lets go
    late: int = 0
    load_s: float = 0.0
    commit_s: float = 0.0
    groups: int = 0
    piece_bytes: int | None = None  # how much state a group may have; None if there was no group
    seconds: dict[int, float] = field(default_factory=dict)  # what each shard's keys took
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
