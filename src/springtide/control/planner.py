"""Plan: from the requested degrees to the granted degrees, slots and widths.

The papers' operators run side by side; Spark's stages take turns on all slots. Granting r replicas for an interval grants
r seconds of work per second, so the slots are the sum of the degrees, less what operators with little work do not need
(``policy/scale/slots.py``). Every stage is as wide as the slots, or narrower where its work would not pay for the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from springtide.errors import OptionError
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Kind, Operator, Topology
from springtide.policy.scale import slots as needed

WORK_PER_TASK_S = 0.010
"""A task gets at least this much work: it costs about 10 ms of fixed time, so with less work it costs more than it saves."""


@dataclass(frozen=True)
class SlotLimit:
    """The most tasks that any plan runs at once."""

    max_slots: int

    def __post_init__(self) -> None:
        if self.max_slots < 1:
            raise OptionError(f"max_slots={self.max_slots} is not allowed; it is at least 1")


def work(snapshot: Snapshot) -> dict[str, float]:
    """Seconds of work a second at each operator whose stages take turns: in batches, and where it was measured."""
    if not snapshot.batches or not snapshot.interval_s:
        return {}
    measured = [operator for operator in snapshot.operators if operator.busy_s is not None and operator.served is not None]
    return {operator.name: (operator.busy_s or 0.0) / snapshot.interval_s for operator in measured}


def grant(
    topology: Topology, wanted: Mapping[str, int], bounds: SlotLimit, work: Mapping[str, float] | None = None
) -> dict[str, int]:
    """Degrees within the bounds: each at least 1 and at most what the operator can use. Above the slots, the largest shrink.

    Of equally large degrees that of the operator with the least work shrinks first: an idle sink must not take a slot from a
    join.
    """
    degrees = {}
    for operator in topology.scalable:
        limit = _limit(operator, bounds.max_slots)
        degrees[operator.name] = max(1, min(int(wanted.get(operator.name, 1)), limit))
    known = work or {}
    while needed.slots(degrees, known) > bounds.max_slots:
        largest = max(degrees, key=lambda name: (degrees[name], -known.get(name, math.inf)))
        if degrees[largest] == 1:
            break  # more operators than slots: they share them
        degrees[largest] -= 1
    return degrees


def filled(topology: Topology, bounds: SlotLimit) -> dict[str, int]:
    """Degrees that use all slots, as evenly as possible."""
    degrees = grant(topology, {}, bounds)
    while sum(degrees.values()) < bounds.max_slots:
        room = [o.name for o in topology.scalable if degrees[o.name] < _limit(o, bounds.max_slots)]
        if not room:
            break
        degrees[min(room, key=lambda name: degrees[name])] += 1
    return degrees


def reading(snapshot: Snapshot) -> float:
    """Seconds of work a second that tasks spend on reading sources."""
    if not snapshot.batches or not snapshot.interval_s:
        return 0.0
    return sum(source.busy_s or 0.0 for source in snapshot.sources) / snapshot.interval_s


def slots(
    degrees: Mapping[str, int], bounds: SlotLimit, work: Mapping[str, float] | None = None, reading: float = 0.0
) -> int:  # fmt: skip
    return min(needed.slots(degrees, work or {}, reading), bounds.max_slots)


def widths(topology: Topology, slots: int, snapshot: Snapshot | None) -> dict[str, int]:
    """How many tasks each operator has in a batch. A chained operator has those of its upstream: in a diamond, once."""
    chosen: dict[str, int] = {}
    heads: dict[str, frozenset[str]] = {}  # the operators whose tasks an operator runs in
    for operator in topology:
        if operator.chained:
            heads[operator.name] = frozenset[str]().union(*(heads[name] for name in operator.inputs))
            chosen[operator.name] = sum(chosen[head] for head in heads[operator.name])
        else:
            heads[operator.name] = frozenset({operator.name})
            worthwhile = _worthwhile(topology, operator, snapshot, slots)
            chosen[operator.name] = max(1, min(_limit(operator, slots), worthwhile))
    return chosen


def _limit(operator: Operator, slots: int) -> int:
    return min(slots, operator.limit or slots)


def _worthwhile(topology: Topology, head: Operator, snapshot: Snapshot | None, slots: int) -> int:
    """How many tasks a stage's work in a batch pays for; all slots while nothing is known."""
    if snapshot is None or not snapshot.batches or head.kind is Kind.STATEFUL:
        return slots
    measured = {source.name: source.busy_s or 0.0 for source in snapshot.sources}
    measured |= {operator.name: operator.busy_s or 0.0 for operator in snapshot.operators}
    busy = sum(measured.get(operator.name, 0.0) for operator in chained(topology, head))
    return math.ceil(busy / len(snapshot.batches) / WORK_PER_TASK_S) or 1


def chained(topology: Topology, head: Operator) -> list[Operator]:
    """An operator and the operators that run in its tasks."""
    chain = [head]
    for consumer in topology.consumers[head.name]:
        if consumer.chained:
            chain += chained(topology, consumer)
    return chain
