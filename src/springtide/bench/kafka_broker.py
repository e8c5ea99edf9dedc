"""A Kafka broker for benchmarks and tests: KRaft mode on the loopback, in a JVM of its own.

``make setup`` fetches the broker with Maven into the virtual environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from springtide.bench.keeper import Kept, free_ports
from springtide.errors import SetupError
from springtide.spark.driver.java import find_java

JARS = Path(sys.prefix) / "kafka"
START_S = 90.0
"""Limits the wait for a broker; a machine that is busy with other tests took 20 s."""


def missing() -> str | None:
    """Why there can be no broker here; None if there can."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "confluent-kafka is not installed: pip install springtide[kafka]"
    try:
        import psutil  # noqa: F401
    except ImportError:
        return "psutil is not installed, which watches the broker: pip install springtide[bench]"
    try:
        find_java()
    except SetupError as error:
        return f"no Java for Kafka's broker: {error}"
    return None if (JARS / ".fetched").exists() else f"no Kafka in {JARS}: `make setup` fetches it, with Maven"


@contextlib.contextmanager
def temporary_broker(within_s: float = START_S) -> Iterator[BrokerProcess]:
    """A broker whose data is in a temporary folder. Raises SetupError if there can be none within some seconds."""
    reason = missing()
    if reason is not None:
        raise SetupError(reason)
    folder = Path(tempfile.mkdtemp(prefix="springtide-kafka-"))
    broker = BrokerProcess(folder)
    try:
        try:
            broker.format()
            broker.start(within_s)
        except RuntimeError as error:
            raise SetupError(str(error)) from None
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


class BrokerProcess:
    """One Kafka broker with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self._java = find_java().home / "bin" / "java"
        self._port, self._controller_port = free_ports(2)
        self._data, self._settings, self.log = folder / "data", folder / "server.properties", folder / "broker.log"
        self._kept: Kept | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    # the process

    def format(self) -> None:
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        cluster = uuid.uuid4().bytes.hex()[:22]
        command = [*self._command("kafka.tools.StorageTool"), "format", "-t", cluster, "-c", str(self._settings)]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"Kafka's folder cannot be formatted: {done.stdout}{done.stderr}")

    def start(self, within_s: float = START_S) -> None:
        """Start the broker, unless it runs, and wait until it answers."""
        if not self.running():
            self.kill()
            self._kept = Kept([*self._command("kafka.Kafka"), str(self._settings)], self.log, self._environ)
        until = time.monotonic() + within_s
        while not self._answers():
            if not self.running() or time.monotonic() > until:
                raise RuntimeError(f"Kafka does not start; the end of its log:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def running(self) -> bool:
        return self._kept is not None and self._kept.running()

    def kill(self) -> None:
        """End the broker with SIGKILL; ``start`` starts it again with the same data and port."""
        if self._kept is not None:
            self._kept.kill()
        self._kept = None

    def pause(self) -> None:
        """Stop the process as it is, so that connections stay and nothing answers."""
        assert self._kept is not None
        self._kept.send(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._kept is not None
        self._kept.send(signal.SIGCONT)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return bool(AdminClient({"bootstrap.servers": self.servers, "log_level": 0}).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    @property
    def _environ(self) -> dict[str, str]:
        """Without the options of the tests' own JVMs, whose archives of classes a broker cannot use."""
        return {name: value for name, value in os.environ.items() if name not in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")}

    def _command(self, main: str) -> list[str]:
        logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        memory = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # starts in 4.0 s instead of 5.5
        return [str(self._java), *memory, logs, "-cp", f"{JARS}/*", main]

    def _listeners(self) -> dict[str, tuple[str, str]]:
        """By name, the protocol and the address of each listener."""
        return {"PLAINTEXT": ("PLAINTEXT", self.servers)}

    def _properties(self) -> dict[str, object]:
        controller = f"127.0.0.1:{self._controller_port}"
        listeners = self._listeners()
        protocols = {"CONTROLLER": "PLAINTEXT", **{name: protocol for name, (protocol, _) in listeners.items()}}
        addresses = ",".join(f"{name}://{address}" for name, (_, address) in listeners.items())
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{addresses},CONTROLLER://{controller}",
            "advertised.listeners": addresses,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "log.dirs": self._data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": 2000,  # a killed broker may come back after this time; the default is 9 s
            "broker.heartbeat.interval.ms": 500,
            "log.retention.ms": -1,  # a test that wants retention says so in the topic's settings
            "log.cleaner.backoff.ms": 200,  # compaction and retention come within a test
            "log.retention.check.interval.ms": 500,
            "log.segment.delete.delay.ms": 500,
            "log.initial.task.delay.ms": 500,
        }
