"""Starts a Python worker for every slot of a local session, before a plan needs them.

PSPS has a pool of replicas, which are activated instead of started. A fork in the middle of a batch delays the batch: scaling
out from two tasks to eight took 0.3 s on 2 cores with forks, and 0.1 s without. Spark ends idle workers only after a minute
in which no task ran. Executors of a cluster have a core each, and are warmed up when they start.

It only relies on Spark's reuse of workers, seen on Spark 4.2 and 4.3. If Spark ends idle workers earlier, batches wait for
forks as above.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

MAX_WORKERS = 16
"""Limits the workers of the pool; each takes about 30 MB."""
BUSY_S = 0.2
"""Duration of the task that starts a worker, so that no two of these tasks share a worker."""
IDLE_LIFETIME_S = 50.0
"""Workers live at least this long without a task."""

_filled: dict[str, float] = {}  # by application, the time of the last fill


def fill(session: Any) -> None:
    """Start workers for all slots, up to ``MAX_WORKERS``, in the background."""
    context = session.sparkContext
    now = time.monotonic()
    if now - _filled.get(context.applicationId, -IDLE_LIFETIME_S) >= IDLE_LIFETIME_S:
        _filled[context.applicationId] = now
        threading.Thread(target=_start, args=(context,), name="springtide-pool", daemon=True).start()


def _start(context: Any) -> None:
    count = min(context.defaultParallelism, MAX_WORKERS)
    with contextlib.suppress(Exception):  # the session may have ended
        context.parallelize(range(count), count).foreach(_busy)


def _busy(_: int) -> None:
    time.sleep(BUSY_S)
