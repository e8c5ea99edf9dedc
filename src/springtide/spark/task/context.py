"""What Spark and the driver tell a task, by local properties of the job."""

from __future__ import annotations

import json
from typing import Any

from springtide.spark.state.stepping import Version

BATCH_PROPERTY = "streaming.sql.batchId"
"""The local property by which Spark tells the tasks of a query which batch they belong to."""
STATE_PROPERTY = "springtide.state"
"""The local property by which the driver tells the tasks of a batch which files make up the state."""
ASIDE_PROPERTY = "springtide.aside"
"""The local property by which the driver names the records of a batch that killed their workers."""


def task_context() -> tuple[int, int]:
    """The batch that this task belongs to, and the number of this attempt, which no other attempt has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty(BATCH_PROPERTY)
    assert batch is not None, f"{BATCH_PROPERTY} is not set"  # as with PYSPARK_PIN_THREAD=false, which is refused
    return int(batch), context.taskAttemptId()


def versions() -> dict[str, Version]:
    """The state that each stateful operator begins this batch with."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    told = json.loads(context.getLocalProperty(STATE_PROPERTY) or "{}")
    return {name: Version.from_json(version) for name, version in told.items()}


def aside(batch: int, level: int, gate: int, task: int) -> dict[int, dict[int, int]]:
    """The records of a task that are not to be processed: by operator and index, how many workers they killed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    document = context.getLocalProperty(ASIDE_PROPERTY) if context is not None else None
    told: dict[str, Any] = json.loads(document) if document else {}
    found: dict[int, dict[int, int]] = {}
    for *where, operator, index, deaths in told.get("places", ()):
        if where == [level, gate, task] and told["batch"] == batch:
            found.setdefault(operator, {})[index] = deaths
    return found
