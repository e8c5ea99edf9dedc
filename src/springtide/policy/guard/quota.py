"""Limits the replicas of all operators together: the operator with the highest score gets them first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.guard import GuardPlugin, State
from springtide.policy.guard.shared import amended
from springtide.policy.registry import parameter


@dataclass(frozen=True)
class Quota(GuardPlugin):
    """All operators together have at most ``most`` replicas, or one each if there are more operators.

    Scale-ins make room first. Then scale-outs are granted in the order of their scores, and of equal scores in the order of
    requests, as far as there is room. If there are too many replicas already, the operators with the most are scaled in.

    With a quota of 10, a = 4 and b = 4, and both wanting 8, a with the score 0.2 and b with 0.9: b gets 6, a stays at 4.
    """

    name = "quota"
    source = "Springtide"
    summary = "limits the replicas of all operators together"

    most: int = parameter(0, "replicas", 0, help="of all operators together; 0: the slots that the run may have")

    def review(self, state: State, snapshot: Snapshot, requests: tuple[Request, ...]) -> tuple[State, tuple[Request, ...]]:
        quota = self._of(snapshot)
        if quota is None:
            return state, requests
        has = {operator.name: operator.degree for operator in snapshot.operators}
        known = {request.operator: request for request in requests if request.operator in has}
        ins = {name: request.degree for name, request in known.items() if request.degree < has[name]}
        granted = _brought_down({**has, **ins}, quota)
        free = quota - sum(granted.values())
        for request in sorted(known.values(), key=lambda request: -request.score):
            extra = min(request.degree - granted[request.operator], free) if request.operator not in ins else 0
            if extra > 0:
                granted[request.operator] += extra
                free -= extra
        why = _why(quota)
        strangers = tuple(request for request in requests if request.operator not in has)
        return state, strangers + tuple(
            _granted(known.get(name), name, degree, has[name], why) for name, degree in granted.items() if degree != has[name]
        )

    def why(self, state: State, snapshot: Snapshot, request: Request) -> str:
        return f"{_why(self._of(snapshot))}, and none is left"

    def _of(self, snapshot: Snapshot) -> int | None:
        return min((limit for limit in (self.most or None, snapshot.slots) if limit is not None), default=None)


def _why(quota: int | None) -> str:
    return f"all operators together have at most {quota}"


def _granted(request: Request | None, name: str, degree: int, has: int, why: str) -> Request:
    wanted = request or Request(name, has, f"it has {has}")
    return wanted if wanted.degree == degree else amended(wanted, degree, why)


def _brought_down(degrees: Mapping[str, int], quota: int) -> dict[str, int]:
    """The degrees, cut at the height at which they fit; the remainder goes to the first operators that were cut.

    >>> _brought_down({"a": 9, "b": 2, "c": 5}, 11)
    {'a': 5, 'b': 2, 'c': 4}
    """
    if sum(degrees.values()) <= quota:
        return dict(degrees)
    low, high = 1, max(degrees.values())  # a height of 1 is always allowed, even if the operators are more than the quota
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(min(degree, middle) for degree in degrees.values()) <= quota
        low, high = (middle, high) if fits else (low, middle - 1)
    cut = {name: min(degree, low) for name, degree in degrees.items()}
    left = max(0, quota - sum(cut.values()))
    for name in [name for name, degree in degrees.items() if degree > low][:left]:
        cut[name] += 1
    return cut
