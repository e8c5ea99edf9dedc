"""The placement of replicas on nodes: EDF's rules. Randomness is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Delays = Mapping[str, Mapping[str, float]]
"""The delays from a node to each of its neighbours, in ms. If a node has no entry, all others are equally close neighbours."""


@dataclass(frozen=True)
class NodeReport:
    """A node as its manager reports it: ``free`` is the number of replicas for which it has idle cores, ``utilisation`` the
    used share of its CPU. ``executors`` and ``memory`` are those of its snapshot.
    """

    node: str
    free: int
    utilisation: float | None = None
    executors: tuple[str, ...] = ()
    memory: float | None = None


@dataclass(frozen=True)
class Neighbourhood:
    """All nodes that reported in a round, and the delays between them."""

    places: tuple[NodeReport, ...]
    delays: Delays

    @cached_property
    def used(self) -> Mapping[str, float | None]:
        return {place.node: place.utilisation for place in self.places}

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        return np.array([place.free for place in self.places], dtype=np.int64)

    @cached_property
    def utilisations(self) -> Floats:
        """The utilisations; NaN, for which every comparison is false, if unknown."""
        return np.array([np.nan if place.utilisation is None else place.utilisation for place in self.places])

    def closeness(self, origin: str) -> Floats:
        """1/(1 + delay) from a node to every place; 0 for a place that is not its neighbour."""
        if origin not in self._closeness:
            known = self.delays.get(origin)
            self._closeness[origin] = np.array([_close(place.node, origin, known) for place in self.places])
        return self._closeness[origin]

    @cached_property
    def _closeness(self) -> dict[str, Floats]:
        """A cache, because many operators ask from the same node."""
        return {}


def _close(node: str, origin: str, known: Mapping[str, float] | None) -> float:
    if known is None or node == origin:
        return 1.0
    return 1 / (1 + known[node]) if node in known else 0.0
