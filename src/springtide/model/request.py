"""Requests and verdicts, for policies, guards, managers, decider and journal.

They are plain values that JSON can carry, so that managers share nothing, wherever they run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, overload


@dataclass(frozen=True)
class Degree:
    """An operator gets this many replicas, whatever its present number."""

    kind: ClassVar[str] = "degree"

    operator: str
    after: int


@dataclass(frozen=True)
class Scale:
    """An operator gets another number of replicas.

    ``nodes``: where each new replica starts, or where each removed one runs; empty where replicas have no places.
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
    """A replica of an operator moves to another node. ``replica``: its index in the snapshot's list."""

    kind: ClassVar[str] = "migrate"

    operator: str
    replica: int
    origin: str
    node: str


@dataclass(frozen=True)
class AddExecutors:
    """``count`` more executors start."""

    kind: ClassVar[str] = "add-executors"

    count: int


@dataclass(frozen=True)
class RemoveExecutor:
    """An executor is released. With ``another`` a new one replaces it, on another host where the cluster has one."""

    executor: str
    another: bool = False

    @property
    def kind(self) -> str:
        return "move-executor" if self.another else "remove-executor"


Action = Degree | Scale | Migrate | AddExecutors | RemoveExecutor

KINDS = ("scale-out", "migrate", "move-executor", "add-executors", "scale-in", "remove-executor")
"""The kinds of managers' requests, the most urgent first: relieving an overload comes before scaling in, and a new replica
relieves more than a move."""

_CLASSES: Mapping[str, type[Any]] = {
    "degree": Degree, "scale-out": Scale, "scale-in": Scale, "migrate": Migrate, "add-executors": AddExecutors,
    "remove-executor": RemoveExecutor, "move-executor": RemoveExecutor,
}  # fmt: skip


def action_to_json(action: Action) -> dict[str, Any]:
    """
    >>> action_to_json(Scale("a", 2, 3, ("n1",)))
    {'kind': 'scale-out', 'operator': 'a', 'before': 2, 'after': 3, 'nodes': ['n1']}
    """
    parts = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(action).items()}
    return {"kind": action.kind, **parts}


def action_from_json(document: Mapping[str, Any]) -> Action:
    """The inverse of ``action_to_json``.

    >>> action_from_json(action_to_json(Migrate("a", 0, "n1", "n2")))
    Migrate(operator='a', replica=0, origin='n1', node='n2')
    """
    made_by = _CLASSES[document["kind"]]
    # plans of earlier versions have "shards", always empty
    about = {name: value for name, value in document.items() if name not in ("kind", "shards")}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    made: Action = made_by(**given)
    return made


@dataclass(frozen=True, init=False)
class Request:
    """A requested action, the reason, its score, and the requesting manager.

    A scaling policy names an operator and its degree. Other changes are actions:

    >>> Request("enrich", 3, "900/s, 300/s per replica").action
    Degree(operator='enrich', after=3)
    >>> Request(action=RemoveExecutor("7", another=True), reason="its host is full").action.kind
    'move-executor'

    ``score``: EDF's reconfiguration score, from 0 to 1 for most. ``manager``: empty for a policy that decides on all operators.
    """

    action: Action
    reason: str
    score: float
    manager: str

    @overload
    def __init__(
        self, operator: str, degree: int, reason: str, score: float = 0.0, action: Action | None = None, manager: str = ""
    ) -> None: ...

    @overload
    def __init__(self, *, action: Action, reason: str, score: float = 0.0, manager: str = "") -> None: ...

    def __init__(
        self, operator: str | None = None, degree: int | None = None, reason: str | None = None, score: float = 0.0,
        action: Action | None = None, manager: str = "",
    ) -> None:  # fmt: skip
        if manager and not math.isfinite(score):
            raise ValueError(f"the score of a request of {manager} is {score}; requests are ranked by it: give a number")
        parts = {"action": _scaled(action, operator, degree), "reason": reason, "score": score, "manager": manager}
        for name, value in parts.items():
            object.__setattr__(self, name, value)  # as the generated __init__ of a frozen dataclass does

    @property
    def operator(self) -> str:
        """The operator whose degree changes; empty where none does."""
        return self.action.operator if isinstance(self.action, Degree | Scale) else ""

    @property
    def degree(self) -> int:
        """The new degree of ``operator``; 0 where none changes."""
        return self.action.after if isinstance(self.action, Degree | Scale) else 0

    def checked(self, operators: Container[str]) -> Request:
        """The request, if a policy may make it; ValueError or TypeError otherwise."""
        known = self.operator in operators or isinstance(self.action, Migrate | RemoveExecutor)
        whole = int(self.degree) == self.degree >= 0
        if not known or not whole or not isinstance(self.reason, str):
            raise ValueError(
                f"{self} is no request: it needs a known operator and a whole degree of at least 0, or the move of a replica or"
                " an executor, and a reason"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """A change of a degree has no action in JSON, only ``operator`` and ``degree``."""
        action = None if isinstance(self.action, Degree) else action_to_json(self.action)
        return {
            "manager": self.manager, "operator": self.operator, "degree": self.degree, "action": action, "score": self.score,
            "reason": self.reason,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        """KeyError, TypeError or ValueError for an invalid document. Earlier versions left out what an action implies."""
        parts = dict(document)
        reason, action = parts.pop("reason"), parts.pop("action", None)
        return cls(reason=reason, action=None if action is None else action_from_json(action), **parts)


def _scaled(action: Action | None, operator: Any, degree: Any) -> Action:
    """The action for this operator and degree, which the action has itself where they are None."""
    if action is None:
        return Degree(operator, degree)
    if isinstance(action, Degree | Scale):
        name, after = action.operator if operator is None else operator, action.after if degree is None else degree
        scales = isinstance(action, Scale) and name == action.operator and after != action.before
        return replace(action, after=after) if scales else Degree(name, after)
    if operator or degree:
        raise ValueError(f"{action} for {operator!r} and the degree {degree} is no request: it changes no operator's degree")
    return action


APPLICATION = "the application"
"""The manager of the whole application, in verdicts."""


@dataclass(frozen=True)
class Verdict:
    """The answer to a request: the granted action, None for a refusal, and why.

    ``action`` may be a part of the request: three of five replicas. ``by``: who decided, a guard by its name or the
    application's manager. ``before``: the operator's degree when a guard decided.
    """

    request: Request
    action: Action | None
    reason: str
    by: str = APPLICATION
    before: int | None = None

    @property
    def granted(self) -> bool:
        return self.action is not None

    @property
    def subject(self) -> str:
        """Who requests, or refuses, which kind of change. It has no amount and no reason, which differ in every interval."""
        if self.by == APPLICATION:
            return f"{self.request.manager}: {self.request.action.kind}"
        kind = "move" if self.before is None else "more" if self.request.degree > self.before else "less"
        return f"{self.by}: {kind} of {self.request.operator}"

    def __str__(self) -> str:
        """A refusal in a log."""
        request = self.request
        if self.by == APPLICATION:
            return f"refused: {request.action.kind} of {request.manager} ({request.reason}): {self.reason}"
        change = f"{request.operator} from {self.before} to {request.degree}" if request.operator else "a move"
        return f"held back by {self.by}: {change} ({request.reason}): {self.reason}"

    def to_json(self) -> dict[str, Any]:
        action = None if self.action is None else action_to_json(self.action)
        return {"proposal": self.request.to_json(), "granted": self.granted, "action": action, "reason": self.reason}

    def refusal(self) -> dict[str, Any]:
        """A refusal in journals, policy states and messages of the control process."""
        guard = {} if self.by == APPLICATION else {"guard": self.by, "before": self.before, "after": self.request.degree}
        return {"refused": {**guard, **self.request.to_json()}, "reason": self.reason}

    @classmethod
    def of_refusal(cls, document: Mapping[str, Any]) -> Verdict:
        """The inverse of ``refusal``; KeyError, TypeError or ValueError for an invalid document."""
        refused = dict(document["refused"])
        after = refused.pop("after", None)  # earlier versions have the degree of a guard's refusal here only
        by, before = refused.pop("guard", APPLICATION), refused.pop("before", None)
        return cls(Request.from_json({"degree": after, **refused}), None, str(document["reason"]), by, before)
