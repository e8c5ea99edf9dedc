"""What a batch did: per task and operator, and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from springtide.model.costs import TaskCosts
from springtide.model.plan import Plan


@dataclass(frozen=True)
class TaskReport:
    """What one task did for one operator in one batch. Times are of the worker's clock, in seconds since 1970."""

    operator: str
    task: int
    rows_in: int | None  # None where it runs in the JVM
    rows_out: int
    failures: int
    busy_s: float | None  # None where it runs in the JVM
    started: float
    finished: float


@dataclass(frozen=True)
class StateReport:
    """What a batch did to the state of one operator. ``seconds``: what the records of each shard cost; not part of the record.

    ``moved``: shards that another task has than in the batch before. ``load_s``, ``commit_s``: over all tasks, what finding and
    writing state took. ``pieces``: in how many a task worked at most, because all of its state would not fit in memory.
    ``cache_hits``, ``cache_misses``, ``fetched_bytes``: of state that lies elsewhere, pieces of files that a node had and that
    it had not, and the bytes that were moved to nodes for those.
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
    """Milliseconds from a record's creation to its commit, over the records of one batch or one run."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class BatchReport:
    """One committed batch. ``latency`` and ``backlog`` are None where the source cannot tell, never zero for unknown.

    ``rows_shed``: of those that were read, how many were too old and left out.
    ``created`` are quantiles of the creation times (seconds since 1970) with the number of records each stands for.
    ``costs`` has, by operator, what its tasks' records cost, and ``variances`` what each column tells about that, both for
    the groupings that learn; they are not part of the run's record.
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
    phases_ms: Mapping[str, float] | None = None
    rows_shed: int = 0
    state: Mapping[str, StateReport] = field(default_factory=dict)
    costs: Mapping[str, tuple[TaskCosts, ...]] = field(default_factory=dict, compare=False)
    variances: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict, compare=False)

    @property
    def duration_s(self) -> float:
        return self.committed - self.started

    @cached_property  # the record, the totals and the plot of a run all ask for it
    def latency(self) -> Latency | None:
        return latency_of([(self.committed - at, weight) for at, weight in self.created])

    def to_json(self) -> dict[str, Any]:
        latency = self.latency
        state = {name: replace(told, seconds={}) for name, told in self.state.items()}
        recorded = replace(self, costs={}, variances={}, state=state)
        told = {name: value for name, value in asdict(recorded).items() if name not in ("costs", "variances")}
        return {**told, "latency_ms": None if latency is None else asdict(latency)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchReport:
        known = {k: v for k, v in document.items() if k != "latency_ms"}
        known["plan"] = Plan.from_json(known["plan"])
        known["tasks"] = tuple(TaskReport(**task) for task in known["tasks"])
        known["state"] = {name: StateReport(**told) for name, told in known.get("state", {}).items()}
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


def held(batches: Sequence[BatchReport], value: Callable[[BatchReport], int | None]) -> list[tuple[int, float]]:
    """A number of each batch that has it, in the order of their starts, and the seconds that it was held for.

    That is until the next batch starts: between two of them, slots wait, and are paid for.
    """
    ends = [report.started for report in batches[1:]] + [report.committed for report in batches[-1:]]
    numbers = ((value(report), end - report.started) for report, end in zip(batches, ends, strict=True))
    return [(number, seconds) for number, seconds in numbers if number is not None]


@dataclass
class HeldMean:
    """The mean of numbers over the seconds that each was held for, and the greatest, one by one as they come."""

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
        """What ``mean_max`` returns. Numbers that were held for no time at all count alike."""
        if not self.count:
            return {"mean": None, "max": None}
        return {"mean": self.product / self.seconds if self.seconds > 0 else self.total / self.count, "max": self.most}


def mean_max(numbers: Iterable[tuple[int, float]]) -> dict[str, float | None]:
    """The mean of numbers over the seconds that each was held for, and the greatest.

    >>> mean_max([(4, 1.5), (6, 4.5)])
    {'mean': 5.5, 'max': 6}
    """
    mean = HeldMean()
    for number, seconds in numbers:
        mean.add(number, seconds)
    return mean.document()


@dataclass
class Violations:
    """The share of the time, by the batches' durations, in which the mean latency was above a target.

    ``after_s``: batches that were committed before, seconds after the first one started, do not count.
    """

    target_s: float
    after_s: float = 0.0
    seconds: float = 0.0
    late_s: float = 0.0
    measured: bool = False
    _begin: float | None = None

    def add(self, report: BatchReport) -> None:
        """Count a batch; the first one to come is the one that started first."""
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
        """None if no batch knows its latency."""
        return self.late_s / self.seconds if self.measured and self.seconds > 0 else None


def violation_ratio(batches: Iterable[BatchReport], target_s: float, after_s: float = 0.0) -> float | None:
    """The ratio of ``Violations`` over all batches, in the order of their starts."""
    violations = Violations(target_s, after_s)
    for report in batches:
        violations.add(report)
    return violations.ratio
