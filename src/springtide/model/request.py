"""What managers exchange: what one of them proposes, and what the application's manager says to it.

All of it is plain values that JSON can carry, so that managers share nothing, wherever they run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Scale:
    """Another number of replicas of an operator.

    ``nodes``: where each replica that comes is to be, or where each that goes is; empty where replicas have no places.
    """

    operator: str
    before: int
    after: int
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.before == self.after:
            raise ValueError(f"{self.operator!r} has {self.before} already: there is nothing to scale")

    @property
    def kind(self) -> str:
        return "scale-out" if self.after > self.before else "scale-in"


@dataclass(frozen=True)
class Migrate:
    """A replica of an operator moves from a node to another. ``replica``: which one, counted as the snapshot lists them."""

    kind: ClassVar[str] = "migrate"

    operator: str
    replica: int
    origin: str
    node: str


@dataclass(frozen=True)
class AddExecutors:
    """So many executors more."""

    kind: ClassVar[str] = "add-executors"

    count: int


@dataclass(frozen=True)
class RemoveExecutor:
    """This executor goes: there is one less, or, with ``another``, one comes in its place, elsewhere as far as can be."""

    executor: str
    another: bool = False

    @property
    def kind(self) -> str:
        return "move-executor" if self.another else "remove-executor"


Action = Scale | Migrate | AddExecutors | RemoveExecutor

KINDS = ("scale-out", "migrate", "move-executor", "add-executors", "scale-in", "remove-executor")
"""The kinds of actions, the most urgent first: who has too little is helped before anybody saves, and more replicas help more
than moving one."""

_CLASSES: Mapping[str, type[Any]] = {
    "scale-out": Scale, "scale-in": Scale, "migrate": Migrate, "add-executors": AddExecutors, "remove-executor": RemoveExecutor,
    "move-executor": RemoveExecutor,
}  # fmt: skip


def action_to_json(action: Action) -> dict[str, Any]:
    """
    >>> action_to_json(Scale("a", 2, 3, ("n1",)))
    {'kind': 'scale-out', 'operator': 'a', 'before': 2, 'after': 3, 'nodes': ['n1']}
    """
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(action).items()}
    return {"kind": action.kind, **told}


def action_from_json(document: Mapping[str, Any]) -> Action:
    """What ``action_to_json`` made.

    >>> action_from_json(action_to_json(Migrate("a", 0, "n1", "n2")))
    Migrate(operator='a', replica=0, origin='n1', node='n2')
    """
    made_by = _CLASSES[document["kind"]]
    about = {name: value for name, value in document.items() if name not in ("kind", "shards")}  # of old plans, always empty
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    made: Action = made_by(**given)
    return made


@dataclass(frozen=True)
class Proposal:
    """What a manager wants done, how much it would help (EDF's reconfiguration score, 0 to 1 for most), and why."""

    manager: str
    action: Action
    score: float
    reason: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError(f"the score of a proposal of {self.manager} is {self.score}; it is a number")

    def to_json(self) -> dict[str, Any]:
        return {
            "manager": self.manager, "action": action_to_json(self.action), "score": self.score, "reason": self.reason,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Proposal:
        return cls(**{**document, "action": action_from_json(document["action"])})


@dataclass(frozen=True)
class Verdict:
    """The answer to a proposal: what of it may be done, None for nothing, and why.

    ``action`` may be less than what was proposed: three replicas of the five that were asked for.
    """

    proposal: Proposal
    action: Action | None
    reason: str

    @property
    def granted(self) -> bool:
        return self.action is not None

    def to_json(self) -> dict[str, Any]:
        action = None if self.action is None else action_to_json(self.action)
        return {"proposal": self.proposal.to_json(), "granted": self.granted, "action": action, "reason": self.reason}
