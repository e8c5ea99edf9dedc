"""Scaling policies, which decide the degree of each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from springtide.model.plan import Request
from springtide.model.request import Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.plugin import Plugin

State = Mapping[str, Any]
"""The state of a policy, in values that JSON can carry, so that it survives a restart."""


class Decides(Protocol):
    """A policy, or its host."""

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]: ...


class ScalePolicy(Protocol):
    """Turns measurements into requests, in the simulator and on Spark.

    A policy is frozen; its knowledge is in the state, which the caller stores and passes back.
    """

    @property
    def name(self) -> str: ...

    def initial(self) -> State:
        """The state before the first interval."""

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        """The new state, and a request for every operator whose degree should change.

        A pure function of its arguments: no clock, no file, and no random source but ``rng``.
        """


class ScalePlugin(Plugin):
    kind = "scale"

    def initial(self) -> State:
        return {}


def decided(policy: Decides, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
    """A valid decision. It raises ValueError or TypeError for an invalid one, whose state is then dropped as well."""
    learned, requests = policy.decide(state, snapshot, rng)
    if not isinstance(learned, Mapping):
        raise TypeError(f"{learned!r} is no state: give a dict")
    wanted, known = tuple(requests), snapshot.by_name
    if strange := [request for request in wanted if not isinstance(request, Request)]:
        raise TypeError(f"{strange[0]!r} is no request")
    return learned, tuple(request.checked(known) for request in wanted)


def refusals(policy: ScalePolicy, state: State) -> list[Verdict]:
    """The new refusals of guards and managers in the decision that left this state.

    A policy that refuses requests has a method ``refusals``; others refuse nothing.

    >>> from springtide.policy.scale.static import Static
    >>> refusals(Static(), {})
    []
    """
    report = getattr(policy, "refusals", None)
    return [] if report is None else list(report(state))


def changes(snapshot: Snapshot, wanted: Mapping[str, tuple[int, str]]) -> tuple[Request, ...]:
    """Requests for the operators whose degree changes, limited to 1 and the most that each can use.

    ``wanted``: by operator, the degree and the reason.
    """
    found = []
    slots = 10**9 if snapshot.slots is None else min(snapshot.slots, 10**9)
    for operator in snapshot.operators:
        if operator.name in wanted:
            degree, reason = wanted[operator.name]
            most = slots if operator.limit is None else min(operator.limit, slots)
            granted = max(1, min(degree, most))
            if granted != operator.degree:
                found.append(Request(operator.name, granted, reason))
    return tuple(found)


@runtime_checkable
class ChecksOperators(Protocol):
    """A policy whose parameters name operators, which are checked before the start."""

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when a parameter names an operator that does not exist."""


def check(policy: ScalePolicy, operators: Sequence[str]) -> None:
    """Call a policy's ``check`` if it has one; a policy that names no operators needs none.

    >>> from springtide.policy.scale.static import Static
    >>> check(Static(degrees="enrch=4"), ["enrich"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    springtide.errors.OptionError: 'static': degrees names 'enrch', which is no operator; ...
    """
    if isinstance(policy, ChecksOperators):
        policy.check(operators)
