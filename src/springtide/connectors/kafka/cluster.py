"""What a Kafka cluster says about topics: their ids, partitions and offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from springtide.connectors.kafka.clients import PATIENT_S, Connection, Faults, needed, unavailable
from springtide.errors import RunError

NEW_TOPICS_S = 5.0
"""The names of all topics are asked for again after this time, to find new ones that match a pattern: in a large cluster the
answer has megabytes."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic if the brokers give none."""

Place = tuple[str, int]


@dataclass(frozen=True)
class Topic:
    """A topic as it is now: the offsets are the first that retention has left, and the end for readers."""

    name: str
    id: str
    lows: Mapping[int, int]
    highs: Mapping[int, int]


class Cluster:
    """Answers about the topics of a source: those with these names, or those that match a pattern."""

    def __init__(
        self, connection: Connection, topics: Sequence[str], committed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._topics, self._committed, self._clock = connection, topics, committed, clock
        self._patterns = [re.compile(topic) for topic in topics if topic.startswith("^")]
        self.faults = Faults()
        self._admin: Any = None
        self._names: tuple[str, ...] = ()
        self._named = float("-inf")

    def names(self) -> tuple[str, ...]:
        """The topics of the source. A pattern may match none."""
        if self._patterns and self._clock() - self._named > NEW_TOPICS_S:
            found = self.listed().topics
            self._names = tuple(sorted(name for name in found if self._matches(name)))
            self._named = self._clock()
        return tuple(sorted({*self._names, *(topic for topic in self._topics if not topic.startswith("^"))}))

    def listed(self, patience_s: float | None = None) -> Any:
        """All topics and brokers, as librdkafka describes them."""
        return self._ask(lambda: self.admin.list_topics(timeout=patience_s or PATIENT_S))

    def wants(self, name: str) -> bool:
        """Whether the source reads a topic of this name."""
        return name in self._topics or self._matches(name)

    def _matches(self, name: str) -> bool:
        """Kafka's own topics, such as __consumer_offsets, match only a pattern that names their underscores."""
        return any(
            pattern.match(name) and (not name.startswith("__") or pattern.pattern.startswith("^__"))
            for pattern in self._patterns
        )

    def topics(self) -> dict[str, Topic]:
        """The topics that exist, with their offsets; those that do not exist are missing."""
        described = self.described(self.names())
        places = [(name, number) for name, (_, numbers) in described.items() for number in numbers]
        lows, highs = self._both(places)
        return {
            name: Topic(name, identity, {n: lows[name, n] for n in numbers}, {n: highs[name, n] for n in numbers})
            for name, (identity, numbers) in described.items()
        }

    def described(self, names: Iterable[str], patience_s: float | None = None) -> dict[str, tuple[str, list[int]]]:
        """The id and the partitions of each topic that exists."""
        confluent, patience_s = needed(), patience_s or PATIENT_S
        wanted = list(names)
        if not wanted:
            return {}
        asked = self._ask(lambda: self.admin.describe_topics(confluent.TopicCollection(wanted), request_timeout=patience_s))
        found = {}
        for name, answer in asked.items():
            try:
                topic = answer.result(patience_s + 1)
            except confluent.KafkaException as error:
                code = error.args[0].code()
                if code == confluent.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                if code == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise RunError(
                        f"Kafka: topic {name!r} may not be described; allow DESCRIBE and READ on it for this user"
                    ) from None
                raise self._fault(error) from None
            except TimeoutError as error:
                raise self._fault(error) from None
            identity = str(topic.topic_id or NO_ID)
            found[name] = ("" if identity == NO_ID else identity, sorted(part.id for part in topic.partitions))
        return found

    def offsets(self, places: Sequence[Place], which: str | int) -> dict[Place, int]:
        """For each partition the "earliest" or "latest" offset, or the first of records since a time in milliseconds; -1 if
        there is none since then."""
        return self._answers(self._asked(places, which))

    def _both(self, places: Sequence[Place]) -> tuple[dict[Place, int], dict[Place, int]]:
        """The earliest and the latest offsets, for which the brokers are asked at the same time: every batch waits for them."""
        asked = self._asked(places, "earliest"), self._asked(places, "latest")
        return self._answers(asked[0]), self._answers(asked[1])

    def _asked(self, places: Sequence[Place], which: str | int) -> Mapping[Any, Any]:
        confluent, admin = needed(), needed("confluent_kafka.admin")
        if not places:
            return {}
        spec = admin.OffsetSpec
        wanted = spec.for_timestamp(which) if isinstance(which, int) else getattr(spec, which)()
        level = confluent.IsolationLevel
        isolation = level.READ_COMMITTED if self._committed else level.READ_UNCOMMITTED
        question = {confluent.TopicPartition(*place): wanted for place in places}
        asked: Mapping[Any, Any] = self._ask(
            lambda: self.admin.list_offsets(question, isolation_level=isolation, request_timeout=PATIENT_S)
        )
        return asked

    def _answers(self, asked: Mapping[Any, Any]) -> dict[Place, int]:
        return {
            (place.topic, place.partition): self._ask(partial(answer.result, PATIENT_S + 1)).offset
            for place, answer in asked.items()
        }

    def forbidden(self, names: Iterable[str]) -> list[str]:
        """The topics that this user may describe, but not read."""
        confluent, operation = needed(), needed("confluent_kafka.admin").AclOperation
        wanted = confluent.TopicCollection(list(names))
        asked = self._ask(
            lambda: self.admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=PATIENT_S)
        )
        found = {name: self._ask(partial(answer.result, PATIENT_S + 1)) for name, answer in asked.items()}
        allowed = {name: topic.authorized_operations for name, topic in found.items()}
        return sorted(name for name, operations in allowed.items() if operations and operation.READ not in operations)

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self._connection.client(needed("confluent_kafka.admin").AdminClient, {}, self.faults)
        return self._admin

    def close(self) -> None:
        self._admin = None

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (needed().KafkaException, TimeoutError) as error:
            raise self._fault(error) from None

    def _fault(self, error: BaseException) -> Exception:
        self.admin.poll(0)  # faults come to the callback by this
        return unavailable(self._connection.servers, error, self.faults)
