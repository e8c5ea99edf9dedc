"""``springtide.attach``: a policy for the executors under a Structured Streaming query that is already there."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from springtide.errors import SetupError

if TYPE_CHECKING:
    from springtide.spark.attach.attachment import Attachment


def attach(
    query: Any, policy: str | None = None, settings: Mapping[str, object] | None = None, *,
    min_executors: int | None = None, max_executors: int | None = None, target: str | float | None = None,
    interval: str | float | None = None, dry_run: bool | None = None, guards: Sequence[str] | None = None,
) -> Attachment:  # fmt: skip
    """Scale the executors under a running query, from its progress and Spark's status store only.

    ``policy`` (``tide``) with its ``settings`` and ``guards`` decides every ``interval`` (1 s), as far as a batch has ended.
    ``target``: a latency, such as ``"2s"``, or ``"trigger"``: batches take no longer than the trigger interval, which is the
    default where the query has one, else 5 s. There are from ``min_executors`` (1) to ``max_executors`` (those that the
    application has by itself) executors. A ``dry_run`` only tells what it would do. What is left open here is read from
    ``spark.springtide.*``. Everything that can be wrong is checked before anything is changed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SetupError("pyspark is not installed; pip install 'springtide[spark]'")
    from springtide.spark.attach.entry import begin

    given = {
        "policy": policy, "settings": settings, "min_executors": min_executors, "max_executors": max_executors,
        "target": target, "interval": interval, "dry_run": dry_run, "guards": guards,
    }  # fmt: skip
    return begin(query, given, time.time)
