"""The driver's part: where the topics end, what was deleted before it was read, and how a batch is cut."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from springtide.connectors.kafka import positions
from springtide.connectors.kafka.cluster import Cluster, Topic
from springtide.connectors.kafka.commits import GroupOffsets
from springtide.connectors.kafka.positions import ID
from springtide.errors import RunError
from springtide.model.source import Enumerator, Memory, Position, Range, SourceUnavailable
from springtide.once import Once

SURE_S = 10.0
"""A topic that is missing, or that ends before what was read, must stay so for this time: a broker that has just started may
say so."""

GO_ON = 'or read on with on_data_loss="go on", which counts what is lost'

_log = logging.getLogger(__name__)


class KafkaEnumerator(Enumerator):
    """Asks the cluster at every call of ``end``. ``lenient``: losses are logged instead of ending the run."""

    def __init__(
        self, cluster: Cluster, memory: Memory, lenient: bool = False, group: GroupOffsets | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._cluster, self._memory, self._lenient, self._group, self._clock = cluster, memory, lenient, group, clock
        self._until: Position | None = memory.get("until")
        self._lows: dict[tuple[str, int], int] = {}
        self._suspected: dict[Hashable, float] = {}
        self._told = Once()

    def first(self) -> Position:
        return dict(self._memory["first"])

    def end(self, since: Position) -> Position:
        topics = self._cluster.topics()
        self._lows = {(topic.name, n): low for topic in topics.values() for n, low in topic.lows.items()}
        if self._until is None:
            left = self._left_out(since)
            names = sorted({*topics, *since} - left.keys())
            found = {name: self._end_of(name, since.get(name), topics.get(name)) for name in names}
            self._check_deleted(since, found)
            return {**found, **left}
        unread = sorted({part.topic for part in positions.parts(since, self._until)})
        for name in unread:
            self._end_of(name, since.get(name), topics.get(name))
        self._check_deleted(since, self._until)
        return self._until  # also of what is gone: its reader counts it as lost, and the stream ends

    def _left_out(self, since: Position) -> Position:
        """Topics that the checkpoint has read, but the source does not name any more. Their offsets stay in the position."""
        left = {name: dict(at) for name, at in since.items() if not self._cluster.wants(name)}
        if left and self._told.begins(("left out", *left)):
            read = ", ".join(f"{name} ({_read(at)})" for name, at in left.items())
            _log.warning("Kafka: the source no longer names topics that the checkpoint has read: %s; they are not read", read)
        return left

    def _end_of(self, name: str, before: Mapping[str, Any] | None, topic: Topic | None) -> dict[str, Any]:
        """The end of a topic, compared with what was read of it."""
        if topic is None:
            before = dict(before or {})
            self._unless_sure(("missing", name), f"topic {name!r} does not exist any more, after {_read(before)} was read",
                              "start anew with another checkpoint")  # fmt: skip
            return before
        self._suspected.pop(("missing", name), None)
        now = {ID: topic.id, **{str(number): high for number, high in topic.highs.items()}}
        if before is None:
            return now
        if not positions.same_topic(before, now):
            self._lost(("made again", name, topic.id),
                       f"topic {name!r} was deleted and made again after {_read(before)} was read of the old one, or servers="
                       " name another cluster; what was unread is lost", "start anew with another checkpoint")  # fmt: skip
            return now
        return self._continued(name, before, now)

    def _continued(self, name: str, before: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        for number, offset in positions.partitions(before).items():
            high = now.setdefault(str(number), offset)
            fact = ("shorter", name, number)
            if high < offset:
                what = f"{name}/{number} ends at offset {high}, but was read up to {offset}"
                why = "the topic was made again, or its newest records were lost with a broker"
                self._unless_sure(fact, f"{what}: {why}", "start anew with another checkpoint")
            else:
                self._suspected.pop(fact, None)
        return now

    def _check_deleted(self, since: Position, end: Position) -> None:
        """Whether retention has deleted what was not read yet."""
        deleted = {}
        for part in positions.parts(since, end):
            low = min(self._lows.get((part.topic, part.number), 0), part.last or 0)
            if low > part.first:
                deleted[part.origin] = low - part.first
        if deleted:
            places = ", ".join(f"{count} of {origin}" for origin, count in sorted(deleted.items()))
            total = sum(deleted.values())
            what = f"{total} records were deleted before they were read ({places}), by retention or by hand"
            way_out = "raise retention.ms or retention.bytes of the topic, and start anew with another checkpoint"
            self._lost(("deleted", *deleted), what, way_out)

    def _unless_sure(self, fact: Hashable, what: str, way_out: str) -> None:
        """A loss that may be a broker's passing view: wait first."""
        since = self._suspected.setdefault(fact, self._clock())
        if self._clock() - since < SURE_S:
            raise SourceUnavailable(f"Kafka: {what}; asking again for {SURE_S:g} s")
        self._lost(fact, what, way_out)

    def _lost(self, fact: Hashable, what: str, way_out: str) -> None:
        if not self._lenient:
            raise RunError(f"Kafka: {what}. {way_out[:1].upper()}{way_out[1:]}, {GO_ON}")
        if self._told.begins(fact):
            _log.warning("Kafka: %s; reading goes on", what)

    def count(self, since: Position, until: Position) -> int:
        return sum(positions.waiting(since, until, self._lows).values())

    def limited(self, since: Position, end: Position, most: int) -> Position:
        return positions.limited(since, end, most, self._lows)

    def ranges(self, since: Position, until: Position, tasks: int) -> Sequence[Range]:
        return positions.ranges(since, until, tasks)

    def exhausted(self, position: Position) -> bool:
        return self._until is not None and not positions.parts(position, self._until)

    def committed(self, until: Position) -> None:
        if self._group is not None:
            self._group.commit(until)

    def close(self) -> None:
        self._cluster.close()
        if self._group is not None:
            self._group.close()


def _read(before: Mapping[str, Any]) -> str:
    return ", ".join(f"{number}: {offset}" for number, offset in positions.partitions(before).items()) or "nothing"
