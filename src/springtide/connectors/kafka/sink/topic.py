"""What the driver asks a cluster about the topic of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from springtide.connectors.kafka.clients import PATIENT_S, needed, reason
from springtide.connectors.kafka.cluster import Cluster
from springtide.connectors.kafka.sink.encoding import DEFAULT_LIMIT, Terms
from springtide.errors import OptionError, nearest
from springtide.model.publisher import SinkUnavailable
from springtide.model.source import SourceUnavailable

if TYPE_CHECKING:
    from springtide.connectors.kafka.sink.declared import KafkaSink

Settings = dict[str, str]


def checked(sink: KafkaSink) -> None:
    """Refuse a topic or brokers that cannot be written as the sink is declared. Changes nothing."""
    cluster = Cluster(sink.reading, (sink.topic,), committed=True)
    try:
        described = cluster.described([sink.topic])
        if sink.topic in described:
            _terms(sink, cluster, len(described[sink.topic][1]))
        elif sink.partitions is None:
            known = [name for name in cluster.admin.list_topics(timeout=PATIENT_S).topics if not name.startswith("__")]
            raise OptionError(
                f"kafka: there is no topic {sink.topic!r} at {sink.connection.servers}; {nearest(sink.topic, known)}. Or give"
                " partitions=, and it is made"
            )
        _check_timeout(sink, cluster)
    except SourceUnavailable as error:
        if cluster.faults.hopeless():
            raise OptionError(f"{sink.describe()}: {cluster.faults}; correct servers or config=") from error
        raise SinkUnavailable(str(error)) from None
    finally:
        cluster.close()


def made(sink: KafkaSink) -> Terms:
    """Make the topic if it has to be made, and return its terms."""
    checked(sink)
    cluster = Cluster(sink.reading, (sink.topic,), committed=True)
    try:
        if sink.topic not in (described := cluster.described([sink.topic])):
            _make(sink, cluster)
            described = cluster.described([sink.topic])
        if sink.topic not in described:
            raise SinkUnavailable(f"topic {sink.topic!r} is being made")
        return _terms(sink, cluster, len(described[sink.topic][1]))
    except SourceUnavailable as error:
        raise SinkUnavailable(str(error)) from None
    finally:
        cluster.close()


def _make(sink: KafkaSink, cluster: Cluster) -> None:
    confluent, admin = needed(), needed("confluent_kafka.admin")
    wanted = admin.NewTopic(sink.topic, num_partitions=sink.partitions, replication_factor=-1)
    try:
        cluster.admin.create_topics([wanted], request_timeout=PATIENT_S)[sink.topic].result(PATIENT_S + 1)
    except confluent.KafkaException as error:
        if error.args[0].code() == confluent.KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if error.args[0].retriable() or error.args[0].name().startswith("_"):
            raise SinkUnavailable(reason(error)) from None
        raise OptionError(f"{sink.describe()}: the topic cannot be made: {reason(error)}; make it, or correct that") from None


def _terms(sink: KafkaSink, cluster: Cluster, partitions: int) -> Terms:
    settings = _settings(cluster, "TOPIC", sink.topic)
    keyed = "compact" in settings.get("cleanup.policy", "")
    if keyed and not sink.layout.keys:
        raise OptionError(f"{sink.describe()}: the topic is compacted by keys (cleanup.policy); give key=")
    topic = int(settings.get("max.message.bytes", DEFAULT_LIMIT))
    own = int(str(sink.connection.settings.get("message.max.bytes", topic)))
    follows = settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
    ahead = int(settings.get("message.timestamp.after.max.ms", -1))
    return Terms(min(topic, own), partitions, ahead if follows and 0 <= ahead < 1 << 60 else None, keyed)


def _check_timeout(sink: KafkaSink, cluster: Cluster) -> None:
    """Refuse a timeout of transactions above the brokers' limit, if they tell it."""
    if not sink.is_exact:
        return
    brokers = cluster.admin.list_topics(timeout=PATIENT_S).brokers
    settings = _settings(cluster, "BROKER", str(next(iter(brokers)))) if brokers else {}
    most = settings.get("transaction.max.timeout.ms")
    asked = round(sink.transaction_timeout_s * 1000)
    if most is not None and asked > int(most):
        raise OptionError(
            f"{sink.describe()}: transaction.timeout.ms={asked} in config= is above the brokers'"
            f" transaction.max.timeout.ms={most}; lower it"
        )


def _settings(cluster: Cluster, kind: str, name: str) -> Settings:
    """The settings of a topic or broker; empty if this user may not read them."""
    confluent, admin = needed(), needed("confluent_kafka.admin")
    resource = admin.ConfigResource(getattr(admin.ConfigResource.Type, kind), name)
    try:
        found: dict[str, Any] = cluster.admin.describe_configs([resource], request_timeout=PATIENT_S)[resource].result(
            PATIENT_S + 1
        )
    except (confluent.KafkaException, TimeoutError) as error:
        if "AUTHORIZATION" in (error.args[0].name() if isinstance(error, confluent.KafkaException) else ""):
            return {}
        raise SinkUnavailable(f"{name} does not tell its settings: {reason(error)}") from None
    return {each.name: each.value for each in found.values() if each.value is not None}
