"""The fixed times of a Spark micro-batch, and their fit to a real run.

A batch of L stages with n records and m tasks in total takes

    batch_s + L · stage_s + m · task_s + n · row_s + Σ over the stages of their tasks' work on the slots

The tasks of a stage are launched one after the other and share the slots. The next batch starts ``gap_s`` after the commit:
Spark asks the sources for new records and logs the answer in that time.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from heapq import heapreplace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError
from springtide.model.report import BatchReport

LEAST_BATCHES = 20
SETTLING = 30
"""Batches at the start of a run that are ignored: until workers have started and the JVM has compiled its hot paths, a batch
takes half as long again on 2 cores."""


@dataclass(frozen=True)
class Constants:
    """Constants in seconds. The defaults were fitted to a run of `tweets` on 2 cores in local mode."""

    batch_s: float = 0.020
    stage_s: float = 0.012
    task_s: float = 0.003
    row_s: float = 0.000_010
    gap_s: float = 0.020

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise OptionError(f"constants: {field.name}={value!r} is not allowed; it is a time in seconds, 0 or more")


def read(path: str | Path) -> Constants:
    """The constants in a file of ``springtide calibrate``, or the defaults."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    given = document.get("constants", {})
    if not isinstance(given, dict):
        raise OptionError(f"constants: {path} has {given!r}; give a mapping, such as {to_json(Constants())}")
    known = {field.name for field in fields(Constants)}
    return Constants(**{name: value for name, value in given.items() if name in known})


def to_json(constants: Constants) -> dict[str, float]:
    return {name: round(value, 9) for name, value in asdict(constants).items()}


def fit(stages: Mapping[str, int], reports: Sequence[BatchReport]) -> Constants:
    """The constants of a run, by least squares over its batches; ``stages``: by operator."""
    used = sorted(reports, key=lambda report: report.started)[SETTLING:]
    used = [report for report in used if report.rows_in and report.tasks]
    if len(used) < LEAST_BATCHES:
        raise OptionError(
            f"the run has {len(used)} batches with records after its first {SETTLING}; {LEAST_BATCHES} are needed to fit"
            " constants: let it run longer"
        )
    count = max(stages.values()) + 1
    rest = np.array([max(0.0, report.duration_s - critical_s(report, stages)) for report in used])
    tasks = np.array([len({(stages[t.operator], t.task) for t in report.tasks}) for report in used], dtype=np.float64)
    rows = np.array([report.rows_in for report in used], dtype=np.float64)
    fixed, per_task, per_row = _fitted(rest, tasks, rows)
    stage = min(_between_stages(used, stages), fixed / count)
    gaps = sorted(after.started - before.committed - _pause_s(before) for before, after in itertools.pairwise(used))
    gap = statistics.median(gaps[: max(1, len(gaps) // 2)]) if gaps else 0.0  # the shorter half: in long gaps Spark waits
    return Constants(fixed - count * stage, stage, per_task, per_row, max(0.0, gap))


def _pause_s(report: BatchReport) -> float:
    """The delay of the next batch by the trigger."""
    return max(0.0, report.plan.trigger_s - report.duration_s)


def critical_s(report: BatchReport, stages: Mapping[str, int]) -> float:
    """The sum of the stages' makespans: each task runs on the first free slot, in the order of task numbers.

    Chained operators report under the same task number. The slots are the plan's, or more if more tasks ran at once.
    """
    busy: dict[int, dict[int, float]] = {}
    spans: dict[int, dict[int, tuple[float, float]]] = {}
    for task in report.tasks:
        work, span = busy.setdefault(stages[task.operator], {}), spans.setdefault(stages[task.operator], {})
        work[task.task] = work.get(task.task, 0.0) + (task.busy_s or 0.0)
        first, last = span.get(task.task, (task.started, task.finished))
        span[task.task] = (min(first, task.started), max(last, task.finished))
    total = 0.0
    for stage, work in busy.items():
        slots = [0.0] * max(1, report.plan.slots, _at_once(spans[stage].values()))
        for number in sorted(work):
            heapreplace(slots, slots[0] + work[number])
        total += max(slots)
    return total


def _at_once(spans: Iterable[tuple[float, float]]) -> int:
    """The maximum number of concurrent tasks; a task that begins when another ends does not overlap it."""
    changes = sorted(change for begin, end in spans if end > begin for change in ((begin, 1), (end, -1)))
    return max(itertools.accumulate(change for _, change in changes), default=0)


def _fitted(rest: npt.NDArray[np.float64], *columns: npt.NDArray[np.float64]) -> list[float]:
    """A constant and a factor for each column, none negative: the best solution over all subsets of the columns.

    Errors are relative, so that long batches do not outweigh short ones.
    """
    weights = 1 / np.maximum(rest, np.median(rest) / 10 + 1e-9)
    best, least = [float(np.median(rest)), *(0.0 for _ in columns)], float("inf")
    for chosen in itertools.product((False, True), repeat=len(columns)):
        table = np.column_stack([np.ones(len(rest)), *(c for c, used in zip(columns, chosen, strict=True) if used)])
        solution, *_ = np.linalg.lstsq(table * weights[:, None], rest * weights, rcond=None)
        error = float((((table @ solution) - rest) * weights) @ (((table @ solution) - rest) * weights))
        if (solution >= 0).all() and error < least * (1 - 1e-9):
            found = iter(solution.tolist())
            best, least = [next(found), *(next(found) if used else 0.0 for used in chosen)], error
    return best


def _between_stages(reports: Sequence[BatchReport], stages: Mapping[str, int]) -> float:
    """The median time from the end of a stage to the start of the next one."""
    gaps = []
    for report in reports:
        spans: dict[int, tuple[float, float]] = {}
        for task in report.tasks:
            first, last = spans.get(stages[task.operator], (task.started, task.finished))
            spans[stages[task.operator]] = (min(first, task.started), max(last, task.finished))
        ordered = [spans[stage] for stage in sorted(spans)]
        gaps += [max(0.0, after[0] - before[1]) for before, after in itertools.pairwise(ordered)]
    return statistics.median(gaps) if gaps else float("inf")
