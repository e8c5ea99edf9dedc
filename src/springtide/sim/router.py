"""The router of an operator: a grouping, its state, and its compiled kernels."""

from __future__ import annotations

from typing import Any

from springtide.errors import OptionError
from springtide.policy.group import Continual
from springtide.policy.group.full_knowledge import FullKnowledge
from springtide.sim import kernels
from springtide.sim.compile import compiled, failure, reads

_KEY, _QUEUE = 1, 4  # the indices of arguments of a grouping's choose


class Router:
    """Routes the records of an operator to its replicas."""

    def __init__(self, grouping: Continual, operator: str, seed: int) -> None:
        self._grouping, self._operator, self._seed = grouping, operator, seed
        self.first_free = type(grouping) is FullKnowledge
        self._allocates = False  # whether its kernels allocate arrays, which compilation shows
        self.state: Any = None

    def begin(self, replicas: int) -> None:
        """Route to this number of replicas from now on, and retain what was learned."""
        self._replicas = replicas
        online = self._grouping.online(replicas, self._seed, self.state)
        self.state, self._choose, self._completed = online
        self.keyed = reads(online.choose, _KEY) or online.completed is not None
        self.wants_feedback = reads(online.choose, _QUEUE) or online.completed is not None
        """Whether it needs completions or queue lengths."""

    def serve(
        self, rows: kernels.Rows, first: int, last: int, informed: float, until: float, replicas: kernels.Replicas,
        timeout: float, limit: int, feedback: float, network: kernels.Network | None, pending: kernels.Pending | None,
    ) -> None:  # fmt: skip
        given = (
            rows, first, last, informed, until, replicas, self._replicas, timeout, limit, feedback, network, self.state,
        )  # fmt: skip
        try:
            wrong = self._kernel(kernels.serve)(*given, *self._compiled(), pending)
        except failure() as error:
            if self._allocates:
                raise OptionError(f"grouping {self._name!r} cannot be compiled for the simulator: {error}") from error
            self._allocates = True  # nothing has run yet: compile again, with reference counts
            self.serve(rows, first, last, informed, until, replicas, timeout, limit, feedback, network, pending)
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
