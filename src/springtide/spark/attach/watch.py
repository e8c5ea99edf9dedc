"""Reads a streaming query from Spark: its progress, its status, and the stages of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from springtide.spark.attach.batches import BatchStage, QueryBatch, from_progress, union_s
from springtide.spark.private import status

AT_ONCE = 20
"""Limits the batches read in one cycle: each takes a few milliseconds of the driver."""
CLOCK_S = 0.001
"""Tolerance of comparisons: Spark's times are whole milliseconds."""


class SparkQuery:
    """Reads a query; changes nothing."""

    def __init__(self, query: Any, session: Any) -> None:
        self._query = query
        self._look = status.QueryLook(query, session)
        self.name = query.name or f"query {str(query.id)[:8]}"
        self._seen: int | None = None  # the number of the newest batch
        self._job = -1  # the newest job of that batch
        self._late: int | None = None  # the batch that was deferred once
        self._idle = False

    def trigger_s(self) -> float | None:
        """The trigger interval; None if the query has none."""
        return self._look.trigger_s()

    def ended(self) -> str | None:
        try:
            if self._query.isActive:
                return None
            failed = self._query.exception()
        except Exception as error:  # noqa: BLE001  every failure means the same here
            return f"its Spark session has ended ({type(error).__name__})"
        return "it has ended" if failed is None else f"it has failed: {str(failed).splitlines()[0]}"

    def new_batches(self) -> list[QueryBatch]:
        status: Mapping[str, Any] = self._query.status  # read before progress, so that no batch is missed
        documents = self._look.progress(self._seen, 1 if self._seen is None else AT_ONCE)
        self._idle = not (status["isDataAvailable"] or status["isTriggerActive"] or documents)
        batches = [from_progress(document) for document in documents]
        if self._seen is None and batches:  # only its end matters: measurements start there
            self._job = max(self._look.jobs(), default=-1)
        elif batches:
            batches = self._with_stages(batches)
        if batches:
            self._seen = batches[-1].number
        return batches

    def idle(self) -> bool:
        return self._idle

    def _with_stages(self, batches: Sequence[QueryBatch]) -> list[QueryBatch]:
        """Add the stages of each batch's jobs, which are those submitted while it ran.

        The status store lags a little behind the query. A batch with an unfinished job is deferred, but only once: the store
        may have lost the job's end.
        """
        jobs = {number: job for number in self._look.jobs() if number > self._job and (job := self._look.job(number))}
        found = []
        for batch in batches:
            own = {number: job for number, job in jobs.items() if batch.started - CLOCK_S <= job.submitted <= batch.ended}
            if batch.number != self._late and ((not own and batch.rows) or any(job.completed is None for job in own.values())):
                self._late = batch.number
                break
            spans = [(job.submitted, min(job.completed or batch.ended, batch.ended)) for job in own.values()]
            known = own or not batch.rows
            found.append(
                replace(
                    batch, stages=self._stages(own.values()) if known else None, in_jobs_s=union_s(spans) if known else None
                )
            )
            self._job = max([self._job, *own])
        return found

    def _stages(self, jobs: Iterable[status.SparkJob]) -> tuple[BatchStage, ...]:
        """All stages, each once; the stage with the most work has task times."""
        keys = {number for job in jobs for number in job.stages}
        stages = {key: BatchStage(tasks, work_s) for number in keys for key, tasks, work_s in self._look.stage(number)}
        main = max(stages, key=lambda key: stages[key].work_s, default=None)
        if main is not None and stages[main].tasks > 1 and (times := self._look.task_times(*main)) is not None:
            stages[main] = replace(stages[main], median_s=times[0], longest_s=times[1])
        return tuple(stages.values())
