"""What was granted: a plan, which every batch follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.model.request import Migrate, Scale, action_from_json, action_to_json
from springtide.model.request import Request as Request  # policies import it from here


@dataclass(frozen=True)
class Plan:
    """What was granted. A batch takes the plan in force when it starts, and keeps it through every replay.

    ``degrees``: replicas per operator. ``slots``: how many tasks run at once. ``widths``: tasks per operator's stage.
    ``knowledge``: which edition of what groupings learned the tasks route by, 0 for none.
    ``shed_after_s``: how old a record may be when its batch starts, None for any age; older ones are left out, and counted.
    ``shed_before``: the same as a time, in seconds since 1970, fixed when the batch starts: a replay leaves out the same.
    ``read_limit``: the most records a batch reads, None for no limit. ``trigger_s``: the least time between two batches.
    ``actions``: replicas that move, and where those come or go that the degrees change; done once, when the plan begins.
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
        """Also of one that was written before plans had actions, or shards."""
        actions = tuple(action_from_json(one) for one in document.get("actions", ()))
        shards = {name: tuple(owner) for name, owner in document.get("shards", {}).items()}
        return cls(**{**document, "actions": actions, "shards": shards})
