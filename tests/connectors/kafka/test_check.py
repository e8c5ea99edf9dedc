"""A connection that is declared wrongly says so before anything starts, and no message has a secret in it."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from connectors.kafka.messages import Job, source_of
from servers.kafka import PASSWORD, STRANGER, USER, Broker
from springtide.bench.keeper import free_ports
from springtide.connectors.kafka import cluster
from springtide.connectors.kafka.declared import KafkaSource
from springtide.errors import OptionError, RunError, SpringtideError
from springtide.model.source import SourceUnavailable

PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENT_S", 3.0)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)


def secured(kafka: Broker, topic: str, **config: Any) -> KafkaSource:
    settings = {**PLAIN, "sasl.password": st.secret.env("KAFKA_PASSWORD"), **config}
    return source_of(str, servers=kafka.sasl_servers, topic=topic, config=settings)


def test_a_password_from_the_environment_or_a_file(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    (tmp_path / "password").write_text(PASSWORD + "\n")
    for secret in (st.secret.env("KAFKA_PASSWORD"), st.secret.file(tmp_path / "password")):
        source = secured(kafka, topic, **{"sasl.password": secret})
        source.check()
        run = Job(source)
        run.batch()
        run.close()
        assert [record.value for record in run.values] == ["a"]
        assert PASSWORD not in repr(source) + source.describe()
        assert PASSWORD.encode() not in pickle.dumps(source.connection)


def test_a_wrong_password(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    source = secured(kafka, kafka.topic())
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong-horse")
    with pytest.raises(OptionError, match=r"[Aa]uthentication failed.*correct servers or config=") as error:
        source.check()
    assert "wrong-horse" not in str(error.value)


def test_a_password_that_is_not_there(kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(OptionError, match="the environment variable KAFKA_PASSWORD is not set"):
        secured(kafka, "t").check()
    with pytest.raises(OptionError, match=r"the file .*none cannot be read: No such file"):
        secured(kafka, "t", **{"sasl.password": st.secret.file(tmp_path / "none")}).check()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(OptionError, match=r"the file .*empty is empty"):
        secured(kafka, "t", **{"sasl.password": st.secret.file(tmp_path / "empty")}).check()


def test_a_wrong_port_and_a_wrong_name() -> None:
    (port,) = free_ports(1)
    with pytest.raises(SourceUnavailable, match=rf"Kafka at 127\.0\.0\.1:{port} cannot be reached: .*Connection refused"):
        source_of(str, servers=f"127.0.0.1:{port}").check()
    with pytest.raises(OptionError, match=r"Kafka topic orders at no-such-host\.invalid:9092: .*resolve.*correct servers"):
        source_of(str, servers="no-such-host.invalid:9092").check()


def test_tls_and_what_is_no_tls(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.certificate)}
    source = source_of(str, servers=kafka.ssl_servers, topic=topic, config=tls)
    source.check()
    run = Job(source)
    assert run.batch() == 1
    run.close()
    with pytest.raises(OptionError, match=r"(?i)certificate verif.*correct servers or config="):
        source_of(str, servers=kafka.ssl_servers, topic=topic, config={"security.protocol": "SSL"}).check()
    with pytest.raises(OptionError, match=r"(?i)ssl"):
        source_of(str, servers=kafka.servers, topic=topic, config=tls).check()
    with pytest.raises(SourceUnavailable, match=r"close each connection.*security\.protocol"):
        source_of(str, servers=kafka.ssl_servers, topic=topic).check()
    with pytest.raises(OptionError, match=r"(?i)none\.pem"):
        source_of(str, servers=kafka.ssl_servers, topic=topic, config={**tls, "ssl.ca.location": "none.pem"}).check()
    with pytest.raises(SourceUnavailable, match=r"close each connection.*security\.protocol"):
        source_of(str, servers=kafka.sasl_servers, topic=topic).check()


def test_a_user_who_may_not_read(kafka: Broker) -> None:
    topic = kafka.topic()
    source = secured(kafka, topic, **{"sasl.username": STRANGER})
    with pytest.raises(RunError, match=rf"topic '{topic}' may not be described.*allow DESCRIBE and READ on it"):
        source.check()
    kafka.allow(STRANGER, topic, "DESCRIBE")
    with pytest.raises(OptionError, match=rf"topic '{topic}' may not be read.*allow READ"):
        source.check()
    kafka.allow(STRANGER, topic, "READ")
    source.check()


def test_no_such_topic(kafka: Broker) -> None:
    topic = kafka.topic()
    with pytest.raises(OptionError, match=rf"there is no topic '{topic}x' at {kafka.servers}; did you mean '{topic}'|{topic}"):
        source_of(str, servers=kafka.servers, topic=topic + "x").check()
    with pytest.raises(OptionError, match=rf"start= names partition 3 of topic '{topic}', which has \[0\]"):
        source_of(str, servers=kafka.servers, topic=topic, start={topic: {3: 0}}).check()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no port": ({"servers": "kafka"}, "give host:port"),
    "a login": ({"servers": "user:pw@kafka:9092"}, "give host:port"),
    "no topic": ({"topic": []}, "give a name"),
    "a wrong topic": ({"topic": "a b"}, "is no name of a topic"),
    "a wrong pattern": ({"topic": "^("}, "pattern"),
    "a topic twice": ({"topic": ["a", "a"]}, "twice"),
    "a wrong start": ({"start": "begin"}, "earliest"),
    "a start without zone": ({"start": datetime.datetime(2024, 1, 1)}, "time zone"),
    "a start elsewhere": ({"start": {"other": {0: 1}}}, "which is not read"),
    "a negative offset": ({"start": {"orders": {0: -1}}}, "offsets by partition"),
    "a wrong end": ({"until": "end"}, "None or 'now'"),
    "a wrong loss": ({"on_data_loss": "ignore"}, "'stop' or 'go on'"),
    "a wrong isolation": ({"isolation": "none"}, "read_committed"),
    "no group": ({"group": ""}, "give a name"),
    "no records": ({"max_records": 0}, "1 or more"),
    "a setting of ours": ({"config": {"group.id": "g"}}, "use group="),
    "an unknown setting": ({"config": {"sasl.pass": "x"}}, "(?i)sasl.pass"),
    "a wrong value": ({"config": {"fetch.wait.max.ms": "soon"}}, "fetch.wait.max.ms"),
    "a function": ({"config": {"error_cb": print}}, "give text, a number"),
    "a config that is no mapping": ({"config": "x"}, "settings of librdkafka"),
    "an unknown part": ({"meta": {"at": "time"}}, "timestamp"),
    "a meta that is no mapping": ({"meta": "at"}, "meta='at' is not allowed"),
    "meta of the value": ({"meta": {"value": "key"}}, "take another name"),
    "an unknown creation time": ({"created": "at"}, "no field of the record"),
    "a creation time that is none": ({"created": "value"}, "declare the field datetime"),
}


@pytest.mark.parametrize("name", BAD)
def test_options_that_are_refused(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(SpringtideError, match=message):
        source_of(str, **options)


SECRETS = [
    "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config", "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_as_text_are_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(OptionError, match=r"springtide\.secret\.env") as error:
        source_of(str, config={name: PASSWORD})
    assert PASSWORD not in str(error.value)


def test_secrets_that_librdkafka_refuses_are_not_repeated(monkeypatch: pytest.MonkeyPatch, kafka: Broker) -> None:
    source = source_of(
        str, servers=kafka.servers, config={"ssl.key.pem": st.secret.env("KAFKA_PASSWORD"), "security.protocol": "SSL"}
    )
    with pytest.raises(OptionError, match="is not allowed") as error:
        source.check()
    assert PASSWORD not in str(error.value)


def test_true_and_false_as_settings() -> None:
    source_of(str, config={"socket.keepalive.enable": True, "enable.ssl.certificate.verification": False})
