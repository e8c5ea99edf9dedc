"""What stands between a scaling policy and its requests: limits and second thoughts that fit any policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot

State = Mapping[str, Any]
"""What a guard remembers: whatever JSON can carry."""


class Guard(Protocol):
    """Lets requests pass, changes their degrees, or holds them back. Frozen; what it remembers is in the state."""

    name: ClassVar[str]

    def initial(self) -> State:
        """The state before the first interval."""
        ...

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        """The new state, and the requests that may pass; the reason of a changed one says what was wanted, and why not.

        Refused requests are journalled; with a method ``why``, as in ``vetoes.Explains``, a guard gives its reason.
        A pure function of its arguments. Asked in every interval, also when the policy has no requests.
        """
        ...
