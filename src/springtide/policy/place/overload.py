"""Migration of a replica away from an overloaded node.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
6. Above the utilisation U_mig a random replica of the node moves to a neighbour that has room and is not overloaded itself;
closer neighbours are more likely. The score is (U − U_mig) / (1 − U_mig).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.model.request import Migrate
from springtide.policy.place import Neighbourhood, NodeReport
from springtide.policy.place.near import near


def overload(
    here: NodeReport, replicas: Sequence[tuple[str, int]], around: Neighbourhood, above: float, rng: np.random.Generator
) -> tuple[Migrate, float] | None:
    """A migration and its score; None if there is no need, no replica, or no node for it.

    ``replicas``: those on the node, each as its operator and its index there. A neighbour of unknown utilisation might be
    overloaded, and gets no replica.
    """
    used = None if here.utilisation is None else min(1.0, here.utilisation)
    if used is None or used <= above or not replicas:
        return None
    place = near(here.node, around, (around.free > 0) & (around.utilisations <= above), rng)  # this excludes the node itself
    if place is None:
        return None
    operator, replica = replicas[int(rng.integers(len(replicas)))]
    return Migrate(operator, replica, here.node, around.places[place].node), (used - above) / (1 - above)
