"""Where a replica comes to: any node of the neighbourhood that has room, the closer the likelier.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5: "the closer the node, the higher the probability of being selected". The paper gives no formula; here a node's chance is
proportional to 1/(1 + delay), with the delay in ms: the own node is twice as likely as one 1 ms away, and 11 times as likely as
one 10 ms away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from springtide.policy.place import Neighbourhood


def near(origin: str, around: Neighbourhood, able: npt.NDArray[np.bool_], rng: np.random.Generator) -> int | None:
    """Which of the places, among those that are ``able``; None if none is a neighbour.

    >>> from springtide.policy.place import Place
    >>> around = Neighbourhood((Place("n1", free=0), Place("n2", free=3)), {"n1": {"n2": 5.0}})
    >>> near("n1", around, around.free > 0, np.random.default_rng(0))
    1
    """
    heights = np.cumsum(around.closeness(origin) * able)
    if not len(heights) or not heights[-1] > 0:
        return None
    return int(np.searchsorted(heights, rng.random() * heights[-1], side="right"))


def spread(origin: str, count: int, around: Neighbourhood, rng: np.random.Generator) -> tuple[str, ...]:
    """A node for each of several replicas, one after the other, the own node included, as far as there is room."""
    free, found = around.free.copy(), []
    for _ in range(count):
        place = near(origin, around, free > 0, rng)
        if place is None:
            break
        found.append(around.places[place].node)
        free[place] -= 1
    return tuple(found)
