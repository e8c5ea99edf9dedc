"""What moves away from an overloaded node, and where to.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
6. Above the utilisation U_mig a replica, any of the node's, moves to a neighbour that has room and is not overloaded itself,
the closer the likelier. The score is (U − U_mig) / (1 − U_mig).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.model.request import Migrate
from springtide.policy.place import Neighbourhood, Place
from springtide.policy.place.near import near


def overload(
    here: Place, replicas: Sequence[tuple[str, int]], around: Neighbourhood, above: float, rng: np.random.Generator
) -> tuple[Migrate, float] | None:
    """A migration and its score; None where there is no need, nothing to move, or nowhere to move it to.

    ``replicas``: those on the node, as the operator and the place among its replicas. A neighbour whose use is not known might
    be overloaded, and gets nothing.
    """
    used = None if here.utilisation is None else min(1.0, here.utilisation)
    if used is None or used <= above or not replicas:
        return None
    place = near(here.node, around, (around.free > 0) & (around.utilisations <= above), rng)  # so never this one
    if place is None:
        return None
    operator, replica = replicas[int(rng.integers(len(replicas)))]
    return Migrate(operator, replica, here.node, around.places[place].node), (used - above) / (1 - above)
