"""Which of the managers' requests may be carried out: the policies of the application's manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from springtide.model.request import Request, Verdict
from springtide.policy.plugin import Plugin

State = Mapping[str, Any]
"""The state of a granting policy, in values that JSON can carry."""

SLACK_S = 1e-6
"""Tolerates rounding errors in times: intervals of 0.1 s add up to 59.99999999999 s instead of a minute."""


@dataclass(frozen=True)
class View:
    """What the application's manager knows when it decides.

    ``now``: seconds since its start, which never go back. ``response_ms``: the mean time from a record's arrival to its output,
    in the last round in which it was measured; None when it is unknown. ``executors``: None when their number is unknown.
    """

    now: float
    response_ms: float | None
    target_ms: float | None
    replicas: int
    executors: int | None = None


class GrantPolicy(Protocol):
    """Grants or refuses requests. It is frozen; its memory is in the state, which the caller stores."""

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first round."""

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        """The new state, and a verdict on every request. A pure function of its arguments.

        It is called in every round, also without requests.
        """


class GrantPlugin(Plugin):
    kind = "grant"

    def initial(self) -> State:
        return {}
