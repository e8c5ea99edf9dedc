"""Groupings, which route each record to a task of an operator.

A grouping is a frozen object that implements up to three protocols:

    Grouping   routes a micro-batch: in Spark's tasks, and in the simulator's micro-batch mode
    Learner    learns from the tasks' measurements: on the driver, and in the simulator's micro-batch mode
    Continual  routes and learns record by record: in the simulator's continuous mode
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import OptionError
from springtide.model.costs import Hashes, TaskCosts
from springtide.policy.plugin import Plugin

Targets = npt.NDArray[np.int64]
State = Mapping[str, npt.NDArray[Any]]
"""The knowledge of a grouping. It consists of arrays, so that it is saved without a pickle."""
Table = Mapping[str, npt.NDArray[Any]]
"""The part of the knowledge that upstream tasks need to route; empty while there is none."""


NO_KEY = "a grouping by key needs a key: name its columns with key_by, or choose 'round-robin'"


@dataclass(frozen=True, eq=False)
class Share:
    """The records that an upstream task sends to an operator in a micro-batch, in the order of their sequence.

    ``width`` is the number of targets, 1 or more; ``origin`` the number of the upstream task, 0 or more.
    ``records`` is None in the simulator, where a record is only its key.
    """

    rows: int
    width: int
    origin: int = 0
    batch: int = 0
    hashes: Callable[[], Hashes] | None = None
    records: pa.RecordBatch | None = None

    @classmethod
    def of(
        cls, records: pa.RecordBatch, key: tuple[str, ...], width: int, origin: int = 0, batch: int = 0, seed: int = 0
    ) -> Share:  # fmt: skip
        """The share of these records, keyed by the columns ``key``, () if the operator has none. ``seed``: of their hash."""
        from springtide.policy.group.keys import key_hashes

        hashes = (lambda: key_hashes(records, key, seed)) if key else None
        return cls(records.num_rows, width, origin, batch, hashes, records)

    @property
    def keyed(self) -> bool:
        return self.hashes is not None

    @cached_property
    def keys(self) -> Hashes:
        """A 64-bit hash of every record's key."""
        if self.hashes is None:
            raise OptionError(NO_KEY)
        return self.hashes()


@dataclass(frozen=True, eq=False)
class Route:
    """The data that upstream tasks need to route to an operator: the columns of the grouping's key, and its table.

    ``key`` is None while Springtide searches for the column that determines the cost, and () if there is no such column.
    """

    key: tuple[str, ...] | None = ()
    table: Table = field(default_factory=dict)


class Grouping(Protocol):
    """Routes the output of an upstream task, in that task.

    A route is a pure function of the arguments and the parameters. A stage that is recomputed after the loss of an executor
    has to send every record to the same target as before, or records are lost and duplicated without an error.
    """

    name: ClassVar[str]

    def route(self, share: Share, table: Table) -> Targets:
        """The target in [0, width) of every record. Called once per upstream task, operator and micro-batch."""


class GroupPlugin(Plugin):
    kind = "group"


def checked(targets: Targets, share: Share, grouping: str, operator: str) -> Targets:
    """Return a route, or raise OptionError if it has too few or too many targets, or a target that does not exist."""
    if targets.shape != (share.rows,) or (share.rows and not (targets.min() >= 0 and targets.max() < share.width)):
        raise OptionError(
            f"the grouping {grouping!r} of operator {operator!r} must return a target from 0 to {share.width - 1} for each of"
            f" {share.rows} records; it returned {targets!r}; correct its route()"
        )
    return targets


@runtime_checkable
class Learner(Protocol):
    """A grouping that learns the costs of records. Pure: all that it learns is in the state, which the caller stores.

    The state consists of arrays with fixed names. While the table is empty, records are routed in turn. A class attribute
    ``by_key = False`` means that it learns the costs of tasks, whatever the keys.
    """

    def initial(self) -> State:
        """The state before the first report."""

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        """The state after a batch. ``costs`` are the reports of its tasks; any may be missing or implausible."""

    def table(self, state: State, width: int) -> Table:
        """The table for the upstream tasks."""


class Online(NamedTuple):
    """A grouping that works record by record. Both functions are kernels, so that the simulator can compile them.

    ``choose(state, key, now, free, queue)``: the target of a record with this hash of its key, at ``now`` seconds.
    ``free[i]`` is the time at which replica i will have finished its queue, and ``queue[i]`` the number of records in it. Only
    groupings with knowledge of the queues, and the theoretical bounds, use them.
    ``completed(state, target, key, cost, now)``: a replica has finished a record. None: the grouping does not learn.
    """

    state: Any  # a NamedTuple of arrays
    choose: Callable[..., int]
    completed: Callable[..., None] | None = None


@runtime_checkable
class Continual(Protocol):
    """A grouping that can route record by record."""

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        """Start with ``k`` replicas. ``before`` is the previous state, if the number of replicas changes."""


F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Mark a function on numbers and arrays as a kernel: the simulator compiles it and the kernels that it calls."""
    function.is_kernel = True  # type: ignore[attr-defined]
    return function
