"""The records that wait at a source of Spark's, by the offsets that its connector reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unread(description: str, end: Any, latest: Any) -> int | None:
    """The records between two offsets: of Kafka's, whose offsets count records. None if the source does not report them.

    Other sources' offsets do not count records (the rate source's are seconds); if the end offset is the latest, nothing is
    unread.

    >>> unread("KafkaV2[Subscribe[t]]", {"t": {"0": 7}}, {"t": {"0": 9, "1": 3}})
    5
    """
    if latest is None:
        return None
    if latest == end:
        return 0
    if not _counts(description) or not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    return sum(
        max(0, int(offset) - int(_partitions(end.get(topic)).get(partition, 0)))
        for topic, partitions in latest.items()
        for partition, offset in _partitions(partitions).items()
    )


def unread_in(source: Mapping[str, Any], later: Any = None) -> int | None:
    """The same of a source in a query's progress document: the records that were available when its batch was planned, but are
    not in that batch. ``later``: the end of a later batch, whose records do not count either if offsets count records."""
    description = str(source.get("description", ""))
    end = later if later is not None and _counts(description) else source.get("endOffset")
    return unread(description, end, source.get("latestOffset"))


def _counts(description: str) -> bool:
    return description.startswith("Kafka")


def _partitions(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}
