"""What all granting policies share: the order in which requests are looked at, and which of them exclude each other.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
7, steps 1 and 2. Requests are ranked by the kind of their action and then by score; of two that conflict the lower gives way.

The paper removes conflicts before it grants anything; here a request gives way to one that is granted only. With the paper's
conflicts it comes to the same: they are between actions that one kind of token pays for, and what ranks higher is paid first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from springtide.model.request import KINDS, Action, AddExecutors, Migrate, RemoveExecutor, Request, Scale, Verdict

_ORDER = {kind: place for place, kind in enumerate(KINDS)}

Pays = Callable[[Action], tuple[Action | None, str]]
"""What of an action can be granted now, None for nothing, and why; whatever it takes is taken then."""


def ranked(requests: Sequence[Request]) -> list[Request]:
    """By kind, then the highest score first; of equals, the first asked."""
    return sorted(requests, key=lambda one: (_ORDER[one.action.kind], -one.score))


def verdicts(requests: Sequence[Request], pays: Pays) -> tuple[Verdict, ...]:
    """One verdict on each request, in the order given: what conflicts with one before it is refused, the rest is up to
    ``pays``."""
    taken: dict[str, Request] = {}
    found = []
    for request in requests:
        claimed = claims(request.action)
        other = next(((what, taken[what]) for what in claimed if what in taken), None)
        if other is not None:
            found.append(Verdict(request, None, _conflict(*other, request)))
            continue
        action, reason = pays(request.action)
        if action is not None:
            taken |= dict.fromkeys(claims(action), request)
        found.append(Verdict(request, action, reason))
    return tuple(found)


def claims(action: Action) -> tuple[str, ...]:
    """What an action needs for itself in a round: EDF's node that gets a replica; and its operator, whose replicas change.

    >>> from springtide.model.request import Scale
    >>> claims(Scale("a", 1, 2, ("n1",))), claims(Scale("a", 2, 1, ("n1",)))
    (('operator a', 'node n1'), ('operator a',))
    """
    if isinstance(action, AddExecutors):
        return ("more executors",)
    if isinstance(action, RemoveExecutor):
        return (f"executor {action.executor}",)
    if isinstance(action, Migrate):
        return f"operator {action.operator}", f"node {action.node}"
    nodes = dict.fromkeys(action.nodes) if isinstance(action, Scale) and action.kind == "scale-out" else ()
    return f"operator {action.operator}", *(f"node {node}" for node in nodes)


def _conflict(what: str, other: Request, request: Request) -> str:
    scores = f"scores {other.score:.3g} and {request.score:.3g}"
    return f"conflict over {what}: the {other.action.kind} of {other.manager} comes first ({scores})"
