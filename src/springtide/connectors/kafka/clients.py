"""Makes librdkafka's clients from a declaration, and turns their errors into Springtide's.

This is the only place where secrets are resolved: they go into a client's configuration and nowhere else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.errors import OptionError, SetupError
from springtide.model.secret import Secret
from springtide.model.source import SourceUnavailable
from springtide.once import Once

Setting = str | int | float | bool | Secret

OWN = {
    "bootstrap.servers": "the first argument, servers",
    "metadata.broker.list": "the first argument, servers",
    "group.id": "group=",
    "isolation.level": "isolation=",
    "auto.offset.reset": "start= and on_data_loss=",
    "enable.auto.commit": "group=; Springtide commits offsets after each batch",
    "enable.auto.offset.store": "group=; Springtide commits offsets after each batch",
    "enable.partition.eof": "until=",
    "group.instance.id": "nothing, as the source joins no group",
}
"""The settings of librdkafka that the source decides itself, and what to use instead."""

SECRET_WORDS = (
    "password",
    "passphrase",
    "private.key.pem",
    "secret",
    "ssl.key.pem",
    "ssl.keystore.pem",
    "user.info",
    "sasl.oauthbearer.config",
    "sasl.jaas.config",
)
"""A setting whose name has one of these must be a Secret: a literal would be stored in the run's folder and sent around."""

REGISTRY = "schema.registry."
"""The prefix of the settings that are for the schema registry."""

PATIENT_S = 10.0
"""Limits the wait for an answer to a driver's question; the run tries again."""

TUNED: Mapping[str, Setting] = {
    # With librdkafka's own 500 and 1000 ms a task waits 370 ms for its first record and stalls whenever its queue was full:
    # 213,000 records/s instead of 798,000 from a broker on the loopback
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,
    # a task reads a range and stops: what is fetched beyond it is thrown away
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32_768,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}

_log = logging.getLogger(__name__)


def needed(module: str = "confluent_kafka") -> Any:
    """Import a module of the extra ``springtide[kafka]``."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SetupError(f"Kafka needs {error.name or module}: pip install 'springtide[kafka]'") from None


@dataclass(frozen=True)
class Connection:
    """The brokers and how to reach them; it can be pickled and shown."""

    servers: str
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def registry_settings(self) -> dict[str, str]:
        """The settings of the schema registry, resolved."""
        chosen = {name.removeprefix(REGISTRY): value for name, value in self.settings.items() if name.startswith(REGISTRY)}
        return {name: value.resolve() if isinstance(value, Secret) else str(value) for name, value in chosen.items()}

    def __or__(self, more: Mapping[str, Setting]) -> Connection:
        """The same with other defaults: own settings win."""
        return Connection(self.servers, {**more, **self.settings})

    def client(self, make: Callable[[dict[str, Any]], Any], own: Mapping[str, Any], faults: Faults | None = None) -> Any:
        """A client of librdkafka, whose faults go to ``faults``."""
        chosen = {name: value for name, value in self.settings.items() if not name.startswith(REGISTRY)}
        _check_files(chosen)
        secrets = {name: value.resolve() for name, value in chosen.items() if isinstance(value, Secret)}
        # by default silent: faults come as errors, and librdkafka repeats itself every second that a broker is away
        config = {"log_level": 0, "client.id": "springtide", **chosen, **secrets, **own, "bootstrap.servers": self.servers}
        if faults is not None:
            config["error_cb"] = faults
        try:
            return make(config)
        except (needed().KafkaException, ValueError, TypeError) as error:
            raise OptionError(f"kafka: config= is not allowed: {without(str(reason(error)), secrets.values())}") from None


def _check_files(settings: Mapping[str, Setting]) -> None:
    """librdkafka says of a file that it cannot open only the number of an error."""
    for name, value in settings.items():
        if name.endswith(".location") and isinstance(value, str) and value != "probe" and not os.access(value, os.R_OK):
            fault = "cannot be read" if os.path.exists(value) else "does not exist"
            raise OptionError(f"kafka: config= names the file {value} as {name}, which {fault} on this machine")


def without(text: str, secrets: Any) -> str:
    """A message without the secrets that it may repeat."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


WRONG_LISTENER = ("in state SSL_HANDSHAKE", "incorrect security.protocol configuration")
"""What librdkafka guesses if a broker hangs up at the first word."""


class Faults:
    """The last fault that librdkafka reported for a client, for messages: most calls only time out."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, error: Any) -> None:
        name = error.name()
        if self.last is None or name != "_ALL_BROKERS_DOWN":  # it comes after the reason
            self.last = error

    def hopeless(self) -> bool:
        """Whether waiting will hardly help: wrong password, certificate or name."""
        return self.last is not None and (
            self.last.name() in ("_AUTHENTICATION", "_SSL", "_RESOLVE", "SASL_AUTHENTICATION_FAILED")
            or any(hint in self.last.str() for hint in WRONG_LISTENER)
        )

    def __str__(self) -> str:
        if self.last is None:
            return "no answer"
        if self.last.name() == "_ALL_BROKERS_DOWN":  # librdkafka has no other error for it
            return "the brokers close each connection at once; they may want TLS or a login: security.protocol in config="
        return str(self.last.str())


def reason(error: BaseException) -> str:
    """The text of librdkafka's error."""
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(first)


def unavailable(servers: str, error: BaseException, faults: Faults) -> SourceUnavailable:
    why = f"{reason(error)}; {faults}" if faults.last is not None else reason(error)
    return SourceUnavailable(f"Kafka at {servers} cannot be reached: {why}")


class Waiting:
    """Says once that the source waits, and once that it goes on."""

    def __init__(self, what: str) -> None:
        self._what, self._once = what, Once()

    def begins(self, why: object) -> None:
        if self._once.begins():
            _log.warning("%s: waiting: %s; nothing is lost, reading goes on when Kafka answers", self._what, why)

    def ends(self) -> None:
        if self._once:
            _log.warning("%s: reading goes on", self._what)
            self._once.end()
