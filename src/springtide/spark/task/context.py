"""Reads the local properties of the job, by which Spark and the driver pass data to tasks."""

from __future__ import annotations

import json
from typing import Any

from springtide.spark.state.stepping import Version

BATCH_PROPERTY = "streaming.sql.batchId"
"""The local property with the number of the batch, set by Spark."""
STATE_PROPERTY = "springtide.state"
"""The local property with the files of the state, set by the driver."""
ASIDE_PROPERTY = "springtide.aside"
"""The local property with the records of a batch that killed their workers, set by the driver."""


def task_context() -> tuple[int, int]:
    """The number of this task's batch, and the unique number of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty(BATCH_PROPERTY)
    assert batch is not None, f"{BATCH_PROPERTY} is not set"  # for example with PYSPARK_PIN_THREAD=false, which is refused
    return int(batch), context.taskAttemptId()


def versions() -> dict[str, Version]:
    """The state that each stateful operator starts this batch from."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    versions = json.loads(context.getLocalProperty(STATE_PROPERTY) or "{}")
    return {name: Version.from_json(version) for name, version in versions.items()}


def aside(batch: int, level: int, gate: int, task: int) -> dict[int, dict[int, int]]:
    """The records that a task must not process: by operator and index, the number of workers that they killed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    document = context.getLocalProperty(ASIDE_PROPERTY) if context is not None else None
    records: dict[str, Any] = json.loads(document or "{}")
    found: dict[int, dict[int, int]] = {}
    for *where, operator, index, deaths in records.get("places", ()):
        if where == [level, gate, task] and records["batch"] == batch:
            found.setdefault(operator, {})[index] = deaths
    return found
