"""The driver's part: publishes staged messages, exactly once in transactions, or at least once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from springtide.connectors.kafka.clients import Connection, needed
from springtide.connectors.kafka.sink import marks
from springtide.connectors.kafka.sink.marks import Progress
from springtide.connectors.kafka.sink.producing import Fenced, Producing
from springtide.connectors.kafka.sink.staged import blocks
from springtide.connectors.kafka.sink.topic import made
from springtide.errors import CheckpointError
from springtide.model.publisher import Mark, Part, PublishedSink, Publisher, SinkUnavailable

if TYPE_CHECKING:
    from springtide.connectors.kafka.sink.declared import KafkaSink

TRANSACTION_S = 2.0
"""A transaction is committed after this time even if records of the batch are left: readers see nothing behind an open
transaction, and the brokers abort one after transaction.timeout.ms (a minute). A commit takes about 5 ms."""


class KafkaPublisher(Publisher):
    """What both guarantees have in common."""

    def __init__(self, sink: KafkaSink, identity: str, stopped: Callable[[], bool]) -> None:
        self._sink, self._id, self._stopped = sink, f"springtide-{identity}", stopped

    @property
    def place(self) -> str:
        return f"the offset of consumer group {self._id!r} in topic {self._sink.topic!r}"

    def _open(self, own: dict[str, Any]) -> Producing:
        limits = {"message.max.bytes": max(1_000, self._terms.limit), "batch.size": min(1_000_000, self._terms.limit)}
        return Producing(self._sink.describe(), self._sink.connection, self._sink.topic, {**own, **limits}, self._stopped)

    def _begin(self) -> None:
        self._terms = made(self._sink)

    def in_tasks(self, sink: PublishedSink) -> PublishedSink:
        assert sink is self._sink
        return replace(self._sink, connection=Connection(self._sink.connection.servers), terms=self._terms)


class AtLeastOnce(KafkaPublisher):
    """An idempotent producer. An error in the middle of a batch publishes the whole batch again."""

    _producing: Producing | None = None

    def prepare(self) -> Mark | None:
        self._begin()
        return None

    def begin(self, batch: int) -> None: ...

    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        producing = self._producing = self._producing or self._open({"enable.idempotence": True})
        try:
            with producing.translating():
                for block in blocks(parts, 0, 0):
                    producing.send(block.messages)
                producing.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._producing is not None:
            self._producing.drop()
            self._producing = None


class ExactlyOnce(KafkaPublisher):
    """Transactions, each with the mark of how far it got.

    Any error drops the producer. The next call makes another one, which ends the open transaction whatever became of it, and
    goes on from the mark that is found then: an error is a small crash, and there is one way back from both.
    """

    def __init__(
        self, sink: KafkaSink, identity: str, stopped: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(sink, identity, stopped)
        self._clock = clock
        self._producing: Producing | None = None
        self._progress: Progress | None = None  # as committed
        self._pending: Progress | None = None  # of a transaction whose end is not known
        self._groups: dict[str, Any] = {}  # consumers, by isolation level
        self._fenced: str | None = None  # why this publisher may not write any more
        self._began: float | None = None  # of the open transaction

    def prepare(self) -> Mark | None:
        self._begin()
        self._reopen()
        return None if self._progress is None else self._progress.mark

    def begin(self, batch: int) -> None:
        self._guarded(lambda: self._commit(Progress(batch)))

    def publish(self, batch: int, parts: Sequence[Part]) -> None:
        self._guarded(lambda: self._publish(batch, parts))

    def _publish(self, batch: int, parts: Sequence[Part]) -> None:
        assert self._producing is not None and self._progress is not None
        left = marks.rest(self._progress, batch, parts)
        if left is None:
            return
        for block in blocks(parts, *left):
            self._start()
            self._producing.send(block.messages)
            if self._began is not None and self._clock() - self._began > TRANSACTION_S:
                self._commit(marks.after(batch, parts, block.part, block.row + len(block.messages)))
        if self._progress != Progress(batch):
            self._commit(Progress(batch))

    def _start(self) -> None:
        assert self._producing is not None
        if self._began is None:
            self._producing.producer.begin_transaction()
            self._began = self._clock()

    def _commit(self, progress: Progress) -> None:
        """End the transaction together with the mark."""
        self._start()
        producing = self._producing
        assert producing is not None
        producing.flush()
        offsets, group = marks.offsets(self._sink.topic, progress), self._group("read_committed").consumer_group_metadata()
        producing.bounded(lambda wait: producing.producer.send_offsets_to_transaction(offsets, group, wait))
        self._pending = progress
        producing.call(producing.producer.commit_transaction)
        self._progress, self._pending, self._began = progress, None, None

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something with a producer that works; drop it after an error."""
        if self._fenced is not None:  # another producer would fence the driver that has taken over
            raise CheckpointError(self._fenced)
        if self._producing is None:
            self._reopen((self._progress, self._pending))
        assert self._producing is not None
        try:
            with self._producing.translating():
                work()
        except Fenced as error:
            began = self._began
            self._drop()
            if began is not None and self._clock() - began >= self._sink.transaction_timeout_s:
                raise SinkUnavailable(f"the transaction took longer than transaction.timeout.ms ({error})") from None
            raise self._taken_over(str(error)) from None
        except BaseException:
            self._drop()
            raise

    def _taken_over(self, why: str) -> CheckpointError:
        self._fenced = (
            f"{self._sink.describe()}: another driver has taken over this sink of the checkpoint ({why}); this one ends. A"
            " checkpoint, or a copy of it, may run only once"
        )
        return CheckpointError(self._fenced)

    def _reopen(self, known: Sequence[Progress | None] | None = None) -> None:
        """A new producer, which fences all others and ends their transactions, and the mark that is valid then. ``known``:
        where this publisher may have left the mark. If it is elsewhere another driver has moved it, and must not be fenced."""
        self._drop()
        timeout_ms = round(self._sink.transaction_timeout_s * 1000)
        producing = self._open({"transactional.id": self._id, "transaction.timeout.ms": timeout_ms})
        try:
            with producing.translating():
                if known is not None and self._read(producing, "read_uncommitted") not in known:
                    raise self._taken_over(f"{self.place} was moved by it")
                producing.call(producing.producer.init_transactions)
                self._progress = self._read(producing, "read_committed")
        except Fenced as error:  # two of them began at the same time
            producing.drop()
            raise self._taken_over(str(error)) from None
        except BaseException:
            producing.drop()
            raise
        self._producing, self._pending = producing, None

    def _read(self, producing: Producing, isolation: str) -> Progress | None:
        """The mark. With "read_committed" the brokers answer once a transaction that is being ended has ended; until then the
        mark is the one before it."""
        confluent = needed()
        place = [confluent.TopicPartition(self._sink.topic, 0)]
        group = self._group(isolation)
        (found,) = producing.call(lambda wait: group.committed(place, wait * 4))
        if found.error is not None:
            raise confluent.KafkaException(found.error)
        return marks.progress_of(found.offset, found.metadata, self.place)

    def _group(self, isolation: str) -> Any:
        """A consumer of the group with the marks, which joins nothing."""
        if isolation not in self._groups:
            own = {"group.id": self._id, "enable.auto.commit": False, "isolation.level": isolation}
            self._groups[isolation] = self._sink.reading.client(needed().Consumer, own)
        return self._groups[isolation]

    def _drop(self) -> None:
        """Let go of the producer. An open transaction is aborted, so that readers do not wait for it; otherwise the brokers do
        that when it times out."""
        producing, began = self._producing, self._began
        self._producing = self._began = None
        if producing is not None:
            producing.drop(in_transaction=began is not None and self._pending is None)

    def close(self) -> None:
        self._drop()
        for group in self._groups.values():
            group.close()
        self._groups.clear()
