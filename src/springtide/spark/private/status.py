"""The progress of a query that is not Springtide's, and its jobs in the driver's status store.

Why: ``springtide.attach`` needs the duration of each stage of a batch, which a query's public progress does not have.
Seen to work on: Spark 4.2 and 4.3.
Without it (``statusStore``, ``_jsq`` of a query): the attachment fails when it begins, and the query goes on unchanged.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.streaming import StreamingQuery


class SparkJob(NamedTuple):
    """A job of a query: seconds since 1970, and the numbers of its stages."""

    submitted: float
    completed: float | None
    stages: tuple[int, ...]


class QueryLook:
    """The progress of a streaming query, and the jobs of its group in the status store."""

    def __init__(self, query: StreamingQuery, session: QuerySession) -> None:
        self._jsq, self._group = query._jsq, str(query.runId)
        self._tracker = session.sparkContext.statusTracker()
        self._store = session.sparkContext._jsc.sc().statusStore()
        self._gateway = session.sparkContext._gateway
        self._java = self._gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self._half_and_all = self._gateway.new_array(self._gateway.jvm.double, 2)
        self._half_and_all[0], self._half_and_all[1] = 0.5, 1.0

    def trigger_s(self) -> float | None:
        """The interval between batches, 0 if each starts as soon as possible; None if the query has no batches."""
        trigger = self._jsq.streamingQuery().trigger()
        kind = trigger.getClass().getSimpleName().rstrip("$")
        if kind in ("ContinuousTrigger", "RealTimeTrigger"):
            return None
        return trigger.intervalMs() / 1000 if kind == "ProcessingTimeTrigger" else 0.0

    def progress(self, after: int | None, most: int) -> list[dict[str, Any]]:
        """The documents of the last batches after ``after``, at most ``most``, the oldest first."""
        recent, found = self._jsq.recentProgress(), dict[int, dict[str, Any]]()
        for place in range(len(recent) - 1, -1, -1):
            number = recent[place].batchId()
            if (len(found) == most and number not in found) or (after is not None and number <= after):
                break
            found[number] = json.loads(recent[place].json())  # the oldest of a number is the batch, the others are idle time
        return [found[number] for number in sorted(found)]

    def jobs(self) -> list[int]:
        return sorted(self._tracker.getJobIdsForGroup(self._group))

    def job(self, number: int) -> SparkJob | None:
        """A job; None if the store does not have it, or not any more."""
        try:
            job = self._store.job(number)
        except Exception:  # noqa: BLE001  Py4J wraps the Java exception for a missing job
            return None
        begun, done = job.submissionTime(), job.completionTime()
        if not begun.isDefined():
            return None
        completed = done.get().getTime() / 1000 if done.isDefined() else None
        return SparkJob(begun.get().getTime() / 1000, completed, tuple(self._java(job.stageIds())))

    def stage(self, number: int) -> list[tuple[tuple[int, int], int, float]]:
        """For every attempt that ran: the numbers of stage and attempt, the number of tasks, and their total seconds."""
        nothing = self._gateway.new_array(self._gateway.jvm.double, 0)
        attempts = self._java(self._store.stageData(number, False, self._gateway.jvm.java.util.ArrayList(), False, nothing))
        ran = [attempt for attempt in attempts if attempt.numCompleteTasks() > 0]
        return [((number, attempt.attemptId()), attempt.numTasks(), attempt.executorRunTime() / 1000) for attempt in ran]

    def task_times(self, number: int, attempt: int) -> tuple[float, float] | None:
        """The median and the maximum of the durations of a stage's tasks, in seconds."""
        summary = self._store.taskSummary(number, attempt, self._half_and_all)
        if not summary.isDefined():
            return None
        times = summary.get().executorRunTime()
        return times.apply(0) / 1000, times.apply(1) / 1000


class QuerySession:
    """A read-only view of a query's session. Making a ``SparkSession`` for it would change the session that ``toDF`` uses."""

    def __init__(self, query: StreamingQuery) -> None:
        self.sparkContext = SparkContext._active_spark_context
        self.conf = RuntimeConfig(query._jsq.sparkSession().conf())
        self._jvm = self.sparkContext._jvm
