"""The refusals of guards, each reported once while it lasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from springtide.model.plan import Request
from springtide.model.request import Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import begun
from springtide.policy.guard import Guard, State

ENDED_S = 60.0
"""A refusal that did not recur for this long has ended, and is reported when it recurs. A policy that measures nothing, as in
an interval in which no batch ended, requests nothing, and will request it again."""

MOST_REPORTS = 100
"""Limits the refusals that are reported in one interval; the others follow in the next."""


@runtime_checkable
class Explains(Protocol):
    """A guard that gives its reason for a refusal."""

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        """The reason, with the numbers; ``state``: from its review."""


def vetoes(
    guard: Guard, state: State, snapshot: Snapshot, asked: Sequence[Request], passed: Sequence[Request]
) -> Iterator[Verdict]:
    """A verdict on each request that was refused entirely. The reason of a changed request says what was refused of it."""
    left = {_about(request) for request in passed}
    for request in asked:
        if _about(request) in left:
            continue
        operator = snapshot.by_name.get(request.operator)
        why = guard.why(state, snapshot, request) if isinstance(guard, Explains) else "it refuses the request"
        yield Verdict(request, None, why, guard.name, None if operator is None else operator.degree)


def newly_refused(
    before: Mapping[str, float], found: Sequence[Verdict], passed: Sequence[Request], now: float
) -> tuple[list[Verdict], dict[str, float]]:
    """The refusals to report, and when each reported refusal that has not ended last recurred.

    ``before``: the same of the previous interval. A request that passes ends the refusals of its operator.
    """
    done = {request.operator for request in passed}
    ended = {what for what in before if what.rpartition(" of ")[2] in done}
    verdicts = {verdict.subject: verdict for verdict in found}
    new, refusing = begun(before, verdicts, now, ended=ended, quiet_s=ENDED_S, most=MOST_REPORTS)
    return [verdicts[subject] for subject in new], refusing


def _about(request: Request) -> tuple[str, object]:
    """The subject of a request, whatever its degree."""
    return request.operator, None if request.operator else request.action
