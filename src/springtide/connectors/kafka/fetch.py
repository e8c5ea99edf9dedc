"""Fetches the messages of one partition from one offset to another, whatever the brokers do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from springtide.connectors.kafka.clients import Faults, Waiting, needed
from springtide.connectors.kafka.positions import Part
from springtide.errors import RunError
from springtide.model.source import SourceUnavailable

CHUNK_MESSAGES = 10_000
"""Limits the messages that a task has in memory as objects. Larger chunks are not faster."""
TICK_S = 0.02
"""A call waits this long for the rest of a chunk, when gaps in the offsets leave fewer messages than asked for."""
SAY_AFTER_S = 10.0
"""A reader without messages says so after this time."""
SURE_S = 20.0
"""A topic that is missing or too short for a range must stay so for this time: a broker that has just started may say so."""
AGAIN_S = 0.25
ASK_AFTER_S = 2.0
"""After this time without messages a reader asks whether the topic is still there: librdkafka says nothing of a deleted one."""

GO_ON = 'Start anew with another checkpoint, or read on with on_data_loss="go on", which counts what is lost'


class Fetched(NamedTuple):
    """Consecutive messages; or the number of records that are lost before ``next``."""

    messages: list[Any]
    lost: int
    next: int


class Fetch:
    """The messages of a part. ``lenient``: losses are counted instead of raising RunError. ``identify``: the id of the topic
    now, None if there is none; it raises SourceUnavailable."""

    def __init__(
        self, consumer: Any, part: Part, faults: Faults, lenient: bool, identify: Callable[[], str | None]
    ) -> None:  # fmt: skip
        self._consumer, self._part, self._faults, self._lenient = consumer, part, faults, lenient
        self._identify = identify
        self._position = part.first
        self._end = float("inf") if part.last is None else part.last
        self._waiting = Waiting(f"Kafka {part.origin}")
        self._confluent = needed()
        self._heard = self._doubtful = self._asked = 0.0

    def __iter__(self) -> Iterator[Fetched]:
        try:
            self._assign()
            while self._position < self._end:
                yield from self._step()
        finally:
            self._consumer.unassign()

    def _step(self) -> Iterator[Fetched]:
        got = self._consumer.consume(int(min(CHUNK_MESSAGES, self._end - self._position)), TICK_S)
        good = [message for message in got if message.error() is None]
        if good:
            self._hear()
            yield from self._taken(good)
        else:
            yield from self._silence()
        if len(good) < len(got):
            for message in got:
                if message.error() is not None:
                    yield from self._answered(message.error(), message.offset())

    def _silence(self) -> Iterator[Fetched]:
        now = time.monotonic()
        if now - self._heard > SAY_AFTER_S:
            self._waiting.begins(self._faults)
        if now - max(self._heard, self._asked) > ASK_AFTER_S:
            yield from self._ask()
            self._asked = time.monotonic()

    def _ask(self) -> Iterator[Fetched]:
        """Ask whether the topic is still the one whose records are wanted."""
        try:
            found = self._identify()
        except SourceUnavailable:
            return
        if found is None:
            yield from self._doubt("does not exist any more")
        elif self._part.id and found not in ("", self._part.id):
            yield from self._gone("was deleted and made again")

    def _taken(self, messages: list[Any]) -> Iterator[Fetched]:
        behind = messages[-1].offset() + 1
        if behind > self._end:  # a gap let the call reach beyond the range
            messages = [message for message in messages if message.offset() < self._end]
            behind = int(self._end)
        self._position, self._doubtful = behind, 0.0
        if messages:
            yield Fetched(messages, 0, behind)

    def _answered(self, error: Any, offset: int) -> Iterator[Fetched]:
        """What a partition answers instead of messages."""
        kinds = self._confluent.KafkaError
        code = error.code()
        if code == kinds._PARTITION_EOF:
            self._hear()
            self._position = max(self._position, int(min(offset, self._end)))
            if self._position < self._end:
                yield from self._short(offset)
        elif code in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE):
            yield from self._out_of_range()
        elif code in (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_PARTITION, kinds._UNKNOWN_TOPIC):
            yield from self._doubt("does not exist any more")
        elif code == kinds.TOPIC_AUTHORIZATION_FAILED:
            raise RunError(f"Kafka {self._part.origin} may not be read: {error.str()}; allow READ on the topic for this user")
        elif error.fatal():
            raise RunError(f"Kafka {self._part.origin} cannot be read: {error.str()}")
        else:
            self._faults(error)

    def _short(self, end: int) -> Iterator[Fetched]:
        """The partition ends inside the range. A follower that has become the leader may learn of the newest records later."""
        yield from self._doubt(f"ends at offset {end}, before {self._part.last}")

    def _out_of_range(self) -> Iterator[Fetched]:
        try:
            low, high = self._consumer.get_watermark_offsets(self._place(), timeout=AGAIN_S * 4, cached=False)
        except self._confluent.KafkaException as error:
            self._faults(error.args[0])
            self._assign(AGAIN_S)
            return
        if low > self._position:
            lost = int(min(low, self._end)) - self._position
            yield self._lost(lost, f"{lost} records from offset {self._position} on were deleted before they were read")
            self._assign()
        else:
            yield from self._doubt(f"ends at offset {high}, before {self._position}")

    def _doubt(self, what: str) -> Iterator[Fetched]:
        """A loss that may be a broker's passing view: ask again for some time."""
        now = time.monotonic()
        self._doubtful = self._doubtful or now
        if now - self._doubtful < SURE_S:
            self._assign(AGAIN_S)
            return
        yield from self._gone(what)

    def _gone(self, what: str) -> Iterator[Fetched]:
        rest = self._part.last
        if rest is None:
            raise RunError(f"Kafka {self._part.origin} {what}")
        yield self._lost(rest - self._position, f"it {what}; {rest - self._position} records are lost")

    def _lost(self, count: int, what: str) -> Fetched:
        if not self._lenient:
            raise RunError(f"Kafka {self._part.origin}: {what}. {GO_ON}")
        self._position += count
        return Fetched([], count, self._position)

    def _hear(self) -> None:
        self._heard, self._faults.last = time.monotonic(), None
        self._waiting.ends()

    def _assign(self, after_s: float = 0.0) -> None:
        if after_s:
            time.sleep(after_s)
        self._heard = self._heard or time.monotonic()
        self._consumer.assign([self._place()])

    def _place(self) -> Any:
        return self._confluent.TopicPartition(self._part.topic, self._part.number, self._position)
