"""Which of an operator's tasks gets a record: the groupings.

A grouping is one frozen object with up to three faces, each a protocol below:

    Grouping   routes a micro-batch: in Spark's tasks, and in the simulator's micro-batch mode
    Learner    learns from what the tasks measured: on the driver, and in the simulator's micro-batch mode
    Continual  routes record by record and learns as it goes: in the simulator's continuous mode
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

Targets = npt.NDArray[np.int64]
State = Mapping[str, npt.NDArray[Any]]
"""What a grouping has learned: arrays only, so that it is saved without a pickle."""
Table = Mapping[str, npt.NDArray[Any]]
"""What upstream tasks need of that to route; empty while nothing is known."""


@dataclass(frozen=True, eq=False)
class Share:
    """What one upstream task sends to one operator in one micro-batch, in the order of its sequence.

    ``width`` is the number of targets, 1 or more; ``origin`` the number of the upstream task, 0 or more.
    ``records`` is None in the simulator, where a record is no more than its key.
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
        """The share of these records, keyed by these columns: none, if the operator has no key. ``seed``: of their hash."""
        from springtide.policy.group.keys import key_hashes

        hashes = (lambda: key_hashes(records, key, seed)) if key else None
        return cls(records.num_rows, width, origin, batch, hashes, records)

    @property
    def keyed(self) -> bool:
        return self.hashes is not None

    @cached_property
    def keys(self) -> Hashes:
        """A hash of 64 bits of every record's key."""
        if self.hashes is None:
            raise OptionError("a grouping by key needs one: name its columns with key_by, or choose 'round-robin'")
        return self.hashes()


@dataclass(frozen=True, eq=False)
class Route:
    """What upstream tasks need to route to one operator: the columns that the grouping goes by, and what it knows.

    ``key`` is None as long as the column that drives the cost is searched for, and () when there is none.
    """

    key: tuple[str, ...] | None = ()
    table: Table = field(default_factory=dict)


class Grouping(Protocol):
    """Routes the output of an upstream task, where it is produced.

    A route is a pure function of the arguments and the parameters. A stage that is recomputed after a lost
    executor has to send every record where it went the first time, or records are lost and doubled without an
    error.
    """

    name: ClassVar[str]

    def route(self, share: Share, table: Table) -> Targets:
        """The target in [0, width) of every record. Called once per upstream task, operator and micro-batch."""
        ...


def checked(targets: Targets, share: Share, grouping: str, operator: str) -> Targets:
    """A route, or an error if records would be lost by it: as many targets as records, and all of them there."""
    if targets.shape != (share.rows,) or (share.rows and not (targets.min() >= 0 and targets.max() < share.width)):
        raise OptionError(
            f"the grouping {grouping!r} of operator {operator!r} is to give a target from 0 to {share.width - 1} for each of"
            f" {share.rows} records; it gave {targets!r}"
        )
    return targets


@runtime_checkable
class Learner(Protocol):
    """A grouping that learns what records cost. Pure: what it knows is in the state, which the caller keeps.

    Arrays of fixed names make up the state. While the table is empty, records are dealt out in turn. A class attribute
    ``by_key = False`` says that it learns what tasks take, whatever the key.
    """

    def initial(self) -> State:
        """What is known before the first report."""
        ...

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        """What is known after a batch. ``costs`` has those tasks that reported; any may be missing or odd."""
        ...

    def table(self, state: State, width: int) -> Table:
        """What the tasks get to know."""
        ...


class Online(NamedTuple):
    """A grouping at work record by record. Both functions are kernels, so that the simulator can compile them.

    ``choose(state, key, now, free, queue)``: the target of a record with this hash of its key, at ``now`` seconds.
    ``free[i]`` is when replica i will have done all that it was given, and ``queue[i]`` how many records that is:
    for the groupings that are told, and for the bounds; the others leave them alone.
    ``completed(state, target, key, cost, now)``: a replica is done with a record. None: it learns nothing.
    """

    state: Any  # a NamedTuple of arrays
    choose: Callable[..., int]
    completed: Callable[..., None] | None = None


@runtime_checkable
class Continual(Protocol):
    """A grouping that can route record by record."""

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        """Begin with ``k`` replicas; ``before`` is the state so far when the number of replicas changes."""
        ...


F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Mark a function on numbers and arrays: the simulator compiles it, and whatever kernels it calls."""
    function.is_kernel = True  # type: ignore[attr-defined]
    return function
