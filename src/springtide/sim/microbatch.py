"""Micro-batch mode: a model runs as Spark runs a topology, batch after batch and stage after stage.

A batch takes the records that arrived before its start, up to the plan's read limit. Its stages follow one another, with a
barrier in between; the tasks of a stage share the slots. The same calls as in Spark's tasks route the records and report their
costs, and the same control loop receives both. A record is done when its batch is committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heapreplace

import numpy as np
import numpy.typing as npt

from springtide.control.ports import Control
from springtide.model.costs import Hashes, TaskCosts
from springtide.model.plan import Plan
from springtide.model.report import BatchReport, TaskReport
from springtide.policy.group import Grouping, Learner, Route, Share, checked
from springtide.policy.group.keys import mix
from springtide.sim.arrivals import Arrivals, Batch, joined
from springtide.sim.constants import Constants
from springtide.sim.draws import generator
from springtide.sim.flow import handed_on
from springtide.sim.kernels import Floats
from springtide.sim.model import Model, Operator

QUANTILES = 64
NEVER = 2**62
POLL_S = 0.010
"""Spark's polling interval while there are no new records."""


class MicroBatches:
    """The batches of a run from ``begin_s`` on. ``slots`` limits the concurrent tasks, whatever the plan."""

    def __init__(
        self, model: Model, groupings: Mapping[str, Grouping], constants: Constants, slots: int, seed: int,
        records: int | None = None, begin_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.model, self._groupings, self._constants, self._slots = model, groupings, constants, slots
        self._sources = [_Source(Arrivals(source, seed, records, 0)) for source in model.sources]
        self._level = model.topology.stages
        self._random = {operator.name: generator(seed, f"costs of {operator.name}") for operator in model.operators}
        self._coins = {name: generator(seed, f"copies from {name}") for name in self._names()}
        self._readers = {name: model.readers(name) for name in self._names()}
        self._splits = {operator.name for operator in model.operators if operator.splits}
        self._seen = dict.fromkeys(self._random, 0)
        self.now, self.number = begin_s, 0
        self._before: tuple[Plan, Mapping[str, Route]] | None = None

    def _names(self) -> list[str]:
        return [source.name for source in self.model.sources] + [operator.name for operator in self.model.operators]

    @property
    def exhausted(self) -> bool:
        return all(source.exhausted for source in self._sources)

    def run(self, control: Control, until: float, tick: Callable[[float, bool], None]) -> None:
        """Run batches until the time is over or all records are done.

        ``tick`` receives the time before each batch, and before each report: decisions during a batch do not know its result.
        Its second argument says whether decisions at this very time are included.
        """
        while self.now < until and not self.exhausted:
            tick(self.now, True)
            limit = control.current().read_limit
            taken = [source.take(self.now, limit, len(self._sources)) for source in self._sources]
            if not any(len(batch.at) for batch in taken):
                following = min(source.next_at for source in self._sources)
                self.now += POLL_S * max(1, int(np.ceil((following - self.now) / POLL_S)))
                continue
            plan = control.current()
            if self._before is None or self._before[0] != plan:
                self._before = (plan, control.routes(plan))
            report = self._batch(plan, self._before[1], taken)
            tick(report.committed, False)
            control.report(report)
            self.now += max(0.0, plan.trigger_s - report.duration_s)
        tick(self.now, True)

    def _batch(self, plan: Plan, routes: Mapping[str, Route], taken: Sequence[Batch]) -> BatchReport:
        started = self.now + self._constants.gap_s
        coming: dict[str, list[Batch]] = {operator.name: [] for operator in self.model.operators}  # a batch per task
        for source, batch in zip(self.model.sources, taken, strict=True):
            self._send(source.name, _dealt(batch, plan.widths.get(source.name, 1)), coming)
        rows = sum(len(batch.at) for batch in taken)
        tasks: list[TaskReport] = []
        costs: dict[str, tuple[TaskCosts, ...]] = {}
        at = started
        for level in range(max(self._level.values()) + 1):
            at += self._constants.stage_s
            here = [operator for operator in self.model.operators if self._level[operator.head] == level]
            at = self._stage(here, plan, routes, coming, at, tasks, costs)
        exits = dict.fromkeys((operator.head for operator in self.model.exits), 0)
        for operator in self.model.exits:
            exits[operator.head] += sum(len(batch.at) for batch in coming[operator.name])
        committed = at + self._constants.batch_s + self._constants.row_s * rows
        self.now, self.number = committed, self.number + 1
        created = np.sort(np.concatenate([batch.created for batch in taken]))
        return BatchReport(
            self.number - 1, 1, plan, started, committed, rows, sum(exits.values()), 0, tuple(tasks), exits,
            created=_quantiles(created), backlog=sum(source.waiting(committed) for source in self._sources), costs=costs,
        )  # fmt: skip

    def _stage(
        self, operators: Sequence[Operator], plan: Plan, routes: Mapping[str, Route], coming: dict[str, list[Batch]],
        at: float, tasks: list[TaskReport], costs: dict[str, tuple[TaskCosts, ...]],
    ) -> float:  # fmt: skip
        """Run the operators of a stage, whose tasks are launched one after the other. Returns the end of its last task."""
        slots = [at] * self._slots
        launched = last = at
        count = itertools.count()  # tasks are numbered within the stage
        for operator in operators:
            parts = self._parts(operator, plan, routes, coming[operator.name])
            measured = []
            for number, (part, factors) in enumerate(zip(parts, self._factors(operator, parts, at), strict=True)):
                seconds = np.empty(len(part.at))
                operator.cost.draw(self._random[operator.name], part.item, seconds)
                seconds *= factors
                launched += self._constants.task_s
                begin = max(slots[0], launched)
                end = begin + float(seconds.sum())
                heapreplace(slots, end)
                last = max(last, end)
                tasks += _reports(operator, next(count), len(part.at), begin, end)
                if isinstance(self._groupings[operator.name], Learner) and len(part.at):
                    measured.append(TaskCosts.of(number, _keys(operator, part), seconds))
            if measured:
                costs[operator.name] = tuple(measured)
            self._send(operator.name, parts, coming)
        return last

    def _factors(self, operator: Operator, parts: Sequence[Batch], at: float) -> list[Floats | float]:
        """The cost factors of each task's records, which count in the order of arrival."""
        phases = operator.phases
        if not phases:
            return [1.0] * len(parts)
        first, count = self._seen[operator.name], sum(len(part.at) for part in parts)
        self._seen[operator.name] += count
        place = np.empty(count, dtype=np.int64)
        whole = joined(parts)
        place[np.lexsort((whole.root, whole.at))] = np.arange(first, first + count)
        begins = [phase.from_record if phase.from_s <= at else NEVER for phase in phases[1:]]
        phase = np.searchsorted(np.maximum.accumulate(begins), place, side="right") if begins else np.zeros(count, dtype=int)
        edges = np.cumsum([len(part.at) for part in parts])[:-1]
        return [
            np.array([phase.factors[task] if task < len(phase.factors) else 1.0 for phase in phases])[own]
            for task, own in enumerate(np.split(phase, edges))
        ]

    def _send(self, name: str, parts: Sequence[Batch], coming: dict[str, list[Batch]]) -> None:
        for part in parts:
            for reader, batch in handed_on(self._readers[name], name in self._splits, part, self._coins[name]):
                coming[reader].append(batch)

    def _parts(self, operator: Operator, plan: Plan, routes: Mapping[str, Route], coming: Sequence[Batch]) -> list[Batch]:
        """The input of each task of an operator."""
        if self.model.topology[operator.head].chained:  # it runs in its producers' tasks
            return list(coming)
        width = max(1, plan.widths.get(operator.head, 1))
        grouping, table = self._groupings[operator.name], routes.get(operator.name, Route()).table
        parts: list[list[Batch]] = [[] for _ in range(width)]
        for origin, batch in enumerate(coming):
            share = self._share(operator, batch, width, origin)
            name = getattr(grouping, "name", type(grouping).__name__)
            targets = checked(np.asarray(grouping.route(share, table)), share, name, operator.head)
            for target in range(width):
                parts[target].append(batch.part(targets == target))
        return [joined(part) for part in parts]

    def _share(self, operator: Operator, batch: Batch, width: int, origin: int) -> Share:
        return Share(len(batch.at), width, origin, self.number, hashes=lambda: _keys(operator, batch))


class _Source:
    """A source and its unread records."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._waiting = arrivals, [arrivals.take(-1.0)]

    @property
    def exhausted(self) -> bool:
        return self._arrivals.exhausted and not sum(len(batch.at) for batch in self._waiting)

    @property
    def next_at(self) -> float:
        """The time of the next arrival."""
        return self._arrivals.next_at

    def take(self, now: float, limit: int | None, shares: int) -> Batch:
        """The oldest records that have arrived, up to this source's share of the limit."""
        self._fetch(now)
        waiting = joined(self._waiting)
        most = len(waiting.at) if limit is None else max(1, limit // shares)
        self._waiting = [waiting.part(slice(most, None))]
        return waiting.part(slice(0, most))

    def waiting(self, now: float) -> int:
        self._fetch(now)
        return sum(len(batch.at) for batch in self._waiting)

    def _fetch(self, now: float) -> None:
        while not self._arrivals.exhausted and self._arrivals.next_at <= now:
            self._waiting.append(self._arrivals.take(min(now, self._arrivals.block_end)))


def _dealt(batch: Batch, width: int) -> list[Batch]:
    """A source's records in ``width`` contiguous parts."""
    edges = np.linspace(0, len(batch.at), max(1, width) + 1).astype(np.int64)
    return [batch.part(slice(low, high)) for low, high in itertools.pairwise(edges)]


def _keys(operator: Operator, batch: Batch) -> Hashes:
    if operator.keys is None:
        return mix(batch.item.astype(np.uint64))
    keys: Hashes = operator.keys[batch.item]
    return keys if operator.hashed else mix(keys)


def _reports(operator: Operator, task: int, rows: int, begin: float, end: float) -> list[TaskReport]:
    """The task's reports: one for each operator that is folded into this one."""
    return [
        TaskReport(name, task, round(rows * per), round(rows * per), 0, (end - begin) * share, begin, end)
        for name, share, per in operator.folded
    ]


def _quantiles(created: Floats) -> tuple[tuple[float, float], ...]:
    groups: list[npt.NDArray[np.float64]] = np.array_split(created, min(QUANTILES, len(created))) if len(created) else []
    return tuple((float(group.mean()), float(len(group))) for group in groups)
