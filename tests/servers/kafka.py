"""A real Kafka for tests: one broker in KRaft mode on the loopback, in a JVM of its own.

The fixture ``kafka`` gives a running ``Broker``, which all tests of a process share. A test may kill it: the next one
gets a broker that runs. Whoever takes the fixture has the marker ``kafka``.

    def test_something(kafka: Broker) -> None:
        topic = kafka.topic(partitions=2)                  # with a name of its own; settings: **{"cleanup.policy": "compact"}
        kafka.produce(topic, [b"a", b"b"], partition=0)    # also key=, headers=, timestamp= in milliseconds
        kafka.transaction(topic, [b"c"], commit=False)     # aborted: it leaves a gap and a marker in the offsets
        kafka.offsets(topic)                               # {0: (0, 4), 1: (0, 0)}, the low and high watermarks
        kafka.messages(topic)                              # the committed messages, each a confluent_kafka.Message
        kafka.delete_records(topic, {0: 1})                # as retention does
        kafka.grow(topic, 4)                               # more partitions
        kafka.delete_topic(topic)
        kafka.group_offsets("group")                       # {"topic/0": 17}
        kafka.kill(); kafka.start()                        # SIGKILL, then the same data and port
        kafka.pause(); kafka.go_on()                       # SIGSTOP and SIGCONT: it answers nobody
        kafka.servers                                      # "127.0.0.1:20123"
        kafka.sasl_servers                                 # a listener that wants USER and PASSWORD
        kafka.ssl_servers, kafka.certificate               # a listener with TLS, whose certificate is for localhost
        kafka.allow(STRANGER, topic, "DESCRIBE")           # a user who else may do nothing

``make setup`` fetches the broker with Maven (``pom.xml`` beside this file) into the virtual environment. Where that is
impossible the tests skip with the reason; with CI in the environment they fail. The first start of a process takes 4 s, of
which 1 s formats the folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from springtide.bench.kafka_broker import BrokerProcess, missing
from springtide.bench.keeper import free_ports

_T = TypeVar("_T")
USER, PASSWORD = "reader", "Xq7-correct-horse"
"""Of the listener ``kafka.sasl_servers``."""
STRANGER = "stranger"
"""A user with the same password, who may do nothing."""


def require() -> None:
    """Skip the test if there can be no broker; with CI in the environment it fails."""
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


class Broker(BrokerProcess):
    """One Kafka broker and what tests do with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sasl_port, self._ssl_port = free_ports(2)
        self.certificate, self._keystore = folder / "certificate.pem", folder / "keystore.pem"
        self._names = itertools.count()

    @property
    def sasl_servers(self) -> str:
        """A listener that wants ``security.protocol=SASL_PLAINTEXT``, mechanism PLAIN, USER and PASSWORD."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def ssl_servers(self) -> str:
        """A listener that wants ``security.protocol=SSL``."""
        return f"localhost:{self._ssl_port}"

    def format(self) -> None:
        self._certify()
        super().format()

    # topics

    def topic(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        """Make a topic; without a name it gets one of its own."""
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{next(self._names)}"
        made = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self._wait(self.admin.create_topics([made]))
        self._until_led(name, partitions)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import NewPartitions

        self._wait(self.admin.create_partitions([NewPartitions(topic, partitions)]))
        self._until_led(topic, partitions)
        self.__dict__.pop("_producer", None)  # it would not know them for some minutes

    def delete_topic(self, topic: str) -> None:
        self._wait(self.admin.delete_topics([topic]))
        while topic in self.admin.list_topics(timeout=10).topics:
            time.sleep(0.05)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention does."""
        from confluent_kafka import TopicPartition

        self._wait(self.admin.delete_records([TopicPartition(topic, number, offset) for number, offset in before.items()]))

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """The low and the high watermark of each partition."""
        from confluent_kafka import TopicPartition

        with self.consumer() as consumer:
            numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            places = {n: TopicPartition(topic, n) for n in sorted(numbers)}
            return {n: self._led(partial(consumer.get_watermark_offsets, place, timeout=10)) for n, place in places.items()}

    def group_offsets(self, group: str) -> dict[str, int]:
        """The offsets that a consumer group has committed, by "topic/partition"."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        (answer,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {f"{place.topic}/{place.partition}": place.offset for place in answer.result(10).topic_partitions}

    def allow(self, user: str, topic: str, operation: str) -> None:
        """Allow a user an operation on a topic, for example "DESCRIBE" or "READ"."""
        from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        what = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*"
        self._wait(self.admin.create_acls([AclBinding(*what, AclOperation[operation], AclPermissionType.ALLOW)]))

    # records

    def produce(
        self, topic: str, values: Sequence[bytes | None], *, partition: int = -1, key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (), timestamp: int = 0,
    ) -> None:  # fmt: skip
        """Write records and wait until they are durable. ``timestamp``: milliseconds since 1970; 0 is now."""
        self._send(self._producer, topic, values, partition, key, headers, timestamp)
        assert self._producer.flush(30) == 0, "the broker did not take all records"

    def transaction(self, topic: str, values: Sequence[bytes | None], *, partition: int = -1, commit: bool = True) -> None:
        """Write records in a transaction of their own, and commit or abort it."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        self._send(producer, topic, values, partition, None, (), 0)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def messages(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """All messages from the start to the end of a topic, partition by partition."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        found: list[Any] = []
        with self.consumer(**{"isolation.level": isolation, "enable.partition.eof": True}) as consumer:
            for number in sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions):
                consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
                while (message := consumer.poll(30)) is not None:
                    fault = message.error()
                    if fault is not None and fault.code() == KafkaError._PARTITION_EOF:
                        break
                    assert fault is None, fault
                    found.append(message)
        return found

    def consumer(self, **config: Any) -> Any:
        """A consumer that closes at the end of a ``with``."""
        from confluent_kafka import Consumer

        plain = {"bootstrap.servers": self.servers, "group.id": "tests", "enable.auto.commit": False}
        return Consumer({**plain, **config})

    @cached_property
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    # helpers

    @cached_property
    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "log_level": 0}
        )

    @staticmethod
    def _send(
        producer: Any, topic: str, values: Sequence[bytes | None], partition: int, key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]], timestamp: int,
    ) -> None:  # fmt: skip
        for number, value in enumerate(values):
            producer.produce(topic, value, key, partition=partition, timestamp=timestamp, headers=list(headers))
            if number % 10_000 == 9_999:
                producer.poll(0)

    @staticmethod
    def _wait(answers: Mapping[Any, Any]) -> None:
        for answer in answers.values():
            answer.result(30)

    def _until_led(self, topic: str, partitions: int) -> None:
        """Wait until every partition has a leader, as otherwise the first reads of a test fail now and then."""
        while True:
            found = self.admin.list_topics(timeout=10).topics.get(topic)
            if (
                found is not None
                and len(found.partitions) == partitions
                and all(p.leader >= 0 for p in found.partitions.values())
            ):
                return
            time.sleep(0.05)

    @staticmethod
    def _led(question: Callable[[], _T]) -> _T:
        """Ask again while a broker that has just started does not lead its partitions, though it says so."""
        from confluent_kafka import KafkaError, KafkaException

        until = time.monotonic() + 20
        while True:
            try:
                return question()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def _certify(self) -> None:
        """Make a key and a certificate that signs itself."""
        key = self._keystore.with_name("key.pem")
        options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(["openssl", *options, *names, *files], check=True, capture_output=True)
        self._keystore.write_text(key.read_text() + self.certificate.read_text())

    def _listeners(self) -> dict[str, tuple[str, str]]:
        return {
            **super()._listeners(), "SASL": ("SASL_PLAINTEXT", self.sasl_servers), "SSL": ("SSL", self.ssl_servers)
        }  # fmt: skip

    def _properties(self) -> dict[str, object]:
        one = "org.apache.kafka.common.security.plain.PlainLoginModule required user_"
        return {
            **super()._properties(),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{one}{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}";',
        }


@pytest.fixture(scope="session")
def kafka_of_session() -> Iterator[Broker]:
    """The broker of this process; a test takes ``kafka``."""
    require()
    folder = Path(tempfile.mkdtemp(prefix="springtide-kafka-"))
    broker = Broker(folder)
    try:
        broker.format()
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def kafka(kafka_of_session: Broker) -> Broker:
    """A broker that runs, also after a test that has killed it."""
    if kafka_of_session.running():
        kafka_of_session.go_on()
    kafka_of_session.start()
    return kafka_of_session
