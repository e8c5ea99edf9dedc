"""The nodes of replicas, and their effects: shared cores, network interfaces and delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.request import Migrate, Scale
from springtide.model.snapshot import NodeSnapshot, ReplicaSnapshot
from springtide.sim.kernels import Floats, Ints, Network
from springtide.sim.rules import Cluster
from springtide.sim.station import Station

LONGEST_STEP_S = 0.02
"""Limits a step: operators on one node share its interface, but are simulated one after the other within a step."""
MANY = 1_000_000.0
"""Stands for unlimited cores in snapshots: JSON has no infinity."""


def network_of(cluster: Cluster) -> Network | None:
    """The network between nodes; None if it takes no time, so that nothing is computed for it."""
    count = len(cluster.nodes)
    delay = np.array(cluster.delay_s, dtype=np.float64)
    if delay.ndim and delay.shape != (count, count):
        raise OptionError(f"delay_s of a cluster of {count} nodes is one number, or {count} rows of {count}; got {delay.shape}")
    wire = np.array([cluster.record_bytes * 8 / (node.mbit_s * 1e6) for node in cluster.nodes])
    if not delay.any() and not wire.any():
        return None
    return Network(np.broadcast_to(delay, (count, count)).copy(), wire, np.zeros(count))


def place(cluster: Cluster, stations: Iterable[Station]) -> None:
    """Place each new replica on the node with the most spare cores, and share the cores out.

    If replicas outnumber a node's cores, all of them slow down alike. A draining replica uses no core.
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
        each = slow[station.replicas.node]
        station.replicas.factor[:] *= each / station.slowed  # now, as a following pause uses these factors
        station.slowed[:] = each


def _on(station: Station, nodes: int) -> Ints:
    """The number of active replicas on each node."""
    placed = station.replicas.node[: station.active]
    return np.bincount(placed[placed >= 0], minlength=nodes)


@dataclass
class Places:
    """The nodes of all replicas: reported to managers, and changed by the actions that were granted.

    Only the head of a chain reports replicas. An operator that runs in the tasks of several chains reports none, as its
    replicas cannot be told apart.
    """

    cluster: Cluster
    stations: Mapping[str, Station]
    _due: dict[tuple[str, int], int] = field(default_factory=dict)  # the nodes of replicas that are still starting

    def __post_init__(self) -> None:
        heads = Counter(station.operator.head for station in self.stations.values())
        self._of = {s.operator.head: s for s in self.stations.values() if heads[s.operator.head] == 1}
        self._numbers = {_name(number): number for number in range(len(self.cluster.nodes))}

    def replicas(self, operator: str, busy_s: Mapping[str, Floats], interval_s: float) -> tuple[ReplicaSnapshot, ...]:
        """The replicas of an operator and their utilisation. ``busy_s``: by station, of each replica."""
        station = self._of.get(operator)
        if station is None:
            return ()
        shares = busy_s[station.operator.name] / interval_s if interval_s > 0 else None
        homes = station.replicas.node[: station.active]
        return tuple(
            ReplicaSnapshot(_name(node), None if shares is None else float(shares[i])) for i, node in enumerate(homes.tolist())
        )

    def nodes(self, busy_s: Mapping[str, Floats], interval_s: float) -> tuple[NodeSnapshot, ...]:
        """The use of each node: the busy time of its replicas, draining ones included, limited by its cores."""
        cores = np.minimum([node.cores for node in self.cluster.nodes], MANY)
        if interval_s <= 0:
            return tuple(NodeSnapshot(_name(number), float(count)) for number, count in enumerate(cores))
        used = np.zeros(len(cores))
        for name, station in self.stations.items():
            np.add.at(used, station.replicas.node, busy_s[name] / interval_s)
        return tuple(NodeSnapshot(_name(i), float(cores[i]), float(min(used[i], cores[i]))) for i in range(len(cores)))

    def carry_out(self, plan: Plan, wanted: Mapping[str, int]) -> set[str]:
        """Apply migrations, and sort the replicas so that the right ones are removed. Returns the stations that changed.

        Unknown nodes are ignored. ``wanted``: the replicas of each station after the plan.
        """
        self._due = {(name, replica): node for (name, replica), node in self._due.items() if replica < wanted[name]}
        moved = set()
        for action in plan.actions:
            station = self._of.get(action.operator)
            if station is None:
                continue
            name = station.operator.name
            if isinstance(action, Migrate):
                node = self._numbers.get(action.node)
                if node is not None and 0 <= action.replica < station.active:
                    station.replicas.node[action.replica] = node
                    moved.add(name)
            elif wanted[name] > station.active:
                first = max(station.active, wanted[name] - (plan.degrees[action.operator] - action.before))
                for replica, node in zip(range(first, wanted[name]), self._known(action), strict=False):
                    self._due[name, replica] = node
            else:
                _put_last(station, self._known(action)[: station.active - wanted[name]])
        if moved:
            place(self.cluster, self.stations.values())
        return moved

    def place_started(self) -> None:
        """Place the replicas that have started on their nodes."""
        started = {key: node for key, node in self._due.items() if key[1] < self.stations[key[0]].active}
        for name, replica in started:
            self.stations[name].replicas.node[replica] = self._due.pop((name, replica))
        if started:
            place(self.cluster, self.stations.values())

    def _known(self, action: Scale) -> list[int]:
        return [self._numbers[node] for node in action.nodes if node in self._numbers]


def _put_last(station: Station, nodes: list[int]) -> None:
    """Reorder the replicas so that the last ones, which will be removed, are on these nodes."""
    homes = station.replicas.node
    for last, node in zip(range(station.active - 1, -1, -1), nodes, strict=False):
        found = np.flatnonzero(homes[: last + 1] == node)
        if len(found):
            homes[found[-1]], homes[last] = homes[last], node


def _name(node: int) -> str:
    return f"node{node}"
