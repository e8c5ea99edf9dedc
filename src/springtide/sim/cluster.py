"""Where replicas are, and what that costs them: shared cores, interfaces and the way between nodes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from springtide.errors import OptionError
from springtide.sim.kernels import Ints, Network
from springtide.sim.rules import Cluster
from springtide.sim.station import Station

LONGEST_STEP_S = 0.02
"""Operators on one node share its interface. Within a step they are looked at one after the other, so steps are short."""


def network_of(cluster: Cluster) -> Network | None:
    """None when nothing between the nodes takes time, so that nothing is computed for it."""
    count = len(cluster.nodes)
    delay = np.array(cluster.delay_s, dtype=np.float64)
    if delay.ndim and delay.shape != (count, count):
        raise OptionError(f"delay_s of a cluster of {count} nodes is one number, or {count} rows of {count}; got {delay.shape}")
    wire = np.array([cluster.record_bytes * 8 / (node.mbit_s * 1e6) for node in cluster.nodes])
    if not delay.any() and not wire.any():
        return None
    return Network(np.broadcast_to(delay, (count, count)).copy(), wire, np.zeros(count))


def place(cluster: Cluster, stations: Iterable[Station]) -> None:
    """Give every replica that has none a node, the one with the most cores to spare, and share out the cores.

    Replicas beyond a node's cores slow all of its replicas down alike. One that only drains its queue counts for nothing.
    """
    stations = list(stations)
    cores = np.array([node.cores for node in cluster.nodes])
    busy = sum((_on(station, len(cores)) for station in stations), np.zeros(len(cores)))
    for station in stations:
        given = station.operator.nodes
        for replica in np.flatnonzero(station.replicas.node < 0):
            spare = cores - busy
            tied = np.flatnonzero(spare == spare.max())
            chosen = given[replica % len(given)] if given else tied[np.argmin(busy[tied])]
            if not 0 <= chosen < len(cores):
                raise OptionError(f"operator {station.operator.name!r}: there is no node {chosen}, only 0 to {len(cores) - 1}")
            station.replicas.node[replica] = chosen
            busy[chosen] += replica < station.active
    slow = np.maximum(1.0, busy / cores)
    for station in stations:
        station.slowed[:] = slow[station.replicas.node]


def _on(station: Station, nodes: int) -> Ints:
    """How many of its active replicas are on each node."""
    placed = station.replicas.node[: station.active]
    return np.bincount(placed[placed >= 0], minlength=nodes)
