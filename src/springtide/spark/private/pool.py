"""A Python worker for every slot of a local session, started before a plan wants them.

PSPS keeps a pool of replicas, which are activated and need not be started. A worker that is forked in the middle of a batch
holds that up: six of them, from two tasks to eight, by 0.3 s on 2 cores, and 0.1 s without the forks. Spark ends idle workers
only when for a minute no task has run at all. Executors of a cluster have a core each, and are warmed when they come.

It relies on how Spark reuses workers, and on nothing else of it: seen on Spark 4.2 and 4.3. Where Spark ends idle workers
earlier, batches wait for forks as above.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

MOST = 16
"""Workers that are started at most; each takes some 30 MB."""
TOGETHER_S = 0.2
"""How long each of them is busy, so that no two tasks share one."""
KEPT_S = 50.0
"""For so long they are there for sure."""

_filled: dict[str, float] = {}  # by application, when


def fill(session: Any) -> None:
    """Have workers for all slots, up to a number; nobody waits for them."""
    context = session.sparkContext
    now = time.monotonic()
    if now - _filled.get(context.applicationId, -KEPT_S) >= KEPT_S:
        _filled[context.applicationId] = now
        threading.Thread(target=_start, args=(context,), name="springtide-pool", daemon=True).start()


def _start(context: Any) -> None:
    count = min(context.defaultParallelism, MOST)
    with contextlib.suppress(Exception):  # a session that ended meanwhile needs none
        context.parallelize(range(count), count).foreach(_busy)


def _busy(_: int) -> None:
    time.sleep(TOGETHER_S)
