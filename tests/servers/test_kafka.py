"""The broker of the tests does what its docstring promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import servers.kafka
from servers.kafka import PASSWORD, USER, Broker
from springtide.bench import kafka_broker
from springtide.bench.keeper import Kept


def test_records_come_back(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"a", b"b"], partition=0, key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000)
    kafka.produce(topic, [b"c"], partition=1)
    first, *others = kafka.messages(topic)
    assert (first.value(), first.key(), first.headers(), first.timestamp()[1]) == (b"a", b"k", [("h", b"1")], 1_700_000_000_000)
    assert [other.value() for other in others] == [b"b", b"c"]
    assert kafka.offsets(topic) == {0: (0, 2), 1: (0, 1)}


def test_transactions_leave_markers_and_aborted_ones_no_records(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [b"no"], commit=False)
    kafka.transaction(topic, [b"yes"])
    assert [message.value() for message in kafka.messages(topic)] == [b"yes"]
    assert len(kafka.messages(topic, "read_uncommitted")) == 2
    assert kafka.offsets(topic) == {0: (0, 4)}


def test_records_and_topics_are_deleted_and_topics_grow(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 5)
    kafka.delete_records(topic, {0: 3})
    kafka.grow(topic, 3)
    assert kafka.offsets(topic) == {0: (3, 5), 1: (0, 0), 2: (0, 0)}
    kafka.delete_topic(topic)
    assert kafka.offsets(kafka.topic(topic)) == {0: (0, 0)}


def test_a_killed_broker_starts_again_with_its_data(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 5)
    kafka.kill()
    assert not kafka.running()
    kafka.start()
    assert kafka.offsets(topic) == {0: (0, 5)}


def test_a_listener_wants_a_password(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"])
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    with kafka.consumer(**{**plain, "bootstrap.servers": kafka.sasl_servers, "sasl.password": PASSWORD}) as consumer:
        assert topic in consumer.list_topics(timeout=10).topics


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from springtide.bench.keeper import Kept\n"
        f"print(Kept(['sleep', '1000'], Path({str(tmp_path / 'log')!r}), os.environ).pid, flush=True); time.sleep(1000)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environ)
    assert starter.stdout is not None
    server = int(starter.stdout.readline())
    assert psutil.pid_exists(server)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    until = time.monotonic() + 10
    while psutil.pid_exists(server) and time.monotonic() < until:
        time.sleep(0.01)
    assert not psutil.pid_exists(server)


def test_a_kept_server_is_killed(tmp_path: Path) -> None:
    process = Kept(["sleep", "1000"], tmp_path / "log", os.environ)
    assert process.running()
    process.kill()
    assert not process.running()


def test_without_a_broker_tests_skip_but_ci_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kafka_broker, "JARS", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        servers.kafka.require()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="make setup"):
        servers.kafka.require()
