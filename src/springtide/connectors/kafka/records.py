"""From messages to records: which class, which format, and what is taken from a message beside its value."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.connectors.kafka import meta as metas
from springtide.connectors.kafka.clients import Connection
from springtide.connectors.kafka.values import decoder_of
from springtide.errors import OptionError, RecordError, RunError, SetupError
from springtide.model.source import Rejected, SourceUnavailable

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)

NOT_THE_RECORDS = (OptionError, RunError, SetupError)
"""Errors in decoding that are no fault of the record."""

MSGSPEC_CACHE = "__msgspec_cache__"

Hints = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """How messages become records of the class ``record``.

    ``format``: "json", "avro", "protobuf", "bytes" or "text"; ``schema``: what Avro or Protobuf need to know, as text or bytes;
    ``registry``: the URL of a schema registry, if values carry its header. ``meta``: the fields of the record that
    come from the message, for example ``{"at": "timestamp"}``. ``created``: the field with the creation time, else Kafka's
    timestamp. ``hints``: the types of the fields of the record and of each dataclass in it; a worker cannot resolve those of a
    class that was pickled by value.
    """

    record: type
    format: str = "json"
    schema: str | bytes | None = None
    registry: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    created: str | None = None
    hints: Sequence[tuple[type, Hints]] = ()

    def opened(self, connection: Connection) -> Decoding:
        """What decodes in this process."""
        for kind, hints in self.hints:
            _resolve(kind, hints)
        return Decoding(self, connection)

    def check(self, connection: Connection) -> None:
        """Whether the decoder knows the types of the class. msgspec leaves a cache on each class, which cannot be pickled."""
        try:
            self.opened(connection)
        finally:
            for kind in {base for each, _ in self.hints for base in each.__mro__}:
                if MSGSPEC_CACHE in vars(kind):
                    delattr(kind, MSGSPEC_CACHE)

    @property
    def types(self) -> Hints:
        """The types of the record's fields."""
        return next((hints for kind, hints in self.hints if kind is self.record), {})


@dataclass
class Decoded:
    """Records and the messages that they come from, in step."""

    values: list[Any]
    messages: Sequence[Any]
    created: npt.NDArray[np.int64] | None
    rejected: Sequence[Rejected]


class Decoding:
    """Decodes messages. A message that fails is rejected and stops no other."""

    def __init__(self, layout: Layout, connection: Connection) -> None:
        self._created = layout.created
        self._record = layout.record
        self._taken = metas.takers(layout.meta, layout.types)
        payload = _without(layout.record, layout.types, layout.meta) if layout.meta else layout.record
        self._decode: Callable[[Any], Any] = decoder_of(layout, payload, connection)
        self._tombstones = layout.format in ("bytes", "text")

    def decode(self, messages: Sequence[Any]) -> Decoded:
        try:
            values = self._all(messages)
        except SourceUnavailable:
            raise
        except Exception:  # noqa: BLE001  whatever a decoder or a class raises: find out for which message
            return self._one_by_one(messages)
        return Decoded(values, messages, self._times(messages, values), ())

    def _all(self, messages: Sequence[Any]) -> list[Any]:
        if self._taken:
            return [self._one(message) for message in messages]
        decode = self._decode
        return [decode(message.value()) for message in messages]

    def _one(self, message: Any) -> Any:
        raw = message.value()
        if raw is None and not self._tombstones:
            raise RecordError("a record without a value (a tombstone)")
        made = self._decode(raw)
        if not self._taken:
            return made
        return self._record(**vars(made), **{name: take(message) for name, take in self._taken.items()})

    def _one_by_one(self, messages: Sequence[Any]) -> Decoded:
        values, decoded, rejected = [], [], []
        for message in messages:
            try:
                values.append(self._one(message))
                decoded.append(message)
            except (SourceUnavailable, *NOT_THE_RECORDS):  # no fault of the record
                raise
            except Exception as error:  # noqa: BLE001  it becomes a dead letter
                rejected.append(Rejected(_place(message), message.value() or b"", error))
        return Decoded(values, decoded, self._times(decoded, values), rejected)

    def _times(self, messages: Sequence[Any], values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
        """Creation times in microseconds; None if a message has none, as those of very old brokers."""
        times = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
        unknown = times < 0
        times *= 1000
        if self._created is not None:
            for index, value in enumerate(values):
                at = getattr(value, self._created)
                if at is not None:
                    times[index] = (at.replace(tzinfo=at.tzinfo or datetime.UTC) - EPOCH) // MICROSECOND
                    unknown[index] = False
        return None if unknown.any() else times


def _place(message: Any) -> dict[str, Any]:
    return {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}


def hints_of(record: type) -> list[tuple[type, Hints]]:
    """The types of the fields of a dataclass and of those in it, with the outermost first."""
    found: list[tuple[type, Hints]] = []
    pending: list[Any] = [record]
    while pending:
        kind = pending.pop(0)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and all(kind is not known for known, _ in found):
            hints = typing.get_type_hints(kind)
            found.append((kind, hints))
            pending.extend(hints.values())
        pending.extend(typing.get_args(kind))
    return found


def _resolve(kind: type, hints: Hints) -> None:
    """Restore what a class loses that is pickled by value: the types whose names mean nothing here, and which fields have no
    default. dataclasses marks those by an object, of which pickling makes another; they then seem to have it as a default."""
    try:
        typing.get_type_hints(kind)
    except NameError:
        kind.__annotations__ = dict(hints)
    for each in dataclasses.fields(kind):
        for place in ("default", "default_factory"):
            if isinstance(getattr(each, place), type(dataclasses.MISSING)):
                setattr(each, place, dataclasses.MISSING)


def _without(record: type, types: Hints, meta: Mapping[str, str]) -> type:
    """The record's class without the fields that come from the message; its instances have nothing but their fields."""
    fields = []
    for each in dataclasses.fields(record):
        if each.name not in meta:
            options = {"default": each.default, "default_factory": each.default_factory}
            given: dict[str, Any] = {name: value for name, value in options.items() if value is not dataclasses.MISSING}
            fields.append((each.name, types[each.name], dataclasses.field(kw_only=True, **given)))
    return dataclasses.make_dataclass(record.__name__, fields)
