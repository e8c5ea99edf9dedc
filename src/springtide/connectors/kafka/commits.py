"""Commits offsets to a consumer group, for those who watch a job's lag there. The truth is in the checkpoint."""

from __future__ import annotations

import logging
import threading
from typing import Any

from springtide.connectors.kafka.clients import Connection, needed, reason
from springtide.connectors.kafka.positions import partitions
from springtide.model.source import Position
from springtide.once import Once

CLOSE_S = 3.0
"""Limits the wait for the last commits when a run ends."""

_log = logging.getLogger(__name__)


class GroupOffsets:
    """Commits in the background: a group that cannot be reached never delays a batch."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection, self._group = connection, group
        self._consumer: Any = None
        self._failing = Once()

    def commit(self, until: Position) -> None:
        try:
            confluent = needed()
            places = [
                confluent.TopicPartition(topic, n, offset)
                for topic, at in until.items()
                for n, offset in partitions(at).items()
            ]
            if places:
                self._opened().commit(offsets=places, asynchronous=True)
            self._opened().poll(0)  # answers to earlier commits come by this
        except Exception as error:  # noqa: BLE001  whoever watches the group goes without; the stream goes on
            self._report(error)

    def _opened(self) -> Any:
        if self._consumer is None:
            own = {"group.id": self._group, "enable.auto.commit": False, "on_commit": self._answered}
            self._consumer = self._connection.client(needed().Consumer, own)
        return self._consumer

    def _answered(self, error: Any, _places: Any) -> None:
        if error is None:
            self._failing.end()
        else:
            self._report(error)

    def _report(self, error: Any) -> None:
        if self._failing.begins():
            text = reason(error) if isinstance(error, BaseException) else error.str()
            _log.warning("Kafka: offsets cannot be committed to group %r: %s; the stream goes on", self._group, text)

    def close(self) -> None:
        """Wait a little for the last commits: librdkafka would wait 45 s for a broker that hangs."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            closing = threading.Thread(target=consumer.close, name="kafka-group-close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)
