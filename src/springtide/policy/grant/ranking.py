"""Common parts of granting policies: the order of requests, and their conflicts.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
7, steps 1 and 2. Requests are ranked by the kind of their action and then by score; of two that conflict the lower is refused.

The paper removes conflicts before it grants anything; here only a granted request excludes others. With the paper's conflicts
the result is the same: they are between actions that need the same kind of token, and the higher rank is paid first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from springtide.model.request import KINDS, Action, AddExecutors, Migrate, RemoveExecutor, Request, Scale, Verdict

_ORDER = {kind: place for place, kind in enumerate(KINDS)}

Pays = Callable[[Action], tuple[Action | None, str]]
"""Returns the part of an action that is granted, None for nothing, and why; the means are spent then."""


def ranked(requests: Sequence[Request]) -> list[Request]:
    """By kind, then by score from the highest; equals in the order of requests."""
    return sorted(requests, key=lambda request: (_ORDER[request.action.kind], -request.score))


def verdicts(requests: Sequence[Request], pays: Pays) -> tuple[Verdict, ...]:
    """A verdict on each request, in this order. A conflict with an earlier grant is refused; ``pays`` decides on the others."""
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
    """The resources that an action excludes others from: its operator, and EDF's node that gets a replica.

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
