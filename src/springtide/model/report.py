"""The report of a batch: by task and operator, and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from springtide.model.costs import TaskCosts
from springtide.model.plan import Plan


@dataclass(frozen=True)
class TaskReport:
    """The work of a task for an operator in a batch. Times are of the worker's clock, in seconds since 1970."""

    operator: str
    task: int
    rows_in: int | None  # None if the operator runs in the JVM
    rows_out: int
    failures: int
    busy_s: float | None  # None if the operator runs in the JVM
    started: float
    finished: float


@dataclass(frozen=True)
class StateReport:
    """The changes of a batch to the state of an operator.

    ``seconds``: the cost of each shard's records; not part of the run's record. ``moved``: the number of shards that have
    another task than in the batch before. ``load_s``, ``commit_s``: the time for finding and for writing state, over all tasks.
    ``pieces``: the most pieces in which a task worked, because its whole state would not fit in memory. ``cache_hits``,
    ``cache_misses``: pieces of files of remote state that were, and were not, in a node's cache. ``fetched_bytes``: the bytes
    that were fetched for the misses.
    """

    keys: int
    bytes: int
    files: int
    added: int
    removed: int
    late: int
    moved: int
    load_s: float
    commit_s: float
    written_bytes: int
    pieces: int
    watermark: int | None = None
    seconds: Mapping[int, float] = field(default_factory=dict, compare=False)
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0


@dataclass(frozen=True)
class Latency:
    """Milliseconds from a record's creation to its commit, over the records of a batch or a run."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class BatchReport:
    """A committed batch. ``latency`` and ``backlog`` are None if the source does not report them; unknown is never zero.

    ``backlogs``: the backlog of each source that tasks read; ``backlog`` is that of all sources together.
    ``rows_shed``: the records that were read, but left out because they were too old. ``rows_lost``: the records that a source
    had deleted before they were read.
    ``waiting``: what waits at each source that counts in other units too: records, files and bytes, and whether the records are
    counted or estimated.
    ``created`` are quantiles of the creation times (seconds since 1970) with the number of records that each represents.
    ``costs`` are the costs of each operator's records, by task, and ``variances`` how well each column explains them. Both are
    for the groupings that learn; they are not part of the run's record.
    """

    batch: int
    epoch: int
    plan: Plan
    started: float
    committed: float
    rows_in: int
    rows_out: int
    rows_failed: int
    tasks: tuple[TaskReport, ...]
    sinks: Mapping[str, int]
    created: tuple[tuple[float, float], ...] = ()
    backlog: int | None = None
    backlogs: Mapping[str, int | None] = field(default_factory=dict)
    phases_ms: Mapping[str, float] | None = None
    waiting: Mapping[str, Mapping[str, int | bool | None]] = field(default_factory=dict)
    rows_shed: int = 0
    rows_lost: int = 0
    state: Mapping[str, StateReport] = field(default_factory=dict)
    costs: Mapping[str, tuple[TaskCosts, ...]] = field(default_factory=dict, compare=False)
    variances: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict, compare=False)

    @property
    def duration_s(self) -> float:
        return self.committed - self.started

    @cached_property  # the record, the totals and the plot of a run all use it
    def latency(self) -> Latency | None:
        return latency_of([(self.committed - at, weight) for at, weight in self.created])

    def to_json(self) -> dict[str, Any]:
        latency = self.latency
        state = {name: replace(report, seconds={}) for name, report in self.state.items()}
        recorded = replace(self, costs={}, variances={}, state=state)
        document = {name: value for name, value in asdict(recorded).items() if name not in ("costs", "variances")}
        return {**document, "latency_ms": None if latency is None else asdict(latency)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchReport:
        known = {k: v for k, v in document.items() if k != "latency_ms"}
        known["plan"] = Plan.from_json(known["plan"])
        known["tasks"] = tuple(TaskReport(**task) for task in known["tasks"])
        known["state"] = {name: StateReport(**report) for name, report in known.get("state", {}).items()}
        known["created"] = tuple((at, weight) for at, weight in known["created"])
        return cls(**known)


def latency_of(waits: list[tuple[float, float]]) -> Latency | None:
    """The distribution of weighted waiting times in seconds.

    >>> latency_of([(0.1, 1), (0.3, 1)])
    Latency(mean=200.0, p50=100.0, p95=300.0, p99=300.0)
    """
    if not waits:
        return None
    waits = sorted(waits)
    total = sum(weight for _, weight in waits)

    def quantile(q: float) -> float:
        below = 0.0
        for wait, weight in waits:
            below += weight
            if below >= q * total - 1e-9:
                return wait * 1000
        return waits[-1][0] * 1000

    mean = sum(wait * weight for wait, weight in waits) / total * 1000
    return Latency(round(mean, 3), *(round(quantile(q), 3) for q in (0.5, 0.95, 0.99)))


def over_time(batches: Sequence[BatchReport], value: Callable[[BatchReport], int | None]) -> list[tuple[int, float]]:
    """A value of each batch that has it, in the order of their starts, and the seconds for which it was in force.

    It is in force until the next batch starts, because slots that wait between two batches are paid for too.
    """
    ends = [report.started for report in batches[1:]] + [report.committed for report in batches[-1:]]
    numbers = ((value(report), end - report.started) for report, end in zip(batches, ends, strict=True))
    return [(number, seconds) for number, seconds in numbers if number is not None]


@dataclass
class TimeWeightedMean:
    """The mean of numbers, weighted by the seconds for which each was in force, and the greatest; updated number by number."""

    seconds: float = 0.0
    product: float = 0.0  # the sum of number × seconds
    total: int = 0
    count: int = 0
    most: int | None = None

    def add(self, number: int, seconds: float) -> None:
        self.seconds += seconds
        self.product += number * seconds
        self.total += number
        self.count += 1
        self.most = number if self.most is None else max(self.most, number)

    def document(self) -> dict[str, float | None]:
        """The mean and the greatest. If all durations are zero, all numbers have the same weight."""
        if not self.count:
            return {"mean": None, "max": None}
        return {"mean": self.product / self.seconds if self.seconds > 0 else self.total / self.count, "max": self.most}


def mean_max(numbers: Iterable[tuple[int, float]]) -> dict[str, float | None]:
    """The mean of numbers, weighted by the seconds for which each was in force, and the greatest.

    >>> mean_max([(4, 1.5), (6, 4.5)])
    {'mean': 5.5, 'max': 6}
    """
    mean = TimeWeightedMean()
    for number, seconds in numbers:
        mean.add(number, seconds)
    return mean.document()


@dataclass
class Violations:
    """The share of the time, by the batches' durations, in which the mean latency was above a target.

    ``after_s``: batches that were committed within this many seconds of the first batch's start do not count.
    """

    target_s: float
    after_s: float = 0.0
    seconds: float = 0.0
    late_s: float = 0.0
    measured: bool = False
    _begin: float | None = None

    def add(self, report: BatchReport) -> None:
        """Count a batch. Batches come in the order of their starts."""
        if self._begin is None:
            self._begin = report.started + self.after_s
        if report.committed < self._begin:
            return
        latency = report.latency
        self.seconds += report.duration_s
        self.measured |= latency is not None
        if latency is not None and latency.mean > 1000 * self.target_s:
            self.late_s += report.duration_s

    @property
    def ratio(self) -> float | None:
        """None if no batch has a latency."""
        return self.late_s / self.seconds if self.measured and self.seconds > 0 else None


def violation_ratio(batches: Iterable[BatchReport], target_s: float, after_s: float = 0.0) -> float | None:
    """The ratio of ``Violations`` over all batches, in the order of their starts."""
    violations = Violations(target_s, after_s)
    for report in batches:
        violations.add(report)
    return violations.ratio
