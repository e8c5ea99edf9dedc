"""The query: its sink, and properties of a query that Spark's public methods do not have.

Why: ``foreachBatch`` plans each batch twice, which takes 8 ms; and the public API does not distinguish a stopped query from a
query that has read everything.
Seen to work on: Spark 4.2 and 4.3.
Without it (the trait ``Sink`` and ``startQuery`` of the JVM, ``noNewData`` of a query, ``internalCreateDataFrame``): no
query starts.
Without the status store, warnings of a batch without progress do not name its stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


class _BatchSink:
    """The sink of a query. Spark's JVM calls ``addBatch`` for every batch.

    ``foreachBatch`` is a similar sink, but wraps the rows into a DataFrame that is analysed twice, and planned again when
    used: 8 ms a batch.
    """

    def __init__(self, session: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._session, self._function = session, function

    def addBatch(self, batch: int, rows: Any) -> None:  # noqa: N802  Spark's name
        self._function(DataFrame(rows, self._session), batch)

    def toString(self) -> str:  # noqa: N802
        return "Springtide"

    def equals(self, other: object) -> bool:
        return other is self

    def hashCode(self) -> int:  # noqa: N802
        return 0

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.execution.streaming.Sink"]


def start_query(
    frame: DataFrame, name: str, checkpoint: str, function: Callable[[DataFrame, int], None], available_now: bool
) -> StreamingQuery:
    """Start a query that passes every batch to a function, which may only consume it; see ``detached``."""
    session = frame.sparkSession
    gateway = session.sparkContext._gateway
    ensure_callback_server_started(gateway)
    jvm = gateway.jvm
    nothing, some = jvm.scala.Option.empty(), jvm.scala.Option.apply
    triggers = jvm.org.apache.spark.sql.streaming.Trigger
    query = session.streams._jsqm.startQuery(
        some(name), nothing, some(checkpoint), frame._jdf, jvm.PythonUtils.toScalaMap({}), _BatchSink(session, function),
        jvm.org.apache.spark.sql.streaming.OutputMode.Append(), False, True,
        triggers.AvailableNow() if available_now else triggers.ProcessingTime(0),
        jvm.org.apache.spark.util.SystemClock(), nothing, nothing,
    )  # fmt: skip
    return StreamingQuery(query)


def found_nothing_new(query: StreamingQuery) -> bool:
    """Whether a query found no new records at its sources when it last looked.

    Only then does Spark end a query with the trigger ``AvailableNow``. A query that was stopped, or whose thread died before
    Spark could record the cause, has no exception either.
    """
    return bool(query._jsq.streamingQuery().noNewData())


def last_progress(query: StreamingQuery) -> dict[str, Any] | None:
    """The progress document of the last batch; None before it. The public property parses it into objects."""
    progress = query._jsq.lastProgress()
    document: dict[str, Any] | None = None if progress is None else json.loads(progress.json())
    return document


def empty_like(frame: DataFrame) -> DataFrame:
    """A DataFrame with the schema of another, without rows."""
    session = frame.sparkSession
    rows = session._jvm.java.util.ArrayList()
    return DataFrame(session._jsparkSession.createDataFrame(rows, frame._jdf.schema()), session)


def detached(frame: DataFrame) -> DataFrame:
    """The rows of a batch as a separate DataFrame, to which operators may be applied."""
    session = frame.sparkSession
    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False), session)


def running_stages(session: SparkSession, group: str) -> tuple[str, ...]:
    """The running stages of a job group, each with the number of its completed tasks."""
    tracker, store = session.sparkContext.statusTracker(), session.sparkContext._jsc.sc().statusStore()
    stages = []
    for number in tracker.getActiveJobsIds():
        job = tracker.getJobInfo(number)
        if job is None or store.job(number).jobGroup().getOrElse(None) != group:
            continue
        for stage in filter(None, map(tracker.getStageInfo, job.stageIds)):
            if stage.numActiveTasks:
                done = f"{stage.numCompletedTasks} of {stage.numTasks} tasks done"
                stages.append(f"stage {stage.stageId} ({stage.name}), {done}")
    return tuple(stages)
