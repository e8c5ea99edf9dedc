"""The parent of Spark's Python workers. It prepares every worker before the fork.

A fresh worker took half a second of a core before its first record; now it takes 10 ms:

- Arrow and numpy are imported here, and pandas, which Arrow imports for its first array.
- The imported objects are frozen out of the garbage collector: Spark collects garbage after every task, which took 20 ms of
  each stage on 2 cores. Objects that a worker retains between tasks add to that, 3.5 ms a task with 100 MB of state, so most
  collections cover only the young generations.
- When Spark adds a folder to a worker's path, Python 3.11 reads the directory of a zip file again for every cached folder
  of it, 18 for pyspark.zip. So the cache is cleared of those folders.

Seen to work on: Spark 4.2 and 4.3, which start the module that ``spark.python.daemon.module`` names.
Without it (a user's session may have another daemon): runs have the same results, and each task takes longer, as above.
"""

from __future__ import annotations

import gc
import sys
import zipimport
from typing import Any

import pyarrow as pa
import pyspark.daemon
import pyspark.worker

# modules that tasks import, and users' functions in them
import springtide.model.generated
import springtide.processors.aggregates
import springtide.processors.deduplicate
import springtide.processors.join
import springtide.processors.sessions
import springtide.processors.top_k
import springtide.processors.windows
import springtide.spark.task.entry
import springtide.spark.task.merging
import springtide.spark.task.reading
import springtide.spark.task.rows
import springtide.spark.task.stage  # noqa: F401

WHOLE_EVERY = 16
"""Collect all generations after this number of tasks, and only the young ones in between."""


class TaskGarbage:
    """Stands in for ``gc`` in Spark's daemon, which calls ``collect`` in a worker after each of its tasks."""

    def __init__(self) -> None:
        self._tasks = 0

    def collect(self) -> int:
        self._tasks += 1
        return gc.collect(2 if self._tasks % WHOLE_EVERY == 0 else 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(gc, name)


if __name__ == "__main__":
    pa.array([0])
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]  # the next import makes it again, from the cached directory
    gc.collect()
    gc.freeze()
    pyspark.daemon.gc = TaskGarbage()
    pyspark.daemon.manager()
