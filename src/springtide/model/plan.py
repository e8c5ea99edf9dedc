"""The plan, which every batch follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.model.request import Migrate, Scale, action_from_json, action_to_json
from springtide.model.request import Request as Request  # policies import it from here


@dataclass(frozen=True)
class Plan:
    """The granted degrees and limits. A batch takes the plan in force when it starts, and has the same plan in every replay.

    ``degrees``: replicas per operator. ``slots``: how many tasks run at once. ``widths``: tasks per operator's stage.
    ``knowledge``: the edition of the groupings' knowledge by which tasks route, 0 for none.
    ``shed_after_s``: how old a record may be when its batch starts, None for any age; older ones are left out, and counted.
    ``shed_before``: the same as a time, in seconds since 1970, fixed when the batch starts, so that replays leave out the same.
    ``read_limit``: the most records a batch reads, None for no limit. ``trigger_s``: the least time between two batches.
    ``actions``: moves of replicas, and the nodes of added or removed replicas; carried out once, when the plan begins.
    ``shards``: by stateful operator, the task that has each of its shards.
    """

    degrees: Mapping[str, int]
    slots: int
    widths: Mapping[str, int]
    read_limit: int | None = None
    trigger_s: float = 0.0
    knowledge: int = 0
    shed_after_s: float | None = None
    shed_before: float | None = None
    reason: str = field(default="", compare=False)
    actions: tuple[Scale | Migrate, ...] = ()
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "actions": [action_to_json(action) for action in self.actions]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Also from documents without actions or shards, of earlier versions."""
        actions = tuple(map(action_from_json, document.get("actions", ())))
        shards = {name: tuple(owner) for name, owner in document.get("shards", {}).items()}
        return cls(**{**document, "actions": actions, "shards": shards})
