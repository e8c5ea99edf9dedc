"""What a record takes from its message beside the value: key, headers, topic, partition, offset and timestamp."""

from __future__ import annotations

import datetime
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from springtide.errors import OptionError, nearest

Take = Callable[[Any], Any]


def _key(message: Any) -> Any:
    return message.key()


def _text_key(message: Any) -> Any:
    key = message.key()
    return None if key is None else key.decode()


def _headers(message: Any) -> dict[str, bytes]:
    return {name: value or b"" for name, value in message.headers() or ()}


def _text_headers(message: Any) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in message.headers() or ()}


def _topic(message: Any) -> Any:
    return message.topic()


def _partition(message: Any) -> Any:
    return message.partition()


def _offset(message: Any) -> Any:
    return message.offset()


def _milliseconds(message: Any) -> Any:
    return message.timestamp()[1]


def _datetime(message: Any) -> Any:
    return datetime.datetime.fromtimestamp(message.timestamp()[1] / 1000, datetime.UTC)


TAKEN: Mapping[str, Mapping[Any, Take]] = {
    "key": {bytes: _key, str: _text_key},
    "headers": {dict[str, bytes]: _headers, dict[str, str]: _text_headers},
    "topic": {str: _topic},
    "partition": {int: _partition},
    "offset": {int: _offset},
    "timestamp": {datetime.datetime: _datetime, int: _milliseconds},
}
"""For each part of a message the types that a field may have; the first is that of records of raw bytes or text."""

DEFAULTS: Mapping[str, Any] = {what: next(iter(kinds)) for what, kinds in TAKEN.items()} | {"key": bytes | None}


def takers(meta: Mapping[str, str], hints: Mapping[str, Any]) -> dict[str, Take]:
    """For each field what takes its value from a message."""
    made = {}
    for name, what in meta.items():
        kind, nullable = _without_none(hints[name])
        take = TAKEN[what][kind]
        made[name] = take if nullable or what != "key" else _present(name, take)
    return made


def checked(meta: object, hints: Mapping[str, Any]) -> dict[str, str]:
    """The user's ``meta=``; OptionError if it does not fit the fields."""
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        raise OptionError(
            f"kafka: meta={meta!r} is not allowed; give fields and what they hold, for example {{'at': 'offset'}}"
        )
    for name, what in meta.items():
        if what not in TAKEN:
            raise OptionError(f"kafka: meta={{{name!r}: {what!r}}}; {nearest(str(what), TAKEN)}")
        if name not in hints:
            raise OptionError(f"kafka: meta= names the field {name!r}, which the record has not; {nearest(str(name), hints)}")
        if _without_none(hints[name])[0] not in TAKEN[what]:
            allowed = " or ".join(_shown(kind) for kind in TAKEN[what])
            raise OptionError(
                f"kafka: the field {name!r} holds the {what} and is declared {_shown(hints[name])}; declare it {allowed}"
            )
    return dict(meta)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(hint) if each is not type(None)]
        return (rest[0] if len(rest) == 1 else hint), True
    return hint, False


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _present(name: str, take: Take) -> Take:
    def taken(message: Any) -> Any:
        value = take(message)
        if value is None:
            raise ValueError(f"the record has no key, and the field {name!r} may not be None")
        return value

    return taken
