"""A grouping at work: its state, its kernels compiled, and what it has to be told."""

from __future__ import annotations

from typing import Any

from springtide.errors import OptionError
from springtide.policy.group import Continual
from springtide.policy.group.full_knowledge import FullKnowledge
from springtide.sim import kernels
from springtide.sim.compile import compiled, failure, reads

_KEY, _QUEUE = 1, 4  # the places of the arguments of a grouping's choose


class Router:
    """Sends the records of one operator to its replicas."""

    def __init__(self, grouping: Continual, operator: str, seed: int) -> None:
        self._grouping, self._operator, self._seed = grouping, operator, seed
        self.first_free = type(grouping) is FullKnowledge
        self._allocates = False  # whether its kernels make arrays, which is found out when they are compiled
        self.state: Any = None

    def begin(self, replicas: int) -> None:
        """Route over so many replicas from now on, with what was learned so far."""
        self._replicas = replicas
        online = self._grouping.online(replicas, self._seed, self.state)
        self.state, self._choose, self._completed = online
        self.keyed = reads(online.choose, _KEY) or online.completed is not None
        self.told = reads(online.choose, _QUEUE) or online.completed is not None
        """Whether it asks for completions or for the lengths of queues."""

    def serve(
        self, rows: kernels.Rows, first: int, last: int, told: float, until: float, replicas: kernels.Replicas, timeout: float,
        limit: int, feedback: float, network: kernels.Network | None, pending: kernels.Pending | None,
    ) -> None:  # fmt: skip
        """Route and serve the rows from ``first`` to ``last``."""
        given = (
            rows, first, last, told, until, replicas, self._replicas, timeout, limit, feedback, network, self.state,
        )  # fmt: skip
        try:
            wrong = self._kernel(kernels.serve)(*given, *self._compiled(), pending)
        except failure() as error:
            if self._allocates:
                raise OptionError(f"grouping {self._name!r} cannot be compiled for the simulator: {error}") from error
            self._allocates = True  # nothing was run; once more, now counting references
            self.serve(rows, first, last, told, until, replicas, timeout, limit, feedback, network, pending)
            return
        if wrong >= 0:
            raise OptionError(
                f"grouping {self._name!r} sent a record of {self._operator!r} to none of its replicas, which are"
                f" 0 to {self._replicas - 1}; its choose has to return one of them"
            )

    def _kernel(self, function: Any) -> Any:
        return compiled(function, self._allocates)

    def _compiled(self) -> tuple[Any, Any]:
        return self._kernel(self._choose), None if self._completed is None else self._kernel(self._completed)

    @property
    def _name(self) -> str:
        return str(getattr(self._grouping, "name", type(self._grouping).__name__))
