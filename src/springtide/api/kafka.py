"""``springtide.source.kafka``: topics of Kafka as a stream."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from springtide.api.stream import Stream
from springtide.api.stream import source as _stream
from springtide.connectors.kafka import meta as metas
from springtide.connectors.kafka.clients import OWN, REGISTRY, SECRET_WORDS, Connection, Setting, needed
from springtide.connectors.kafka.declared import KafkaSource, Start
from springtide.connectors.kafka.records import Layout, hints_of
from springtide.connectors.kafka.values import FORMATS
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model import schema as schemas
from springtide.model.secret import Secret

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/@]+):\d{1,5}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LATEST_TYPES = "give 'earliest', 'latest', a datetime with a time zone, or offsets such as {'topic': {0: 17, 1: 4}}"


def kafka(
    servers: str, topic: str | Iterable[str], *, value: object, format: str | None = None, schema: object = None,
    registry: str | None = None, meta: Mapping[str, str] | None = None, created: str | None = None, start: Start = "earliest",
    until: str | None = None, on_data_loss: str = "stop", isolation: str = "read_committed", group: str | None = None,
    config: Mapping[str, Setting] | None = None, max_records: int | None = None, name: str = "source",
) -> Stream:  # fmt: skip
    """The records of Kafka's topics: a name, several names, or a pattern that begins with ``^`` and also finds new topics.

    ``value``: the class of the records, a frozen dataclass; or ``bytes`` or ``str`` for records with one field ``value``.
    ``format``: "json", "avro" (``schema``: the writer's) or "protobuf" (``schema``: the message class). ``registry``: the URL
    of a schema registry, if values begin with its header. A value that cannot be decoded becomes a dead letter.

    ``meta`` fills fields from the message: ``{"at": "timestamp"}``, and so key, headers, topic, partition and offset.
    ``created`` names the field with the creation time; otherwise it is Kafka's timestamp.

    ``start`` is "earliest", "latest", a datetime, or offsets as ``{"topic": {0: 17}}``; ``until="now"`` ends the stream
    where the topics end at the first start. ``on_data_loss``: "stop" when records were deleted before they were read, or
    "go on" and count them. ``isolation``: "read_committed" or "read_uncommitted". ``group``: a consumer group that
    gets the offsets of each committed batch, for those who watch it. ``max_records`` bounds a batch, whatever the plan allows.

    ``config`` has settings of librdkafka, for example ``{"sasl.password": secret.env("PASSWORD")}``.
    """
    layout = _layout(value, format, schema, _url(registry), meta, created)
    spec = KafkaSource(
        Connection(servers_of(servers), config_of(config, OWN, _consumer)), _topics(topic), layout, _start(start, topic),
        _one_of("until", until, (None, "now")), _one_of("on_data_loss", on_data_loss, ("stop", "go on")) or "",
        _one_of("isolation", isolation, ("read_committed", "read_uncommitted")) or "", _text_or_none("group", group),
        _most(max_records),
    )  # fmt: skip
    return _stream(spec, name, schemas.schema_of(layout.record), layout.record)


def servers_of(servers: object) -> str:
    if not isinstance(servers, str) or not all(_SERVER.fullmatch(each.strip()) for each in servers.split(",")):
        raise OptionError(
            f"kafka: servers={servers!r} is not allowed; give host:port, several with commas, for example 'kafka-1:9092'"
        )
    return ",".join(each.strip() for each in servers.split(","))


def _topics(given: object) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not topics:
        raise OptionError(
            f"kafka: topic={given!r} is not allowed; give a name, several names, or a pattern such as '^orders-.*'"
        )
    for topic in topics:
        if not isinstance(topic, str) or not (topic.startswith("^") or (TOPIC.fullmatch(topic) and topic not in (".", ".."))):
            raise OptionError(
                f"kafka: {topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249; a pattern begins"
                " with '^'"
            )
        try:
            re.compile(topic)
        except re.error as error:
            raise OptionError(f"kafka: the pattern {topic!r} cannot be read: {error}") from None
    if len(set(topics)) < len(topics):
        raise OptionError(f"kafka: topic={given!r} names a topic twice")
    return topics


def _layout(
    value: object, format: str | None, schema: object, registry: str | None, meta: Mapping[str, str] | None, created: str | None
) -> Layout:
    if value is bytes or value is str:
        return _plain(value, format, schema, registry, meta, created)
    arrow, record = schemas.as_schema(value, "kafka: value") if not schemas.is_record_class(value) else (None, value)
    if not isinstance(record, type):
        raise TopologyError(f"kafka: value={arrow!r} has no types of Python; give a frozen dataclass, bytes or str")
    format = format or "json"
    if format not in FORMATS or format in ("bytes", "text"):
        raise OptionError(
            f"kafka: format={format!r}; {nearest(str(format), ('json', 'avro', 'protobuf'))}; for raw values value=bytes or str"
        )
    types = hints_of(record)
    layout = Layout(
        record, format, schema_of(format, schema, registry), registry, metas.checked(meta, dict(types)[record]), created, types
    )
    _check_created(layout)
    schemas.schema_of(record)
    _check_decodes(layout)
    return layout


def _plain(
    value: type, format: str | None, schema: object, registry: str | None, meta: Mapping[str, str] | None, created: str | None
) -> Layout:
    """Records with the field ``value``, and those that ``meta`` names."""
    if format is not None or schema is not None or registry is not None:
        raise OptionError(
            f"kafka: format=, schema= and registry= are for a dataclass; leave them out with value={value.__name__}"
        )
    what = metas.checked(
        meta, {field: metas.DEFAULTS.get(each) for field, each in (meta or {}).items()} if _mapping(meta) else {}
    )
    if "value" in what:
        raise OptionError(f"kafka: meta= names the field 'value', which holds the {value.__name__} itself; take another name")
    types = {"value": value | None, **{field: metas.DEFAULTS[each] for field, each in what.items()}}
    schemas.as_schema(types, "kafka: meta")  # refuses what cannot be a column
    record = dataclasses.make_dataclass("Message", list(types.items()), frozen=True)
    layout = Layout(record, "bytes" if value is bytes else "text", meta=what, created=created, hints=hints_of(record))
    _check_created(layout)
    return layout


def _mapping(meta: object) -> bool:
    return isinstance(meta, Mapping)


def schema_of(format: str, schema: object, registry: str | None) -> str | bytes | None:
    """What Avro or Protobuf need to know, from a user's ``schema=``."""
    if format == "json":
        if schema is not None:
            raise OptionError(
                "kafka: schema= is for format='avro' and 'protobuf'; with JSON the dataclass in value= says what is read"
            )
        return None
    if format == "protobuf":
        from springtide.connectors.kafka.protobuf import described

        needed("google.protobuf")
        if not hasattr(schema, "DESCRIPTOR") or not hasattr(schema, "FromString"):
            raise OptionError(
                f"kafka: format='protobuf' wants schema= a message class, as protoc generates it; got {schema!r:.200}"
            )
        return described(schema)
    return _avro_schema(schema, registry)


def _avro_schema(schema: object, registry: str | None) -> str | None:
    if schema is None:
        if registry is None:
            raise OptionError(
                "kafka: format='avro' wants schema= the writer's schema, or registry= the URL of a schema registry"
            )
        return None
    from springtide.connectors.kafka.avro import parsed

    text = schema if isinstance(schema, str) else json.dumps(schema) if isinstance(schema, Mapping) else None
    if text is None:
        raise OptionError(f"kafka: schema={schema!r:.200} is not allowed; give an Avro schema as JSON text or as a dict")
    try:
        parsed(text)
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds
        raise OptionError(f"kafka: schema= is no Avro schema: {type(error).__name__}: {error}") from None
    return text


def _check_created(layout: Layout) -> None:
    if layout.created is None:
        return
    kind = layout.types.get(layout.created)
    if kind is None:
        raise TopologyError(
            f"kafka: created={layout.created!r} is no field of the record; {nearest(str(layout.created), layout.types)}"
        )
    if metas._without_none(kind)[0] is not datetime.datetime:
        raise TopologyError(f"kafka: created={layout.created!r} is declared {kind}; declare the field datetime")


def _check_decodes(layout: Layout) -> None:
    """Whether the decoder knows the types of the class, before anything runs."""
    try:
        layout.check(Connection(""))
    except (TypeError, ValueError, KeyError) as error:
        raise TopologyError(f"kafka: {layout.record.__name__} cannot be decoded from {layout.format}: {error}") from None


def _start(start: object, topic: object) -> Start:
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise OptionError(f"kafka: start={start!r}; {_LATEST_TYPES}")
        return start
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise OptionError(f"kafka: start={start} has no time zone; give one, such as datetime.UTC")
        return start
    if not isinstance(start, Mapping) or not start:
        raise OptionError(f"kafka: start={start!r} is not allowed; {_LATEST_TYPES}")
    names = {topic} if isinstance(topic, str) else set(topic) if isinstance(topic, Iterable) else set()
    for each, offsets in start.items():
        if each not in names and not any(name.startswith("^") for name in names):
            raise OptionError(f"kafka: start= names the topic {each!r}, which is not read; {nearest(str(each), names)}")
        if not isinstance(offsets, Mapping) or not all(_whole(n) and _whole(offset) for n, offset in offsets.items()):
            raise OptionError(
                f"kafka: start={{{each!r}: {offsets!r}}} is not allowed; give offsets by partition, such as {{0: 17, 1: 4}}"
            )
    return {each: dict(offsets) for each, offsets in start.items()}


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def config_of(config: object, own: Mapping[str, str], make: Callable[[dict[str, Any]], object]) -> dict[str, Setting]:
    """The settings in a user's ``config=``. ``own``: those that are not the user's; ``make`` a client with all others."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise OptionError(
            f"kafka: config= is a {type(config).__name__}; give settings of librdkafka, such as {{'client.id': 'orders'}}"
        )
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | Secret):
            raise OptionError(
                f"kafka: config= has {name!r} with a {type(value).__name__}; give text, a number, true or false, or a secret"
            )
        if name in own:
            raise OptionError(f"kafka: config= may not have {name!r}; use {own[name]}")
        if not isinstance(value, Secret) and any(word in name for word in SECRET_WORDS):
            raise OptionError(
                f"kafka: config= has {name!r} as text, which would be stored with the run; give"
                " springtide.secret.env('VARIABLE') or springtide.secret.file('path')"
            )
    _check_settings(config, make)
    return dict(config)


def _consumer(settings: dict[str, Any]) -> None:
    needed().Consumer({**settings, "group.id": "check"}).close()


def _check_settings(config: Mapping[str, Setting], make: Callable[[dict[str, Any]], object]) -> None:
    """Whether librdkafka knows the settings. Files and secrets may be missing: the driver looks for them when it starts."""
    plain = {name: value for name, value in config.items() if not isinstance(value, Secret) and "location" not in name}
    security = {"security.protocol", "enable.ssl.certificate.verification", "sasl.mechanism", "sasl.mechanisms"}
    Connection("localhost:9", {name: value for name, value in plain.items() if name not in security}).client(
        lambda settings: make({**settings, "bootstrap.servers": ""}), {}
    )
    unknown = [name for name in config if name.startswith(REGISTRY) and name.removeprefix(REGISTRY) not in REGISTRY_SETTINGS]
    if unknown:
        raise OptionError(
            f"kafka: config= has {unknown[0]!r}; {nearest(unknown[0], [REGISTRY + each for each in REGISTRY_SETTINGS])}"
        )


REGISTRY_SETTINGS = ("basic.auth.user.info", "ssl.ca.location")


def _url(registry: object) -> str | None:
    if registry is None:
        return None
    if not isinstance(registry, str) or not re.match(r"https?://[^/\s]+", registry):
        raise OptionError(
            f"kafka: registry={registry!r} is not allowed; give the URL of a schema registry, such as 'http://registry:8081'"
        )
    if "@" in registry:
        raise OptionError(
            "kafka: registry= has a login in its URL; leave it out, and give"
            " config={'schema.registry.basic.auth.user.info': springtide.secret.env('VARIABLE')}, which holds user:password"
        )
    return registry


def _one_of(what: str, given: str | None, allowed: tuple[str | None, ...]) -> str | None:
    if given not in allowed:
        names = [repr(each) for each in allowed]
        raise OptionError(f"kafka: {what}={given!r} is not allowed; give {' or '.join(names)}")
    return given


def _text_or_none(what: str, given: object) -> str | None:
    if given is not None and (not isinstance(given, str) or not given):
        raise OptionError(f"kafka: {what}={given!r} is not allowed; give a name, or leave it out")
    return given


def _most(given: object) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise OptionError(
            f"kafka: max_records={given!r} is not allowed; give a whole number of 1 or more, or None for no limit"
        )
    return given
