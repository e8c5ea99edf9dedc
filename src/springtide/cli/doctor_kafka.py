"""``springtide doctor --kafka``: what is wrong with a connection to Kafka, from the name of the server to the topic."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

from springtide.api import secret
from springtide.api.kafka import kafka
from springtide.cli.doctor import Finding
from springtide.connectors.kafka.clients import SECRET_WORDS, Faults, Setting
from springtide.connectors.kafka.cluster import Cluster
from springtide.connectors.kafka.declared import KafkaSource
from springtide.errors import OptionError, RunError, nearest
from springtide.model.source import SourceUnavailable

CONNECT_S = 5.0
"""Limits the wait for a port."""
ANSWER_S = 10.0
"""Limits the wait for a broker's answer."""
NO_TOPIC = "^springtide-doctor$"

SECRETS = {"env:": secret.env, "file:": secret.file}
"""How a setting on the command line names the place of a secret."""


def examine_kafka(servers: str, topic: str | None, settings: Mapping[str, str]) -> list[Finding]:
    """Check a connection, in the order in which to correct it; what comes behind a failure is not checked."""
    source = kafka(servers, topic or NO_TOPIC, value=bytes, config=_config(settings)).declared
    assert isinstance(source, KafkaSource)
    findings: list[Finding] = []
    for finding in _examined(source, topic):
        findings.append(finding)
        if not finding.ok:
            break
    return findings


def _config(settings: Mapping[str, str]) -> dict[str, Setting]:
    for name, value in settings.items():
        if any(word in name for word in SECRET_WORDS) and not value.startswith(tuple(SECRETS)):
            raise OptionError(
                f"--config {name}=…: a secret in arguments is seen by everybody on this machine; give {name}=env:VARIABLE or"
                f" {name}=file:PATH"
            )
    return {name: _setting(value) for name, value in settings.items()}


def _setting(value: str) -> Setting:
    for prefix, place in SECRETS.items():
        if value.startswith(prefix):
            return place(value.removeprefix(prefix))
    return value


def _examined(source: KafkaSource, topic: str | None) -> Iterator[Finding]:
    yield _reached("server", [_split(server) for server in source.connection.servers.split(",")], _ONE)
    cluster = source.cluster()
    try:
        try:
            found = cluster.listed(ANSWER_S)
        except SourceUnavailable as error:
            yield _unanswered(cluster.faults, error)
            return
        protocol = source.connection.settings.get("security.protocol", "plaintext")
        yield Finding("connection", f"{protocol}, {len(found.brokers)} brokers answer", ok=True)
        brokers = [(broker.host, broker.port) for broker in found.brokers.values()]
        yield _reached("advertised", brokers, "correct advertised.listeners of the brokers: clients go where these point", all)
        if topic is not None:
            yield from _topic(cluster, topic, [name for name in found.topics if not name.startswith("__")])
    finally:
        cluster.close()


_ONE = "correct the name or the port in --kafka, start the broker, or open the port in the firewall"


def _split(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def _reached(what: str, places: list[tuple[str, int]], advice: str, enough: object = any) -> Finding:
    faults = {f"{host}:{port}": _fault(host, port) for host, port in places}
    failed = {place: fault for place, fault in faults.items() if fault is not None}
    ok = not failed if enough is all else len(failed) < len(faults)
    text = "; ".join(f"{place} {fault}" for place, fault in failed.items()) or f"{', '.join(faults)} can be reached"
    return Finding(what, text, ok, advice if failed else None)


def _fault(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), CONNECT_S):
            return None
    except socket.gaierror as error:
        return f"has a name that cannot be resolved ({error.strerror})"
    except TimeoutError:
        return "does not answer"
    except (OSError, OverflowError) as error:
        return f"cannot be reached ({getattr(error, 'strerror', None) or error})"


def _unanswered(faults: Faults, error: Exception) -> Finding:
    text = str(faults) if faults.last is not None else str(error)
    if faults.last is not None and "AUTHENTICATION" in faults.last.name():
        advice = "correct sasl.mechanism, sasl.username and sasl.password in --config"
        return Finding("login", text, ok=False, advice=advice)
    if "SSL" in text or "certificate" in text:
        advice = "correct security.protocol, and ssl.ca.location: the authority that signed the broker's certificate"
        return Finding("TLS", text, ok=False, advice=advice)
    advice = "correct security.protocol in --config: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as the listener wants it"
    return Finding("connection", text, ok=False, advice=advice)


def _topic(cluster: Cluster, topic: str, known: Iterable[str]) -> Iterator[Finding]:
    try:
        names = cluster.names() if topic.startswith("^") else (topic,)
        described = cluster.described(names)
        if not described:
            yield Finding("topic", f"there is no topic {topic!r}", ok=False, advice=f"{nearest(topic, known)}; or create it")
            return
        forbidden = cluster.forbidden(described)
        if forbidden:
            advice = f"allow READ on {forbidden[0]!r} for this user"
            yield Finding("authorisation", f"{', '.join(forbidden)} may not be read", ok=False, advice=advice)
            return
        found = cluster.topics().values()
    except RunError as error:
        yield Finding("authorisation", str(error), ok=False, advice="allow DESCRIBE and READ on the topic for this user")
        return
    except SourceUnavailable as error:
        yield Finding("topic", str(error), ok=False, advice="look whether all partitions have a leader")
        return
    parts = sum(len(each.highs) for each in found)
    records = sum(each.highs[n] - each.lows[n] for each in found for n in each.highs)
    shown = ", ".join(sorted(each.name for each in found))
    yield Finding("topic", f"{shown}: {parts} partitions, at most {records:,} records", ok=True)
