"""A producer of librdkafka with bounded waits: every call answers in time, or the sink counts as unavailable."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from springtide.connectors.kafka.clients import PATIENT_S, Connection, Faults, Setting, needed, reason, unavailable
from springtide.errors import CheckpointError, OptionError, RunError
from springtide.model.publisher import SinkUnavailable

SLICE_S = 0.5
"""A call of librdkafka returns at least this often, so that the end of the run is noticed."""

ABORT_S = 1.0
"""Limits the wait for the abort of a transaction; the next producer ends it in any case."""

TUNED: Mapping[str, Setting] = {
    # messages that wait for the broker, in the driver's memory
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
    "linger.ms": 5,
    # as Java's producers, so that other programs find a key in the same partition
    "partitioner": "murmur2_random",
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}

FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
FINAL = {
    "MSG_SIZE_TOO_LARGE": "a committed record is larger than the topic takes; raise its max.message.bytes to what it was",
    "_MSG_SIZE_TOO_LARGE": "a committed record is larger than message.max.bytes in config=; raise that to what it was",
    "INVALID_RECORD": "the topic takes no such records; change its settings back",
    "INVALID_TIMESTAMP": "the topic takes no such timestamps; widen its message.timestamp settings",
    "_UNKNOWN_PARTITION": "the topic lost a partition; make it again as it was",
    "UNKNOWN_TOPIC_OR_PART": "the topic is gone; make it again",
    "_UNKNOWN_TOPIC": "the topic is gone; make it again",
    "TOPIC_AUTHORIZATION_FAILED": "allow this user to write to the topic",
    "GROUP_AUTHORIZATION_FAILED": "allow this user to read the sink's consumer group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow this user to write with the sink's transactional.id",
    "CLUSTER_AUTHORIZATION_FAILED": "allow this user idempotent writes",
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms in config= to the brokers' transaction.max.timeout.ms",
    "UNSUPPORTED_VERSION": "the brokers are too old for it",
}
"""Errors that waiting does not mend, and what does."""

T = TypeVar("T")
Message = tuple[Any, ...]


class Producing:
    """One producer, from its making to the first error: after an error another one takes its place, as after a crash."""

    def __init__(
        self, what: str, connection: Connection, topic: str, own: Mapping[str, Any], stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``what`` describes the sink, ``own`` are the settings that the sink decides."""
        self._what, self._servers, self._topic, self._stopped, self._clock = what, connection.servers, topic, stopped, clock
        self.faults = Faults()
        self._failed: list[Any] = []  # deliveries, without transactions
        # without self: a cycle would keep the producer's threads until garbage is collected
        told = {"delivery.report.only.error": True, "on_delivery": _noting(self._failed)}
        self.producer = (connection | TUNED).client(needed().Producer, {**own, **told}, self.faults)

    def call(self, attempt: Callable[[float], T]) -> T:
        """Repeat a call that goes on where it was after a timeout."""
        until = self._clock() + PATIENT_S
        while True:
            try:
                return attempt(SLICE_S)
            except needed().KafkaException as error:
                fault = error.args[0]
                if fault.fatal() or not fault.retriable():
                    raise
                if self._stopped() or self._clock() >= until:
                    raise self._away(error) from None

    def bounded(self, attempt: Callable[[float], object], most_s: float = PATIENT_S) -> None:
        """``call`` in a thread of its own, for calls that do not keep to their timeout: send_offsets_to_transaction blocks for
        ever when the group's coordinator goes away (librdkafka 5456 and 5511). The thread of such a call is left behind with
        its producer, which the next one fences."""
        ended, errors = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                self.call(attempt)
            except BaseException as error:  # noqa: BLE001  raised in the waiting thread
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=work, name="springtide-kafka", daemon=True).start()
        until = self._clock() + most_s
        while not ended.wait(0.2):
            if self._stopped() or self._clock() >= until:
                raise self._away(TimeoutError("the brokers do not answer"))
        if errors:
            raise errors[0]

    def send(self, messages: Sequence[Message]) -> None:
        """Hand messages to the producer, and wait while its queue is full."""
        produce, topic = self.producer.produce, self._topic
        for message in messages:
            try:
                produce(topic, *message)
            except BufferError:
                self._wait(functools.partial(self._is_queued, message))
        self.producer.poll(0)

    def _is_queued(self, message: Message) -> bool:
        self.producer.poll(0.02)
        try:
            self.producer.produce(self._topic, *message)
        except BufferError:
            return False
        return True

    def flush(self) -> None:
        """Wait until all messages are delivered."""
        self._wait(lambda: self.producer.flush(0.05) == 0)
        if self._failed:
            raise needed().KafkaException(self._failed[0])

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for deliveries. Gives up if there was none for a while."""
        before, since = len(self.producer), self._clock()
        while not is_done():
            left = len(self.producer)
            if left < before:
                before, since = left, self._clock()
            elif self._stopped() or self._clock() - since >= PATIENT_S:
                raise self._away(TimeoutError(f"{left:,} records are not acknowledged"))

    @contextlib.contextmanager
    def translating(self) -> Iterator[None]:
        """Raise Springtide's errors for librdkafka's: after a fatal one, such as fencing, any call may raise it."""
        try:
            yield
        except needed().KafkaException as error:
            raise self.failure(error) from None

    def failure(self, error: Any) -> Exception:
        """The error of Springtide for one of librdkafka."""
        name = error.args[0].name()
        if name in FENCED:
            return Fenced(reason(error))
        if name in FINAL:
            kind = OptionError if name.endswith(("FAILED", "TIMEOUT", "VERSION")) else RunError
            return kind(f"{self._what}: {reason(error)}; {FINAL[name]}. Nothing is lost; the next start publishes the rest")
        return self._away(error)

    def _away(self, error: BaseException) -> Exception:
        self.producer.poll(0)  # faults come to the callback by this
        if self.faults.hopeless() and self.faults.last.name() != "_RESOLVE":
            return OptionError(f"{self._what}: {self.faults}; correct servers or config=")
        return SinkUnavailable(str(unavailable(self._servers, error, self.faults)))

    def drop(self, in_transaction: bool = False) -> None:
        """Discard the producer with all that waits in it. An open transaction is aborted if that is possible at once."""
        with contextlib.suppress(needed().KafkaException, SinkUnavailable):
            self.producer.purge(in_queue=True, in_flight=True, blocking=False)
            self.producer.poll(0)
            if in_transaction:
                self.bounded(self.producer.abort_transaction, ABORT_S)


def _noting(failed: list[Any]) -> Callable[[Any, Any], None]:
    """A callback of deliveries that notes errors."""

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    return delivered


class Fenced(CheckpointError):
    """Another producer with the same transactional id has been started, or the transaction took too long."""
