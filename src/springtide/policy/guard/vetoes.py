"""What guards held back, for those who look at the run: each veto once, for as long as it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from springtide.model.plan import Request
from springtide.model.request import action_to_json
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import Guard, State

ENDED_S = 60.0
"""What was not held back for so long is over; told again if it comes again. A policy that measures nothing, as in an interval
in which no batch ended, asks for nothing, and will ask again."""

KEPT = 100
"""So many are told in one interval."""


@runtime_checkable
class Explains(Protocol):
    """A guard that says why it held a request back."""

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        """With the numbers; ``state`` is what its review left."""
        ...


@dataclass(frozen=True)
class Veto:
    """A request of which a guard let nothing pass. ``before``: the degree that its operator has."""

    guard: str
    request: Request
    before: int | None
    why: str

    @property
    def what(self) -> str:
        """Who held which kind of change back; not how much of it, or why: the numbers are others in every interval."""
        kind = "move" if self.before is None else "more" if self.request.degree > self.before else "less"
        return f"{self.guard}: {kind} of {self.request.operator}"

    def to_json(self) -> dict[str, Any]:
        """As managers' refusals are told: what was wanted, and why not."""
        action = {} if self.request.action is None else {"action": action_to_json(self.request.action)}
        wanted = {"operator": self.request.operator, "before": self.before, "after": self.request.degree, **action}
        return {"refused": {"guard": self.guard, **wanted, "reason": self.request.reason}, "reason": self.why}


def vetoes(
    guard: Guard, state: State, snapshot: Snapshot, asked: Sequence[Request], passed: Sequence[Request]
) -> Iterator[Veto]:
    """Those that were asked and of which nothing passed. A changed one tells by itself what was wanted."""
    left = {_about(request) for request in passed}
    for request in asked:
        if _about(request) in left:
            continue
        operator = snapshot.by_name.get(request.operator)
        why = guard.why(state, snapshot, request) if isinstance(guard, Explains) else "it lets nothing of it pass"
        yield Veto(guard.name, request, None if operator is None else operator.degree, why)


def told(
    before: Mapping[str, float], found: Sequence[Veto], passed: Sequence[Request], now: float
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """What is to be told of an interval, and when each that was told, and has not ended, was last held back.

    ``before``: the same of the interval before.
    """
    done = {request.operator for request in passed}
    ended = {what for what, last in before.items() if what.rpartition(" of ")[2] in done or now - last > ENDED_S}
    going_on = {what: last for what, last in before.items() if what not in ended}
    held = {veto.what: veto for veto in found}
    new = [what for what in held if what not in going_on][:KEPT]
    again = {what: now for what in held if what in going_on}
    return [held[what].to_json() for what in new], {**going_on, **again, **dict.fromkeys(new, now)}


def _about(request: Request) -> tuple[str, object]:
    """What makes it the same request, whatever degree it is for."""
    return request.operator, None if request.operator else request.action
