"""What one manager wants (a request), and what was granted (a plan)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """What a policy wants for one operator, how much it matters, and why."""

    operator: str
    degree: int
    reason: str
    score: float = 0.0

    def checked(self, operators: Container[str]) -> Request:
        """Itself, if it can be granted; ValueError, or TypeError, for nonsense."""
        whole = int(self.degree) == self.degree >= 0
        if self.operator not in operators or not whole or not isinstance(self.reason, str):
            raise ValueError(f"{self} is no request: it wants an operator, a whole degree of 0 or more and a reason")
        return self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        return cls(**document)


@dataclass(frozen=True)
class Plan:
    """What was granted. A batch takes the plan in force when it starts, and keeps it through every replay.

    ``degrees``: replicas per operator. ``slots``: how many tasks run at once. ``widths``: tasks per operator's stage.
    ``knowledge``: which edition of what groupings learned the tasks route by, 0 for none.
    ``shed_after_s``: how old a record may be when its batch starts, None for any age; older ones are left out, and counted.
    ``shed_before``: the same as a time, in seconds since 1970, fixed when the batch starts: a replay leaves out the same.
    ``read_limit``: the most records a batch reads, None for no limit. ``trigger_s``: the least time between two batches.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        return cls(**document)
