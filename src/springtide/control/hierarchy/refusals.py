"""What guards held back and managers refused, for those who look at the run: each once, for as long as it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import ScalePolicy, State


def refused(policy: ScalePolicy, state: State) -> list[Mapping[str, Any]]:
    """What was newly refused in a policy's last decision, which left this state: ``{"refused": what was wanted, "reason": …}``.

    Guards hold requests back, and managers, who may be behind guards, refuse proposals.

    >>> from springtide.policy.scale.static import Static
    >>> refused(Static(), {})
    []
    """
    found: list[Mapping[str, Any]] = []
    while isinstance(policy, Guarded):
        found += state.get("told", ())
        policy, state = policy.policy, state["policy"]
    return [*found, *(state["refused"] if isinstance(policy, Hierarchy) else ())]
