"""The balance of work under each grouping on real Spark, and its effect on a batch's time: all contenders in the same run.

For every kind of costs and every size of batch, each round draws a batch, and every contender runs it, in an order that rotates
from round to round: Spark's own partitionings with a hand-written operator, and Springtide's pipeline with each grouping. The
records come from a single partition for all.

Groupings that learn are warm: 50,000 records of the stream were measured on Spark beforehand, 40 at a time, and every grouping
gets the reports batch by batch, as if its own tasks had made them. The records of that warm-up wait even if the measured ones
burn cycles, because burning 50,000 would take a quarter of an hour; a key takes the same time in both. After that each
contender goes on learning from its own reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import springtide as st
from springtide.bench.balance_work import TASK_SCHEMA, WORK, Item, KeyCosts, LptTrue, spark_task, stream
from springtide.bench.statistics import quartiles, turned
from springtide.control.routing import Routing
from springtide.model.costs import TaskCosts
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.policy import registry
from springtide.policy.group import Grouping
from springtide.spark.driver import session as sessions
from springtide.spark.driver.pipeline import BatchOutcome, Pipeline
from springtide.spark.shared.program import Program, Staging, compile_topology
from springtide.spark.task.context import BATCH_PROPERTY

K = {"wait": 5, "cpu": 2}
COSTS = ("posg", "tweets", "constant")
SIZES = {100: 1.0, 2_000: 8.0}
"""For each number of records in a batch, the divisor of their costs."""
SIDES = ("repartition", "hash", "posg", "lpt", "lpt-true", "tide")
WARM_WIDTH = 40


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement."""

    rounds: Mapping[int, int]  # by the size of a batch: small batches vary more
    warm_records: int


FULL = Effort({100: 14, 2_000: 6}, 50_000)
QUICK = Effort({100: 4, 2_000: 2}, 10_000)


@dataclass(frozen=True)
class Timing:
    """The times of a contender for a batch."""

    batch_s: float
    completion_s: float  # mean over the records, from the start of the batch to the end of their work
    busy_s: tuple[float, ...]  # of each task


def measure(work: str, quick: bool = False, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """Run all contenders on all kinds of costs and sizes."""
    k, rows, effort = K[work], [], QUICK if quick else FULL
    streams = {(costs, size): _drawing(costs, size) for costs in COSTS for size in SIZES}
    with spark_session(WARM_WIDTH) as session:
        warm_up = {case: _measured(session, *drawing, effort.warm_records) for case, drawing in streams.items()}
    print(f"{effort.warm_records:,} records of each stream measured", file=progress, flush=True)
    with spark_session(k) as session:
        for (costs, size), (records, rng) in streams.items():
            sides = _sides(session, work, k)
            for reports in warm_up[costs, size]:
                _teach(sides, reports, k)
            measured = _alternate(session, records, sides, size, effort.rounds[size], rng)
            rows += [_row(costs, size, k, name, measured) for name in SIDES]
            print(f"{work}: {costs} costs, {size} records: {effort.rounds[size]} rounds", file=progress, flush=True)
    return {
        "work": work, "k": k, "warm_records": effort.warm_records, "source_partitions": 1,
        "note": _NOTES[work], "rows": rows,
    }  # fmt: skip


_NOTES = {
    "wait": "work is waiting: a task holds its slot and no core, so 5 tasks run side by side on any machine",
    "cpu": "work burns cycles, with as many tasks as cores",
}


def _alternate(
    session: SparkSession, records: KeyCosts, sides: Mapping[str, _Side], size: int, rounds: int, rng: np.random.Generator
) -> dict[str, list[tuple[Timing, float]]]:
    """Run a round to warm up, then the measured rounds: each contender's timings, with the longest cost in each batch."""
    measured: dict[str, list[tuple[Timing, float]]] = {name: [] for name in SIDES}
    for number in range(rounds + 1):
        drawn = records.drawn(size, rng)
        frame = session.createDataFrame(drawn).coalesce(1).cache()
        frame.count()
        for name in turned(SIDES, number):
            batch = sides[name].run(frame, size, number)
            if number:
                measured[name].append((batch, float(np.max(drawn.column("seconds").to_numpy()))))
        frame.unpersist()
    return measured


def _row(costs: str, size: int, k: int, name: str, measured: Mapping[str, list[tuple[Timing, float]]]) -> dict[str, Any]:
    own = [batch for batch, _ in measured[name]]
    batch_s = statistics.median(batch.batch_s for batch in own)
    speedups = {
        other: [theirs.batch_s / ours.batch_s for (theirs, _), ours in zip(measured[other], own, strict=True)]
        for other in ("repartition", "hash")
    }
    balances = [max(b.busy_s) / max(sum(b.busy_s) / k, longest) for b, longest in measured[name]]
    saved = [theirs.batch_s - ours.batch_s for (theirs, _), ours in zip(measured["repartition"], own, strict=True)]
    best = [
        theirs.batch_s - ours.batch_s
        for (theirs, _), (ours, _) in zip(measured["repartition"], measured["lpt-true"], strict=True)
    ]
    return {
        "costs": costs,
        "records": size,
        "grouping": name,
        "completion_ms": round(1000 * statistics.median(batch.completion_s for batch in own), 1),
        "batch_ms": round(1000 * batch_s, 1),
        "balance": round(statistics.mean(balances), 3),
        "throughput_rows_s": round(size / batch_s, 1),
        "batch_speedup": round(statistics.median(speedups["repartition"]), 3),
        "batch_speedup_iqr": quartiles(speedups["repartition"]),
        "batch_speedup_over_hash": round(statistics.median(speedups["hash"]), 3),
        "gain_ms": round(1000 * statistics.mean(saved), 1),
        "gain_of_lpt_true": round(sum(saved) / sum(best), 2) if costs != "constant" and sum(best) > 0 else None,
    }


class _Side:
    """A way to distribute a batch over k tasks."""

    def run(self, frame: DataFrame, rows: int, number: int) -> Timing:
        raise NotImplementedError

    def learn(self, costs: list[TaskCosts]) -> None:
        """Learn from reports of records that others measured, if the grouping learns."""


@dataclass
class _Spark(_Side):
    """Spark's own partitioning, with a hand-written operator."""

    work: str
    k: int
    by: tuple[str, ...] = ()

    def run(self, frame: DataFrame, rows: int, number: int) -> Timing:
        begin = time.time()
        tasks = frame.repartition(self.k, *self.by).mapInArrow(spark_task(self.work), TASK_SCHEMA).collect()
        took = time.time() - begin
        done = sum(task.done for task in tasks)
        return Timing(took, done / rows - begin, tuple(task.busy for task in tasks))


@dataclass
class Springtide(_Side):
    """Springtide's pipeline, from the batch's DataFrame to the reports of its tasks."""

    session: SparkSession
    work: str
    k: int
    grouping: Grouping
    program: Program = field(init=False)
    pipeline: Pipeline = field(init=False)
    routing: Routing = field(init=False)

    def __post_init__(self) -> None:
        rows = st.source.dataframe(_no_stream, schema=Item, ordered=True)
        worked = rows.map(WORK[self.work], name="work", grouping=self.grouping.name, by="key")
        topology = worked.to(st.sink.discard(), name="nowhere").named("balance")
        groupings = {"work": self.grouping}
        letters = Staging(str(Path(tempfile.gettempdir()) / "springtide-bench-letters"), "json")  # nothing fails here
        self.program = compile_topology(topology, groupings, {"nowhere": None}, letters)
        self.spent = 0.0
        self.routing = Routing(topology, groupings, None, lambda: self.spent, wait=True)  # the time of its own batches
        self._routes: tuple[Plan, Mapping[str, Any]] | None = None
        self.renew()

    def renew(self) -> None:
        """Ship the program and the groupings' tables again, as at the start of a run."""
        self.pipeline = Pipeline(self.session, self.program, epoch=1)

    def run(self, frame: DataFrame, rows: int, number: int) -> Timing:
        self.session.sparkContext.setLocalProperty(BATCH_PROPERTY, str(number))
        begin = time.time()
        outcome = self.outcome(frame)
        took = time.time() - begin
        self.spent += took
        self.learn(outcome.costs.get("work", []))
        own = [tally for task in outcome.tasks for tally in task.operators if tally.operator == "work"]
        # a task processes its records one after another, so on average a record is done in the middle of that time
        ends = sum((tally.rows_in or 0) * ((tally.started + tally.finished) / 2 - begin) for tally in own)
        return Timing(took, ends / rows, tuple(tally.busy_s or 0.0 for tally in own))

    def outcome(self, frame: DataFrame) -> BatchOutcome:
        plan = self._plan()
        if self._routes is None or self._routes[0] != plan:
            self._routes = (plan, self.routing.routes(plan))
        return self.pipeline.run(frame, {}, plan.widths, self._routes[1])

    def learn(self, costs: list[TaskCosts]) -> None:
        if costs:
            report = BatchReport(0, 1, self._plan(), 0.0, 0.0, 0, 0, 0, (), {}, costs={"work": tuple(costs)})
            self.routing.report(report)

    def _plan(self) -> Plan:
        return Plan({"work": self.k}, self.k, {"work": self.k}, knowledge=self.routing.edition)


def _no_stream(session: SparkSession) -> DataFrame:
    raise AssertionError("batches are passed to the pipeline directly; the source is never read")


def _sides(session: SparkSession, work: str, k: int) -> dict[str, _Side]:
    own: dict[str, Grouping] = {name: registry.create("group", name) for name in ("posg", "lpt", "tide")}
    own["lpt-true"] = LptTrue()
    spark = {"repartition": _Spark(work, k), "hash": _Spark(work, k, ("key",))}
    return spark | {name: Springtide(session, work, k, grouping) for name, grouping in own.items()}


def _drawing(costs: str, size: int) -> tuple[KeyCosts, np.random.Generator]:
    rng = np.random.default_rng([COSTS.index(costs), size])
    return stream(costs, SIZES[size], rng), rng


def _measured(session: SparkSession, records: KeyCosts, rng: np.random.Generator, count: int) -> list[list[TaskCosts]]:
    """The costs of ``count`` records, measured on Spark, where they wait, 40 at a time."""
    wide = Springtide(session, "wait", WARM_WIDTH, registry.create("group", "tide"))
    session.sparkContext.setLocalProperty(BATCH_PROPERTY, "0")
    size = min(count, 10_000)
    frames = (session.createDataFrame(records.drawn(size, rng)).coalesce(1) for _ in range(0, count, size))
    return [wide.outcome(frame).costs["work"] for frame in frames]


def _teach(sides: Mapping[str, _Side], reports: list[TaskCosts], k: int) -> None:
    """Pass the reports to every contender, divided into batches of k tasks."""
    for first in range(0, WARM_WIDTH, k):
        part = [dataclasses.replace(report, task=report.task % k) for report in reports if first <= report.task < first + k]
        for side in sides.values():
            side.learn(part)


@contextlib.contextmanager
def spark_session(slots: int) -> Iterator[SparkSession]:
    with tempfile.TemporaryDirectory(prefix="springtide-bench-") as folder:
        session: Any = sessions.create(f"local[{slots}]", "springtide-bench", log=Path(folder) / "spark.log")
        try:
            yield session
        finally:
            session.stop()
