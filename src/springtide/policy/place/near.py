"""Scale out: place a replica on a random node of the neighbourhood with room; closer nodes are more likely.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5: "the closer the node, the higher the probability of being selected". The paper gives no formula; here a node's probability is
proportional to 1/(1 + delay), with the delay in ms: the own node is twice as likely as a node 1 ms away, and 11 times as likely
as a node 10 ms away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from springtide.policy.place import Neighbourhood


def near(origin: str, around: Neighbourhood, able: npt.NDArray[np.bool_], rng: np.random.Generator) -> int | None:
    """The index of a random place among those that are ``able``; None if none of them is a neighbour.

    >>> from springtide.policy.place import NodeReport
    >>> around = Neighbourhood((NodeReport("n1", free=0), NodeReport("n2", free=3)), {"n1": {"n2": 5.0}})
    >>> near("n1", around, around.free > 0, np.random.default_rng(0))
    1
    """
    heights = np.cumsum(around.closeness(origin) * able)
    if not len(heights) or not heights[-1] > 0:
        return None
    return int(np.searchsorted(heights, rng.random() * heights[-1], side="right"))


def spread(origin: str, count: int, around: Neighbourhood, rng: np.random.Generator) -> tuple[str, ...]:
    """Nodes for several replicas, chosen in turn, the own node included; fewer if there is too little room."""
    free, nodes = around.free.copy(), []
    for _ in range(count):
        place = near(origin, around, free > 0, rng)
        if place is None:
            break
        nodes.append(around.places[place].node)
        free[place] -= 1
    return tuple(nodes)
