"""The manager of an operator sees its operator only, and requests to scale it.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), sections
3.3 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from springtide.model.request import Request, Scale
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.place import Neighbourhood
from springtide.policy.place.busiest import busiest
from springtide.policy.place.near import spread
from springtide.policy.scale import ScalePolicy, State


@dataclass(frozen=True)
class OperatorManager:
    """Asks a scaling policy about an operator, and places added or removed replicas, where replicas have places.

    It serves as the manager of every operator; each operator has its own state.
    """

    policy: ScalePolicy

    def propose(
        self, state: State | None, view: Snapshot, around: Neighbourhood, rng: np.random.Generator
    ) -> tuple[State, Request | None]:
        """``view``: the operator alone. ``around``: the reports of the nodes' managers."""
        operator = view.operators[0]
        after, requests = self.policy.decide(self.policy.initial() if state is None else state, view, rng)
        request = _sound(after, requests, operator)
        if request is None or request.degree == operator.degree:
            return after, None
        nodes = self._nodes(operator, request.degree - operator.degree, around, rng)
        action = Scale(operator.name, operator.degree, int(request.degree), nodes)
        return after, replace(request, action=action, score=float(request.score), manager=f"operator {operator.name}")

    def _nodes(self, operator: OperatorSnapshot, more: int, around: Neighbourhood, rng: np.random.Generator) -> tuple[str, ...]:
        """Section 5: a new replica starts near the first one, and the replica on the busiest node is removed."""
        if not operator.replicas or not around.places:
            return ()
        homes = [replica.node for replica in operator.replicas]
        if more > 0:
            return spread(homes[0], more, around, rng)
        return busiest(homes, -more, around.used)


def _sound(state: object, requests: Sequence[Request], operator: OperatorSnapshot) -> Request | None:
    """The policy's request. An invalid one fails in this manager, and not where all requests come together."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the policy's state is {type(state).__name__}; it is a mapping")
    for request in requests:
        whole = isinstance(request, Request) and int(request.degree) == request.degree >= 1
        if not whole or request.operator != operator.name or not isinstance(request.reason, str):
            raise ValueError(
                f"{request} is no request for {operator.name!r}: it needs a whole degree of at least 1 and a reason"
            )
    return requests[-1] if requests else None
