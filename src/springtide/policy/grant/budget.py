"""Limits the price of all replicas and executors per hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from springtide.errors import OptionError
from springtide.model.request import Action, AddExecutors, RemoveExecutor, Request, Scale, Verdict
from springtide.policy.grant import GrantPlugin, State, View
from springtide.policy.grant.ranking import ranked, verdicts
from springtide.policy.registry import parameter

ROUNDING = 1e-9
"""Tolerates rounding errors: 20 replicas for 0.05 may cost 1.0000000000000002."""


@dataclass(frozen=True)
class Budget(GrantPlugin):
    """Scale-ins and moves are granted. Scale-outs are granted in the order of rank, as far as the limit allows.

    Scale-ins of the same round make room first. At 0.10 a replica-hour and a limit of 1.00, with nine replicas, of which one
    is removed, two can be added: of a scale-out from 2 to 5 a part is granted, from 2 to 4.
    """

    name = "budget"
    source = "Springtide"
    summary = "grants requests up to a price limit per hour, the highest score first"

    limit: float = parameter(1.0, "price/h", 0, help="what all replicas and executors together may cost in an hour")
    replica: float = parameter(0.05, "price/h", 0, help="what a replica costs in an hour; 0 where executors are paid for")
    executor: float = parameter(0.0, "price/h", 0, help="what an executor costs in an hour; 0 where replicas are paid for")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.replica and not self.executor:
            raise OptionError("'budget': replica=0 and executor=0: nothing has a price; give at least one of them")

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        spending = self.replica * view.replicas + self.executor * (view.executors or 0)
        unknown = bool(self.executor) and view.executors is None

        def pays(action: Action) -> tuple[Action | None, str]:
            nonlocal spending
            price, more = self._price(action), _more(action)
            if unknown and more > 0:
                return None, "how many executors there are is not known, so neither is what they cost"
            afforded = int(max(0.0, min(more, (self.limit - spending) / price + ROUNDING))) if price * more > 0 else more
            if afforded <= 0 < more:
                return None, f"over the budget: {price:g} on top of {spending:.4g} an hour is more than {self.limit:g}"
            spending += price * afforded
            total = f"{spending:.4g} of {self.limit:g} an hour"
            return (action, total) if afforded == more else (_part(action, afforded), f"{afforded} of {more}: {total}")

        saving_first = sorted(ranked(requests), key=lambda request: _more(request.action) >= 0)
        return state, verdicts(saving_first, pays)

    def _price(self, action: Action) -> float:
        """The price of a replica or an executor per hour."""
        return self.executor if isinstance(action, AddExecutors | RemoveExecutor) else self.replica


def _more(action: Action) -> int:
    """By how many the action raises the number of replicas or executors."""
    if isinstance(action, Scale):
        return action.after - action.before
    if isinstance(action, AddExecutors):
        return action.count
    return -1 if action.kind == "remove-executor" else 0


def _part(action: Action, count: int) -> Action:
    """The action, limited to this many more."""
    if isinstance(action, Scale):
        return replace(action, after=action.before + count, nodes=action.nodes[:count])
    return AddExecutors(count)
