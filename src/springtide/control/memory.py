"""A cluster in memory, for tests and simulations of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from springtide.control.ports import Clock
from springtide.model.executor import Executor


@dataclass
class MemoryCluster:
    """Executors start ``starting_s`` after their request, at most ``room`` of them, and leave at once."""

    clock: Clock
    starting_s: float = 0.0
    room: int = 10**9
    cores: int = 1
    hosts: tuple[str, ...] = ("host",)
    asked: list[int] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    _there: dict[str, Executor] = field(default_factory=dict)
    _coming: list[float] = field(default_factory=list)
    _made: int = 0

    def executors(self) -> tuple[Executor, ...]:
        now = self.clock()
        for due in [due for due in self._coming if due <= now]:
            self._coming.remove(due)
            if len(self._there) < self.room:
                self.add()
        return tuple(self._there.values())

    def ask(self, total: int) -> None:
        self.asked.append(total)
        del self._coming[max(0, total - len(self._there)) :]
        self._bring(total)

    def release(self, names: Sequence[str]) -> None:
        """Release executors; new ones start up to the requested total, as with Spark."""
        for name in names:
            if self._there.pop(name, None) is not None:
                self.released.append(name)
        if self.asked:
            self._bring(self.asked[-1])

    def close(self) -> None:
        """Nothing runs."""

    def add(self) -> str:
        """Add an executor that nobody requested."""
        name, host = str(self._made), self.hosts[self._made % len(self.hosts)]
        self._there[name] = Executor(name, host, self.cores)
        self._made += 1
        return name

    def kill(self, name: str) -> None:
        """Lose an executor; the cluster starts another in its place, because the requested total stands."""
        del self._there[name]
        self._coming.append(self.clock() + self.starting_s)

    def _bring(self, total: int) -> None:
        self._coming += [self.clock() + self.starting_s] * (total - len(self._there) - len(self._coming))
