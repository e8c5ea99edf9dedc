"""What the application's manager refused, for those who look at the run: each refusal once, for as long as it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import ScalePolicy, State


def refused(policy: ScalePolicy, state: State) -> list[Mapping[str, Any]]:
    """What a policy's last decision, which left this state, newly refused: ``{"refused": the proposal, "reason": …}`` each.

    Only managers refuse; they may be behind guards.

    >>> from springtide.policy.scale.static import Static
    >>> refused(Static(), {})
    []
    """
    while isinstance(policy, Guarded):
        policy, state = policy.policy, state["policy"]
    return list(state["refused"]) if isinstance(policy, Hierarchy) else []
