"""Who of the executors stays, though Spark hears a little later whom it is to let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from springtide.control.ports import Cluster
from springtide.model.executor import Executor


@dataclass
class Remembered:
    """A cluster like the one behind it, which carries out what it is asked in a thread of its own, up to minutes later.

    Whom a fleet lets go, it remembers by itself, and tells the cluster again if that does not hear. The next fleet has to be
    told: those whom an earlier one let go are not the application's own.
    """

    cluster: Cluster
    told: set[str] = field(default_factory=set)  # to go, and there still

    def executors(self) -> tuple[Executor, ...]:
        seen = self.cluster.executors()
        self.told &= {one.name for one in seen}
        return seen

    def ask(self, total: int) -> None:
        self.cluster.ask(total)

    def release(self, names: Sequence[str]) -> None:
        self.told |= set(names)
        self.cluster.release(names)

    def staying(self) -> list[str]:
        """The names of those that are there and were not let go, the oldest first: they are numbered."""
        names = {one.name for one in self.executors() if not one.leaving} - self.told
        return sorted(names, key=lambda name: (len(name), name))
