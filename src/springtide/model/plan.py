"""What one manager wants (a request), and what was granted (a plan)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.model.request import Action, Migrate, RemoveExecutor, Scale, action_from_json, action_to_json


@dataclass(frozen=True)
class Request:
    """What a policy wants for one operator, how much it matters, and why.

    ``action``: what a degree cannot say. With an operator it is a Scale, which tells where replicas come or go. Without one,
    as "" and a degree of 0, it is a replica that moves, or an executor that goes for another to come elsewhere.
    """

    operator: str
    degree: int
    reason: str
    score: float = 0.0
    action: Action | None = None

    def checked(self, operators: Container[str]) -> Request:
        """Itself, if it can be granted; ValueError, or TypeError, for nonsense."""
        whole = int(self.degree) == self.degree >= 0
        known = self.operator in operators and isinstance(self.action, Scale | None)
        placed = self.operator == "" and self.degree == 0 and isinstance(self.action, Migrate | RemoveExecutor)
        if not (known or placed) or not whole or not isinstance(self.reason, str):
            raise ValueError(
                f"{self} is no request: it wants an operator and a whole degree of 0 or more, or a move and no operator, and a"
                " reason"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "action": None if self.action is None else action_to_json(self.action)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        """Of what is none, TypeError or ValueError."""
        parts = dict(document)
        action = parts.pop("action", None)
        return cls(**parts, action=None if action is None else action_from_json(action))


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
