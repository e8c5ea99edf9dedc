"""Which executor goes from an overloaded host, for another to come elsewhere.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
6, where tasks have no fixed place: they are dealt out to all executors anew, so what can move is an executor. A host is as
full as its cores or its memory, whichever is fuller; above U_mig one executor goes. The score is the paper's, (U − U_mig) / (1
− U_mig). The paper moves any replica; here it is the executor that is missed least, as state would have to be brought along.
"""

from __future__ import annotations

from springtide.model.request import RemoveExecutor
from springtide.policy.place import Neighbourhood, Place


def relief(here: Place, around: Neighbourhood, above: float) -> tuple[RemoveExecutor, float, str] | None:
    """The executor that goes, the score, and what is full; None where there is no need, or no host that is not full too.

    Where the new one comes is the cluster manager's choice. A host of which nothing is known might be full.

    >>> hosts = Place("a", 0, 0.5, ("3", "1"), memory=0.9), Place("b", 2, 0.25, ("2",))
    >>> action, score, what = relief(hosts[0], Neighbourhood(hosts, {}), above=0.8)
    >>> action.executor, round(score, 3), what
    ('3', 0.5, '90% of the memory of a')
    """
    used, what = _fullest(here)
    others = (place for place in around.places if place.node != here.node and place.executors)
    if not used > above or not here.executors or not any(_fullest(place)[0] <= above for place in others):
        return None
    told = f"{used:.0%} of the {what} of {here.node}"
    return RemoveExecutor(here.executors[0], another=True), (used - above) / (1 - above), told


def _fullest(place: Place) -> tuple[float, str]:
    """The share that is in use of what is fullest, 1 at most; not a number, which is above and below nothing, if unknown."""
    shares = (place.utilisation, "cores"), (place.memory, "memory")
    known = [(min(1.0, share), what) for share, what in shares if share is not None]
    return max(known) if known else (float("nan"), "")
