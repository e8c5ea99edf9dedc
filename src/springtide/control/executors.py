"""The executors of a run: a fleet that follows the plans once there is a cluster, and the limits of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from springtide.control.fleet import Fleet, Limits
from springtide.control.hierarchy.executors import ExecutorGrants
from springtide.control.ports import Clock, ClusterManager
from springtide.model.plan import Plan, Request
from springtide.model.request import RemoveExecutor
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import GrantPolicy

COLD_BATCHES = 2
"""Ignore the first batches of a new cluster: they start Python on every executor and compile Spark's code, and took up to ten
times as long as the next ones."""


class Executors:
    """Does nothing until ``employ``. ``grant`` limits which executors are started and released; without it, nothing does."""

    def __init__(self, clock: Clock, record: Callable[[Mapping[str, object]], None], grant: GrantPolicy | None = None) -> None:
        self._clock, self._record = clock, record
        self._grants = None if grant is None else ExecutorGrants(grant)
        self._batches = 0  # of the present cluster
        self.fleet: Fleet | None = None

    def employ(self, cluster: ClusterManager, limits: Limits, elastic: bool, caching: bool = False) -> None:
        """Scale a cluster's executors by the plans, or only observe them. ``caching``: their hosts cache state."""
        self._batches = 0
        if self.fleet is None:
            judge = None if self._grants is None else self._grants.judge
            self.fleet = Fleet(cluster, limits, self._clock, self._record, elastic, caching, judge)
        else:
            self.fleet.move(cluster)

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once now; None where the number of executors is fixed."""
        return None if self._elastic is None else self._elastic.slots

    def look(self) -> None:
        if self.fleet is not None:
            self.fleet.look()

    def describe(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the executors, where their number changes; elsewhere nothing has to start."""
        fleet = self._elastic
        if fleet is None:
            return snapshot
        return replace(snapshot, starting_s=fleet.starting_s, nodes=fleet.nodes, there=fleet.slots)

    def follow(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        """Request and release executors to get the plan's slots, and carry out the granted moves."""
        if self.fleet is None:
            return
        if self._grants is not None:
            self._grants.see(snapshot.at, snapshot)
        self.fleet.follow(plan.slots, "; ".join(request.reason for request in requests if request.operator))
        for request in requests:
            if isinstance(request.action, RemoveExecutor):
                self.fleet.replace(request.action.executor, request.reason)

    def warm_after_batch(self) -> bool:
        """Count a batch, and return whether the cluster was warm when it ran."""
        self._batches += 1
        # before the first cycle the fleet has not looked yet
        return self._batches > COLD_BATCHES or self.fleet is None or not (self.fleet.slots or self.fleet.cluster.executors())

    @property
    def _elastic(self) -> Fleet | None:
        return self.fleet if self.fleet is not None and self.fleet.elastic else None
