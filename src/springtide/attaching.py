"""``springtide.attach``: a policy scales the executors under an existing Structured Streaming query."""

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

    ``policy`` (``tide``) with its ``settings`` and ``guards`` decides every ``interval`` (1 s) in which a batch has ended.
    ``target``: a latency, such as ``"2s"``, or ``"trigger"``: batches take no longer than the trigger interval, which is the
    default if the query has one, else 5 s. The number of executors is from ``min_executors`` (1) to ``max_executors`` (the
    application's own number). A ``dry_run`` only logs what it would do. Arguments that are not given are read from
    ``spark.springtide.*``. All options are checked before anything changes.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SetupError("pyspark is not installed; pip install 'springtide[spark]'")
    from springtide.spark.attach.entry import begin

    given = {
        "policy": policy, "settings": settings, "min_executors": min_executors, "max_executors": max_executors,
        "target": target, "interval": interval, "dry_run": dry_run, "guards": guards,
    }  # fmt: skip
    return begin(query, given, time.time)
