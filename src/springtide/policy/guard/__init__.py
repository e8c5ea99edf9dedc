"""Guards: they review the requests of any scaling policy, and limit or refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.plugin import Plugin

State = Mapping[str, Any]
"""The state of a guard, in values that JSON can carry."""


class Guard(Protocol):
    """Passes requests, changes their degrees, or refuses them. It is frozen; its memory is in the state."""

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first interval."""

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        """The new state, and the requests that pass; the reason of a changed request has the wanted degree and why it changed.

        Refused requests are journalled; with a method ``why``, as in ``vetoes.Explains``, a guard gives its reason.
        A pure function of its arguments. It is called in every interval, also without requests.
        """


class GuardPlugin(Plugin):
    kind = "guard"

    def initial(self) -> State:
        return {}
