"""Where replicas come, go and move to: EDF's rules, with the chance handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Delays = Mapping[str, Mapping[str, float]]
"""From a node to each of its neighbours, in ms. A node without an entry has all others for neighbours, all as close."""


@dataclass(frozen=True)
class Place:
    """A node as its manager tells of it: how many more replicas it has cores for, and the share of its CPU that is in use.

    ``executors`` and ``memory``: as in its snapshot.
    """

    node: str
    free: int
    utilisation: float | None = None
    executors: tuple[str, ...] = ()
    memory: float | None = None


@dataclass(frozen=True)
class Neighbourhood:
    """All nodes that told of themselves in a round, and how far they are from each other."""

    places: tuple[Place, ...]
    delays: Delays

    @cached_property
    def used(self) -> Mapping[str, float | None]:
        return {place.node: place.utilisation for place in self.places}

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        return np.array([place.free for place in self.places], dtype=np.int64)

    @cached_property
    def utilisations(self) -> Floats:
        """Not a number where it is not known, which is neither above nor below anything."""
        return np.array([np.nan if place.utilisation is None else place.utilisation for place in self.places])

    def closeness(self, origin: str) -> Floats:
        """1/(1 + delay) of every place, as seen from one; 0 where it is no neighbour."""
        if origin not in self._closeness:
            known = self.delays.get(origin)
            self._closeness[origin] = np.array([_close(place.node, origin, known) for place in self.places])
        return self._closeness[origin]

    @cached_property
    def _closeness(self) -> dict[str, Floats]:
        """Many operators ask from the same node."""
        return {}


def _close(node: str, origin: str, known: Mapping[str, float] | None) -> float:
    if known is None or node == origin:
        return 1.0
    return 1 / (1 + known[node]) if node in known else 0.0
