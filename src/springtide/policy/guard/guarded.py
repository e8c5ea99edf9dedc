"""A policy behind guards is a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.model.plan import Request
from springtide.model.request import Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import Guard
from springtide.policy.guard.shared import clock
from springtide.policy.guard.vetoes import newly_refused, vetoes
from springtide.policy.scale import ChecksOperators, ScalePolicy, State, check, refusals


@dataclass(frozen=True)
class Guarded:
    """Asks the policy, and then each guard in turn: every guard reviews the requests that passed the guards before it. So put
    guards that delay changes first, and those that enforce limits last: ``cooldown``, ``max-step``, then ``bounds``, ``quota``.

    In the state ``told`` has the new refusals, and ``holding`` the time when each reported refusal last recurred.

    >>> from springtide.policy.guard.bounds import Bounds
    >>> from springtide.policy.scale.static import Static
    >>> Guarded(Static(degree=9), (Bounds(most=4),)).name
    'static'
    """

    policy: ScalePolicy
    guards: tuple[Guard, ...]

    @property
    def name(self) -> str:
        return self.policy.name

    def initial(self) -> State:
        guards = {key: guard.initial() for key, guard in self._keyed()}
        return {"policy": self.policy.initial(), "guards": guards, "clock": 0.0, "holding": {}, "told": []}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        policy, requests = self.policy.decide(state["policy"], snapshot, rng)
        guards: dict[str, State] = {}
        found: list[Verdict] = []
        for key, guard in self._keyed():
            # a guard that is newer than the saved state starts with its initial state
            remembered, asked = state["guards"].get(key), requests
            guards[key], requests = guard.review(guard.initial() if remembered is None else remembered, snapshot, asked)
            found += vetoes(guard, guards[key], snapshot, asked, requests)
        now = clock({"clock": state.get("clock", 0.0)}, snapshot)
        new, holding = newly_refused(state.get("holding", {}), found, requests, now)
        refused = [verdict.refusal() for verdict in new]
        return {"policy": policy, "guards": guards, "clock": now, "holding": holding, "told": refused}, requests

    def refusals(self, state: State) -> list[Verdict]:
        """The new refusals of its guards, and of the managers behind them."""
        return [*map(Verdict.of_refusal, state.get("told", ())), *refusals(self.policy, state["policy"])]

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when the policy or a guard names an operator that does not exist."""
        check(self.policy, operators)
        for guard in self.guards:
            if isinstance(guard, ChecksOperators):
                guard.check(operators)

    def _keyed(self) -> list[tuple[str, Guard]]:
        """Each guard with the key of its state: the same guard may be used twice."""
        return [(f"{place} {guard.name}", guard) for place, guard in enumerate(self.guards)]
