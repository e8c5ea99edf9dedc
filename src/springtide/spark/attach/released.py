"""Remembers released executors, since Spark removes them with a delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from springtide.control.ports import ClusterManager
from springtide.model.executor import Executor


@dataclass
class ReleaseTracking:
    """Wraps a cluster that carries out requests in its own thread, up to minutes later.

    A fleet remembers its own releases and repeats them if the cluster does not react. The next fleet has to know the releases
    of the one before, whose executors are not the application's own.
    """

    cluster: ClusterManager
    released: set[str] = field(default_factory=set)  # and still running

    def executors(self) -> tuple[Executor, ...]:
        seen = self.cluster.executors()
        self.released &= {executor.name for executor in seen}
        return seen

    def ask(self, total: int) -> None:
        self.cluster.ask(total)

    def release(self, names: Sequence[str]) -> None:
        self.released |= set(names)
        self.cluster.release(names)

    def staying(self) -> list[str]:
        """The names of the executors that were not released, the oldest first: Spark numbers them."""
        names = {executor.name for executor in self.executors() if not executor.leaving} - self.released
        return sorted(names, key=lambda name: (len(name), name))
