"""``springtide.sink.kafka``: a topic of Kafka as a sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from springtide.api.kafka import TOPIC, config_of, schema_of, servers_of
from springtide.connectors.kafka.clients import REGISTRY, Connection, Setting, needed
from springtide.connectors.kafka.sink.declared import TIMEOUT, TIMEOUT_MS, KafkaSink
from springtide.connectors.kafka.sink.layout import PARTS, OutLayout
from springtide.connectors.kafka.sink.values import FORMATS
from springtide.errors import OptionError, nearest
from springtide.model.publisher import Guarantee

OWN = {
    "bootstrap.servers": "the first argument, servers",
    "metadata.broker.list": "the first argument, servers",
    "transactional.id": "nothing, as the sink derives it from the checkpoint",
    "enable.idempotence": "guarantee=; both guarantees need it",
    "acks": "guarantee=; both guarantees wait for all replicas",
    "request.required.acks": "guarantee=; both guarantees wait for all replicas",
    "group.id": "nothing, as the sink derives the group with its marks from the checkpoint",
    "isolation.level": "the setting in the readers of the topic",
    "delivery.report.only.error": "nothing, as failures end in a message",
    "enable.gapless.guarantee": "guarantee=",
}
"""The settings of librdkafka that the sink decides itself, and what to use instead."""

GUARANTEES = {"exactly-once": Guarantee.EXACTLY_ONCE, "at-least-once": Guarantee.AT_LEAST_ONCE}


def kafka(
    servers: str, topic: str, *, key: str | Iterable[str] | None = None, value: str | None = None, format: str | None = None,
    schema: object = None, meta: Mapping[str, str] | None = None, guarantee: str = "exactly-once",
    partitions: int | None = None, config: Mapping[str, Setting] | None = None,
) -> KafkaSink:  # fmt: skip
    """A topic of Kafka. **Exactly once** for readers with ``isolation.level=read_committed``, which is the default of
    ``source.kafka`` and librdkafka, not of Java's consumers.

    ``key`` names the field that is the key, of text, bytes or whole numbers; several fields make a JSON array. ``format``:
    "json" (the whole record), "avro" (``schema``: the schema), "protobuf" (``schema``: the message class), or "text" or "bytes"
    with the one field ``value``. ``meta`` names fields that go beside the value: ``{"at": "timestamp", "tags": "headers",
    "shard": "partition"}``. A record that cannot be encoded, or is larger than the topic takes, becomes a dead letter.

    ``guarantee="at-least-once"`` writes without transactions: readers see records sooner, and after a crash some twice.
    ``partitions`` makes the topic with this number of partitions if it does not exist.

    ``config`` has settings of librdkafka, for example ``{"compression.type": "zstd"}``.
    """
    return KafkaSink(
        Connection(servers_of(servers), _config(config)), _topic(topic), _layout(key, value, format, schema, meta),
        _guarantee(guarantee), _partitions(partitions),
    )  # fmt: skip


def _topic(topic: object) -> str:
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise OptionError(
            f"kafka: topic={topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249; give one"
        )
    return topic


def _layout(key: object, value: object, format: object, schema: object, meta: object) -> OutLayout:
    chosen = format if isinstance(format, str) else "json" if format is None else ""
    if chosen not in FORMATS:
        raise OptionError(f"kafka: format={format!r}; {nearest(str(format), FORMATS)}")
    if value is not None and (not isinstance(value, str) or chosen not in ("text", "bytes")):
        raise OptionError(
            f"kafka: value={value!r} is for format='text' and 'bytes', and names a field; other formats send the whole record"
        )
    if schema is not None and chosen not in ("avro", "protobuf"):
        raise OptionError("kafka: schema= is for format='avro' and 'protobuf'")
    if schema is None and chosen == "avro":
        raise OptionError("kafka: format='avro' wants schema= an Avro schema, as JSON text or as a dict")
    described = schema_of(chosen, schema, None) if schema is not None or chosen == "protobuf" else None
    return OutLayout(chosen, described, value, _key(key), _meta(meta, key))


def _key(key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"kafka: key={key!r} is not allowed; give the name of a field, or several, for example 'route'")
    return names


def _meta(meta: object, key: object) -> dict[str, str]:
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        raise OptionError(f"kafka: meta={meta!r} is not allowed; give fields and what they fill, such as {{'at': 'timestamp'}}")
    for name, part in meta.items():
        if part not in PARTS:
            raise OptionError(f"kafka: meta={{{name!r}: {part!r}}}; {nearest(str(part), PARTS)}")
    if len(set(meta.values())) < len(meta):
        raise OptionError(f"kafka: meta={dict(meta)!r} fills a part of the message twice")
    if key is not None and "key" in meta.values():
        raise OptionError("kafka: key= and meta= both give the key; a field in key= stays in the value, one in meta= does not")
    return dict(meta)


def _guarantee(given: object) -> Guarantee:
    if given not in GUARANTEES:
        raise OptionError(f"kafka: guarantee={given!r}; {nearest(str(given), GUARANTEES)}")
    return GUARANTEES[str(given)]


def _partitions(given: object) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise OptionError(
            f"kafka: partitions={given!r} is not allowed; give a whole number of 1 or more, with which the topic is made, or"
            " None if it has to exist"
        )
    return given


def _config(config: object) -> dict[str, Setting]:
    found = config_of(config, OWN, _producer)
    registry = next((name for name in found if name.startswith(REGISTRY)), None)
    if registry is not None:
        raise OptionError(f"kafka: config= has {registry!r}, but the sink uses no schema registry; leave it out")
    return found


def _producer(settings: dict[str, Any]) -> None:
    """Whether librdkafka takes the settings of a producer, also together with a transaction's timeout."""
    timeout = settings.get(TIMEOUT, TIMEOUT_MS)
    needed().Producer({**settings, "transactional.id": "check", TIMEOUT: timeout})
