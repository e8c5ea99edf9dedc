"""Which of the managers' requests may be carried out: the policies of the application's manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from springtide.model.request import Request, Verdict

State = Mapping[str, Any]
"""What a granting policy remembers: whatever JSON can carry."""

SLACK_S = 1e-6
"""Intervals of 0.1 s add up to 59.99999999999 s, which is meant to be a minute."""


@dataclass(frozen=True)
class View:
    """What the application's manager knows when it decides.

    ``now``: seconds that it was there for, never going back. ``response_ms``: the mean time from a record's coming to its
    leaving, in the last round in which it was measured; None when it is not known. ``executors``: None where nobody tells.
    """

    now: float
    response_ms: float | None
    target_ms: float | None
    replicas: int
    executors: int | None = None


class GrantPolicy(Protocol):
    """Says yes or no to requests. Frozen; what it remembers is in the state, which the caller keeps."""

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first round."""
        ...

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        """The new state, and one verdict on every request. A pure function of its arguments.

        Asked in every round, also when nobody proposes anything.
        """
        ...
