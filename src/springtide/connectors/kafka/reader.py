"""The tasks' part: reads the parts of a range one after another, and decodes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from springtide.connectors.kafka.clients import TUNED, Connection, Faults, Waiting, needed
from springtide.connectors.kafka.cluster import Cluster
from springtide.connectors.kafka.fetch import AGAIN_S, GO_ON, Fetch, Fetched
from springtide.connectors.kafka.positions import Part, as_range, parts_of
from springtide.connectors.kafka.records import Decoding, Layout
from springtide.errors import RunError
from springtide.model.source import Range, Reader, Records, SourceUnavailable

SAME_S = 5.0
"""A topic's id is compared again after this time. A topic that was made again has other records at the same offsets."""

ASK_S = 3.0
"""Limits the wait for the answer about a topic; a task asks again."""

T = TypeVar("T")


class KafkaReader(Reader):
    """Opens its clients at the first range."""

    def __init__(self, connection: Connection, layout: Layout, isolation: str, lenient: bool, group: str | None) -> None:
        self._connection, self._layout, self._isolation = connection, layout, isolation
        self._lenient, self._group = lenient, group
        self._faults = Faults()
        self._consumer: Any = None
        self._decoding: Decoding | None = None
        self._cluster = Cluster(connection, (), isolation == "read_committed")
        self._ids: dict[str, tuple[str, float]] = {}

    def read(self, part: Range) -> Iterator[Records]:
        parts = parts_of(part)
        for index, each in enumerate(parts):
            for fetched in self._fetched(each):
                records = self._records(each, fetched)
                rest = [each._replace(first=fetched.next)] if fetched.next != each.last else []
                records.next = as_range([*rest, *parts[index + 1 :]])
                yield records

    def place(self, origin: str, number: int) -> Mapping[str, Any]:
        topic, _, partition = origin.rpartition("/")
        return {"topic": topic, "partition": int(partition), "offset": number}

    def _fetched(self, part: Part) -> Iterator[Fetched]:
        if part.id and self._id(part) not in (None, "", part.id):
            old = f"records {part.first} to {part.last} of the old one"
            what = f"Kafka {part.origin}: the topic was deleted and made again, and {old}"
            if not self._lenient:
                raise RunError(f"{what} were not read. {GO_ON}")
            end = part.first if part.last is None else part.last
            yield Fetched([], end - part.first, end)
            return
        yield from Fetch(self._opened(), part, self._faults, self._lenient, partial(self._identify, part.topic))

    def _records(self, part: Part, fetched: Fetched) -> Records:
        if not fetched.messages:
            return Records([], lost=fetched.lost, origin=part.origin)
        decoded = self._decode(fetched.messages)
        offsets = np.fromiter((message.offset() for message in decoded.messages), np.int64, len(decoded.messages))
        return Records(decoded.values, decoded.created, decoded.rejected, 0, part.origin, offsets)

    def _decode(self, messages: Sequence[Any]) -> Any:
        """Decode; wait as long as a schema registry cannot be reached."""
        if self._decoding is None:
            self._decoding = self._layout.opened(self._connection)
        return _patiently("Kafka", partial(self._decoding.decode, messages))

    def _id(self, part: Part) -> str | None:
        """The id of the part's topic now; None if there is no such topic, which the fetch finds out."""
        known, at = self._ids.get(part.topic, ("", float("-inf")))
        if known == part.id and time.monotonic() - at < SAME_S:
            return known
        return _patiently(f"Kafka {part.topic}", partial(self._identify, part.topic))

    def _identify(self, topic: str) -> str | None:
        found = self._cluster.described([topic], ASK_S).get(topic)
        if found is None:
            return None
        self._ids[topic] = (found[0], time.monotonic())
        return found[0]

    def _opened(self) -> Any:
        if self._consumer is None:
            own = {
                "group.id": self._group or "springtide",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": self._isolation,
            }
            tuned = replace(self._connection, settings={**TUNED, **self._connection.settings})
            self._consumer = tuned.client(needed().Consumer, own, self._faults)
        return self._consumer

    def close(self) -> None:
        self._cluster.close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _patiently(what: str, ask: Callable[[], T]) -> T:
    """Ask until there is an answer."""
    waiting = Waiting(what)
    while True:
        try:
            answer = ask()
        except SourceUnavailable as error:
            waiting.begins(error)
            time.sleep(AGAIN_S)
        else:
            waiting.ends()
            return answer
