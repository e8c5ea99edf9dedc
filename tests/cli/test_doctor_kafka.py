"""``springtide doctor --kafka`` says what is wrong with a connection, and how to correct it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from servers.kafka import PASSWORD, STRANGER, USER, Broker
from springtide.bench.keeper import free_ports
from springtide.cli import doctor_kafka
from springtide.cli.main import cli

PLAIN = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.password=env:KAFKA_PASSWORD")


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_kafka, "ANSWER_S", 3.0)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)


def doctor(servers: str, *config: str, topic: str | None = None) -> Result:
    named = [] if topic is None else ["--topic", topic]
    settings = [word for setting in config for word in ("--config", setting)]
    done = CliRunner().invoke(cli, ["doctor", "--json", "--kafka", servers, *named, *settings])
    assert PASSWORD not in done.output
    return done


def last(done: Result) -> tuple[str, bool, str]:
    finding = json.loads(done.stdout)[-1]
    assert done.exit_code == (0 if finding["ok"] else 1)
    return finding["what"], finding["ok"], f"{finding['found']}; {finding['advice']}"


def test_a_sound_connection(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"a", b"b"])
    assert last(doctor(kafka.servers, topic=topic)) == ("topic", True, f"{topic}: 2 partitions, at most 2 records; None")
    assert last(doctor(kafka.sasl_servers, *PLAIN, f"sasl.username={USER}", topic=f"^{topic}"))[:2] == ("topic", True)
    assert last(doctor(kafka.ssl_servers, "security.protocol=SSL", f"ssl.ca.location={kafka.certificate}"))[1]


def test_what_is_wrong(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    topic, secret = kafka.topic(), kafka.topic()
    stranger = (*PLAIN, f"sasl.username={STRANGER}")
    found = {
        "port": last(doctor(f"127.0.0.1:{port}")),
        "name": last(doctor("no-such-host.invalid:9092")),
        "tls": last(doctor(kafka.servers, "security.protocol=SSL")),
        "authority": last(doctor(kafka.ssl_servers, "security.protocol=SSL")),
        "no tls": last(doctor(kafka.ssl_servers)),
        "topic": last(doctor(kafka.servers, topic=topic + "x")),
        "describe": last(doctor(kafka.sasl_servers, *stranger, topic=secret)),
    }
    kafka.allow(STRANGER, topic, "DESCRIBE")
    found["read"] = last(doctor(kafka.sasl_servers, *stranger, topic=topic))
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong")
    found["password"] = last(doctor(kafka.sasl_servers, *PLAIN, f"sasl.username={USER}"))
    assert not any(ok for _, ok, _ in found.values())
    assert {name: what for name, (what, _, _) in found.items()} == {
        "port": "server", "name": "server", "tls": "TLS", "authority": "TLS", "no tls": "connection", "topic": "topic",
        "describe": "authorisation", "read": "authorisation", "password": "login",
    }  # fmt: skip
    for name, words in {
        "port": "Connection refused", "name": "cannot be resolved",
        "authority": "ssl.ca.location", "no tls": "security.protocol",
        "topic": topic, "describe": "allow DESCRIBE and READ", "read": "allow READ", "password": "sasl.password",
    }.items():  # fmt: skip
        assert words in found[name][2], name


def test_wrong_use() -> None:
    for words, message in {
        ("--kafka", "kafka"): "host:port", ("--topic", "t"): "give it too",
        ("--kafka", "k:1", "--config", f"sasl.password={PASSWORD}"): "sasl.password=env:VARIABLE",
        ("--kafka", "k:1", "--config", "sasl.pass=x"): "sasl.pass",
    }.items():  # fmt: skip
        done = CliRunner().invoke(cli, ["doctor", *words])
        assert done.exit_code == 2 and message in done.output and PASSWORD not in done.output
