"""Springtide against others on a topic of Kafka: JSON → Python map → filter, alone and with windows that count by key.

``springtide`` reads with its own source; ``spark`` is a query written by hand on Spark's own connector; ``client`` is a loop
around a bare confluent-kafka consumer in one thread, the bound of what any engine on this client can do on a core; ``bytewax``
runs in two processes. All drain the same topic, and every output is compared with the right one: a wrong one has no rate. The
order turns from round to round, after a round that does not count. A drain lasts from an engine's first fetch or batch to its
last commit.

Latency is that from a record's creation to the commit of its batch (for ``client``: to its output), at a fixed rate.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from springtide.bench import kafka_jobs as jobs
from springtide.bench.kafka_broker import missing, temporary_broker
from springtide.bench.kafka_side import CORES, Result, Task
from springtide.bench.keeper import free_ports
from springtide.bench.statistics import quartiles, turned
from springtide.errors import SetupError

JOBS = ("stateless", "window")
ENGINES = ("springtide", "spark", "client", "bytewax")
RATE = 2_000
"""Records/s while latency is measured."""
BYTEWAX_S = 120.0
"""Limits a run of Bytewax."""
JARS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": "4.0.0",
    "org.apache.kafka:kafka-clients": "3.9.2",
    "org.apache.commons:commons-pool2": "2.13.1",
}
"""Spark's connector; it has no release for Spark 4.3, and that for 4.2 works with it."""
_MAVEN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"

Row = dict[str, Any]


def measure(
    rounds: int, records: int, seconds: float = 20.0, servers: str | None = None, cache: Path | None = None,
    bytewax: str | None = None, progress: TextIO = sys.stderr,
) -> dict[str, Any]:  # fmt: skip
    """A row for each engine and job. ``seconds``: for which the latency of each is measured. ``servers``: None starts a broker.
    ``cache``: the folder with the jars of Spark's connector. ``bytewax``: an interpreter that has bytewax and msgspec."""
    with contextlib.ExitStack() as ends:
        servers = servers or ends.enter_context(_broker())
        topic = f"springtide-bench-{time.time_ns()}"
        _fill(servers, topic, records)
        notes, engines = {}, dict[str, _Engine]()
        for name in ENGINES:
            try:
                engines[name] = _Bytewax(bytewax) if name == "bytewax" else ends.enter_context(_child(name, cache))
            except SetupError as error:
                notes[name] = str(error)
        drained: dict[tuple[str, str], list[Row]] = {}
        for number in range(rounds + 1):
            for job in JOBS:
                for name in turned(tuple(engines), number):
                    answer = engines[name].run(Task(job, servers, topic, records=records))
                    print(f"{job}, {name}: {json.dumps(answer)}", file=progress, flush=True)
                    if number:
                        drained.setdefault((name, job), []).append(answer)
            print(f"round {number} of {rounds}{' (warm-up)' if not number else ''}", file=progress, flush=True)
        latencies = {
            (name, job): _latency(engines[name], job, servers, seconds) for name in engines if name != "bytewax" for job in JOBS
        }
    rows = [
        _row(name, job, records, drained.get((name, job), []), latencies.get((name, job)), notes)
        for job in JOBS
        for name in ENGINES
    ]
    return {"records": records, "partitions": jobs.PARTITIONS, "cores": CORES, "rounds": rounds, "rate_s": RATE, "rows": rows}


def _row(
    engine: str, job: str, records: int, drains: list[Row], latency: list[float | None] | None, notes: Mapping[str, str]
) -> Row:  # fmt: skip
    p50, p95, p99 = latency or (None, None, None)
    row: Row = {"engine": engine, "job": job, "rate_rows_s": None, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
    wrong = [drain["wrong"] for drain in drains if "wrong" in drain]
    if wrong or not drains:
        return {**row, "note": f"wrong: {wrong[0]}" if wrong else notes.get(engine, "")}
    rates = [(records + jobs.PARTITIONS) / drain["seconds"] for drain in drains]
    row |= {"rate_rows_s": round(statistics.median(rates)), "rate_iqr": [round(rate) for rate in quartiles(rates)]}
    busy = [drain["busy"] for drain in drains if drain.get("busy") is not None]
    return row | ({"busy": round(statistics.median(busy), 3)} if busy else {})


@contextlib.contextmanager
def _broker() -> Iterator[str]:
    reason = missing()
    if reason is not None:
        raise SetupError(f"{reason}; or name a broker with --servers")
    with temporary_broker() as broker:
        yield broker.servers


def _fill(servers: str, topic: str, records: int) -> None:
    """A new topic with records, of which the last ends all windows."""
    producer = _created(servers, topic)
    for number in range(records):
        producer.produce(topic, jobs.value(number), partition=number % jobs.PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    for number in range(jobs.PARTITIONS):
        producer.produce(topic, jobs.closing(records + number), partition=number)
    if producer.flush(60):
        raise RuntimeError(f"the broker at {servers} did not take all records")


def _created(servers: str, topic: str) -> Any:
    """A producer, and the new topic that it writes to."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, jobs.PARTITIONS, 1)])[topic].result(30)
    return Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})


def _latency(engine: _Engine, job: str, servers: str, seconds: float) -> list[float | None]:
    """The quantiles for records that arrive at a fixed rate."""
    topic = f"springtide-bench-{time.time_ns()}"
    producer, over = _created(servers, topic), threading.Event()

    def produce() -> None:
        begin, number = time.monotonic(), 0
        while not over.wait(0.005):
            while number < (time.monotonic() - begin) * RATE:
                producer.produce(topic, jobs.value(number), partition=number % jobs.PARTITIONS)
                number += 1
            producer.poll(0)
        producer.flush(30)

    writing = threading.Thread(target=produce)
    writing.start()
    try:
        answer: list[float | None] = engine.run(Task(job, servers, topic, seconds=seconds))["latency_ms"]
        return answer
    finally:
        over.set()
        writing.join()


class _Engine:
    """A process that runs tasks."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self._name = process, name

    def run(self, task: Task) -> Row:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(vars(task)), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self._name} ended with exit code {self._process.wait()}")
        row: Row = json.loads(answer)
        return row


@contextlib.contextmanager
def _child(name: str, cache: Path | None) -> Iterator[_Engine]:
    jars = [",".join(map(str, connector(cache)))] if name == "spark" else []
    command = [sys.executable, "-m", "springtide.bench.kafka_side", name, *(jars or [""])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            yield _Engine(process, name)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def connector(cache: Path | None) -> list[Path]:
    """The jars of Spark's connector, which Maven fetches into a folder that keeps them."""
    folder = cache or Path.home() / ".cache" / "springtide" / "spark-kafka"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for artifact, version in JARS.items():
        file = folder / f"{artifact.partition(':')[2]}-{version}.jar"
        if not file.exists():
            _fetch(f"{artifact}:{version}", folder)
        found.append(file)
    return found


def _fetch(artifact: str, folder: Path) -> None:
    command = ["mvn", "-B", "-q", "-ntp", _MAVEN, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)  # noqa: S603
    except FileNotFoundError:
        raise SetupError(f"{artifact} is not in {folder}, and there is no Maven to fetch it") from None
    if done.returncode:
        raise SetupError(f"Maven could not fetch {artifact} into {folder}: {(done.stdout + done.stderr).strip()[:300]}")


class _Bytewax(_Engine):
    """Two processes of Bytewax for each task; Bytewax cannot be asked for another."""

    def __init__(self, python: str | None) -> None:
        if python is None:
            raise SetupError("skipped: --bytewax names no interpreter that has bytewax 0.21.1, confluent-kafka and msgspec")
        if shutil.which(python) is None:
            raise SetupError(f"skipped: there is no interpreter {python}")
        tried = subprocess.run([python, "-c", "import bytewax.operators, msgspec"], capture_output=True, text=True)  # noqa: S603
        if tried.returncode:
            raise SetupError(
                f"skipped: {python} cannot import bytewax and msgspec: {tried.stderr.strip().rpartition(chr(10))[2]}"
            )
        self._python = python

    def run(self, task: Task) -> Row:
        parts, windows = self._parts(task), Counter[tuple[str, int]]()
        for key, window, count in (each for part in parts for each in part["windows"]):
            windows[key, window] += count
        seconds = max(part["last"] for part in parts) - min(part["first"] for part in parts)
        result = Result(seconds, sum(part["rows"] for part in parts), windows if task.job == "window" else None)
        return result.to_json(task.records)

    def _parts(self, task: Task) -> list[Row]:
        """What the processes print in their last lines, behind Bytewax's own words on connections."""
        addresses = ";".join(f"127.0.0.1:{port}" for port in free_ports(CORES))
        script = str(Path(__file__).with_name("kafka_bytewax.py"))
        processes = [
            subprocess.Popen(  # noqa: S603
                [self._python, "-P", script, str(number), addresses, json.dumps(vars(task))], stdout=subprocess.PIPE, text=True
            )
            for number in range(CORES)
        ]
        try:
            return [json.loads(process.communicate(timeout=BYTEWAX_S)[0].splitlines()[-1]) for process in processes]
        finally:
            for process in processes:
                process.kill()
