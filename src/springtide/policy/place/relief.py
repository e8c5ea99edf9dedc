"""Relief of an overloaded host: an executor is removed, and another is requested.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
6, for tasks without a fixed place: every batch distributes them over all executors, so an executor has to move. A host's
utilisation is that of its cores or of its memory, whichever is higher; above U_mig an executor is removed. The score is the
paper's, (U − U_mig) / (1 − U_mig). The paper moves a random replica; here the least useful executor goes, because its state has
to be read again.
"""

from __future__ import annotations

from springtide.model.request import RemoveExecutor
from springtide.policy.place import Neighbourhood, NodeReport


def relief(here: NodeReport, around: Neighbourhood, above: float) -> tuple[RemoveExecutor, float, str] | None:
    """The executor to remove, the score, and the exhausted resource; None if there is no need, or if all other hosts are full.

    The cluster manager chooses the host of the new executor. A host without measurements might be full.

    >>> hosts = NodeReport("a", 0, 0.5, ("3", "1"), memory=0.9), NodeReport("b", 2, 0.25, ("2",))
    >>> action, score, what = relief(hosts[0], Neighbourhood(hosts, {}), above=0.8)
    >>> action.executor, round(score, 3), what
    ('3', 0.5, '90% of the memory of a')
    """
    used, what = _fullest(here)
    others = (place for place in around.places if place.node != here.node and place.executors)
    if not used > above or not here.executors or not any(_fullest(place)[0] <= above for place in others):
        return None
    return (
        RemoveExecutor(here.executors[0], another=True),
        (used - above) / (1 - above),
        f"{used:.0%} of the {what} of {here.node}",
    )


def _fullest(place: NodeReport) -> tuple[float, str]:
    """The used share of the fullest resource, 1 at most, and its name; NaN, for which comparisons are false, if unknown."""
    shares = (place.utilisation, "cores"), (place.memory, "memory")
    known = [(min(1.0, share), what) for share, what in shares if share is not None]
    return max(known) if known else (float("nan"), "")
