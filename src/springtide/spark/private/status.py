"""What the driver knows of a query that is not Springtide's: its progress, and its jobs in the status store.

Why: ``springtide.attach`` has to see what each stage of a batch took, which a query's public progress does not say.
Seen to work on: Spark 4.2 and 4.3.
Without it (``statusStore``, ``_jsq`` of a query): the attachment fails when it begins, and the query goes on as it was.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.streaming import StreamingQuery


class Job(NamedTuple):
    """A job of a query: seconds since 1970, and the numbers of its stages."""

    submitted: float
    completed: float | None
    stages: tuple[int, ...]


class QueryLook:
    """What the driver knows of a streaming query: its progress, and the jobs of its group in the status store."""

    def __init__(self, query: StreamingQuery, session: QuerySession) -> None:
        self._jsq, self._group = query._jsq, str(query.runId)
        self._tracker = session.sparkContext.statusTracker()
        self._store = session.sparkContext._jsc.sc().statusStore()
        self._gateway = session.sparkContext._gateway
        self._java = self._gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self._half_and_all = self._gateway.new_array(self._gateway.jvm.double, 2)
        self._half_and_all[0], self._half_and_all[1] = 0.5, 1.0

    def trigger_s(self) -> float | None:
        """The time between two batches, 0 where each starts as soon as it can; None where there are no batches."""
        trigger = self._jsq.streamingQuery().trigger()
        kind = trigger.getClass().getSimpleName().rstrip("$")
        if kind in ("ContinuousTrigger", "RealTimeTrigger"):
            return None
        return trigger.intervalMs() / 1000 if kind == "ProcessingTimeTrigger" else 0.0

    def progress(self, after: int | None, most: int) -> list[dict[str, Any]]:
        """The last documents of batches with higher numbers than ``after``, the oldest first.

        One that has its forerunner's number tells that nothing came.
        """
        kept, found = self._jsq.recentProgress(), dict[int, dict[str, Any]]()
        for place in range(len(kept) - 1, -1, -1):
            number = kept[place].batchId()
            if (len(found) == most and number not in found) or (after is not None and number <= after):
                break
            found[number] = json.loads(kept[place].json())  # the oldest of a number is the batch, the others are idle time
        return [found[number] for number in sorted(found)]

    def jobs(self) -> list[int]:
        return sorted(self._tracker.getJobIdsForGroup(self._group))

    def job(self, number: int) -> Job | None:
        """None when the store has forgotten it, or has not heard of it."""
        try:
            told = self._store.job(number)
        except Exception:  # noqa: BLE001  the store raises what Java raises for what is not there
            return None
        begun, done = told.submissionTime(), told.completionTime()
        if not begun.isDefined():
            return None
        completed = done.get().getTime() / 1000 if done.isDefined() else None
        return Job(begun.get().getTime() / 1000, completed, tuple(self._java(told.stageIds())))

    def stage(self, number: int) -> list[tuple[tuple[int, int], int, float]]:
        """Of every attempt that ran its number and the attempt's, its tasks, and the seconds that they took."""
        nothing = self._gateway.new_array(self._gateway.jvm.double, 0)
        attempts = self._java(self._store.stageData(number, False, self._gateway.jvm.java.util.ArrayList(), False, nothing))
        ran = [one for one in attempts if one.numCompleteTasks() > 0]
        return [((number, one.attemptId()), one.numTasks(), one.executorRunTime() / 1000) for one in ran]

    def task_times(self, number: int, attempt: int) -> tuple[float, float] | None:
        """The median and the longest of a stage's tasks, in seconds."""
        told = self._store.taskSummary(number, attempt, self._half_and_all)
        if not told.isDefined():
            return None
        times = told.get().executorRunTime()
        return times.apply(0) / 1000, times.apply(1) / 1000


class QuerySession:
    """The session in which a query runs, to look at. A ``SparkSession`` made for it would become what ``toDF`` uses."""

    def __init__(self, query: StreamingQuery) -> None:
        self.sparkContext = SparkContext._active_spark_context
        self.conf = RuntimeConfig(query._jsq.sparkSession().conf())
        self._jvm = self.sparkContext._jvm
