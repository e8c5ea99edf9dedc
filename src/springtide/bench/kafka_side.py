"""A process of ``springtide bench kafka``: an engine drains a topic, or follows one for some seconds, as often as asked.

Springtide and Spark get a session each, in a process of their own, because Spark's connector has to be there when a JVM starts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.bench import kafka_jobs as jobs

CORES = 2
TARGET = "5s"
WARM_SHARE = 1 / 3
"""Records of the first third of a measurement of latency do not count: engines start meanwhile."""
CHUNK = 10_000
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What the parent asks for. ``records``: those of the topic, to drain; else ``seconds`` to follow it."""

    job: str
    servers: str
    topic: str
    records: int | None = None
    seconds: float | None = None


@dataclass
class Result:
    """The time of a drain and its output: the number of records, or records by key and window; or latencies in seconds."""

    seconds: float = 0.0
    rows: int = 0
    windows: Counter[tuple[str, int]] | None = None
    latencies: Sequence[float] = ()
    weights: Sequence[float] = ()
    busy: float | None = None

    def to_json(self, records: int | None) -> dict[str, Any]:
        if records is None:
            return {"latency_ms": _quantiles(self.latencies, self.weights)}
        wrong = self._fault(records)
        return {"wrong": wrong} if wrong else {"seconds": self.seconds, "busy": self.busy}

    def _fault(self, records: int) -> str | None:
        if self.windows is None:
            wanted = jobs.kept(records) + jobs.PARTITIONS
            return None if self.rows == wanted else f"{self.rows:,} records came out, not {wanted:,}"
        windows = jobs.windows(records)
        different = (windows | self.windows) - (windows & self.windows)
        return f"{len(different)} of {len(windows)} windows are wrong, such as {next(iter(different))}" if different else None


def springtide(session: Any, task: Task, folder: Path) -> Result:
    import springtide as st

    source = st.source.kafka(
        task.servers, task.topic, value=jobs.Measured, start="earliest" if task.seconds is None else "latest"
    )  # fmt: skip
    warm = source.map(jobs.convert, name="convert").filter(jobs.is_warm, name="warm")
    if task.job == "stateless":
        topology = warm.to(st.sink.discard(), name="out").named("stateless")
    else:
        counted = warm.watermark("at", "1m").key_by("key").window(f"{jobs.WINDOW_S}s", n=st.agg.count())
        topology = counted.to(st.sink.files(str(folder / "out"))).named("window")
    result = st.run(
        topology, policy="static", settings={"degree": CORES}, target=TARGET, max_slots=CORES, spark=session,
        checkpoint=folder / "checkpoint", runs=folder / "runs", available_now=task.seconds is None, duration=task.seconds,
    )  # fmt: skip
    batches = [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]
    if task.seconds is not None:
        since = batches[0]["started"] + task.seconds * WARM_SHARE
        waits = [(b["committed"] - at, weight) for b in batches if b["started"] > since for at, weight in b["created"]]
        return Result(latencies=[wait for wait, _ in waits], weights=[weight for _, weight in waits])
    seconds = max(b["committed"] for b in batches if b["rows_in"]) - batches[0]["started"]
    busy = sum(work["busy_s"] or 0.0 for batch in batches for work in batch["tasks"])
    windows = _written(folder / "out", "window_start", "n") if task.job == "window" else None
    return Result(seconds, result.summary["rows_out"], windows, busy=busy / (CORES * seconds))


def _written(folder: Path, start: str, count: str) -> Counter[tuple[str, int]]:
    """The windows in files of Parquet, without those of the last records."""
    import pyarrow.parquet as pq

    found: Counter[tuple[str, int]] = Counter()
    for file in folder.glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            at = row[start] if row[start].tzinfo else row[start].replace(tzinfo=jobs.BEGIN.tzinfo)
            if at < jobs.BEGIN + jobs.CLOSING:
                found[row["key"], jobs.window_of(at)] += row[count]
    return found


def spark(session: Any, task: Task, folder: Path) -> Result:
    """By hand: one pass over Arrow batches that decodes with msgspec, maps and filters; no limit of a batch while it drains."""
    from pyspark.sql import functions as F

    options = {
        "kafka.bootstrap.servers": task.servers, "subscribe": task.topic,
        "startingOffsets": "earliest" if task.seconds is None else "latest",
    }  # fmt: skip
    values = session.readStream.format("kafka").options(**options).load().select("value")
    rows = values.mapInArrow(_operators, "id long, key string, at timestamp, fahrenheit double")
    observed: Any = None
    if task.job == "stateless":
        observed = "out"
        writer = rows.observe(observed, F.count(F.lit(1)).alias("rows")).writeStream.format("noop")
    else:
        windows = rows.withWatermark("at", "1 minute").groupBy(F.window("at", f"{jobs.WINDOW_S} seconds"), "key")
        counted = windows.count().select("key", F.col("window.start").alias("start"), "count")
        writer = counted.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.trigger(availableNow=True) if task.seconds is None else writer).start()
    query.awaitTermination(task.seconds)
    query.stop()
    progress = [json.loads(each.json) for each in query.recentProgress]
    if task.seconds is not None:
        return _spark_latencies(progress, task)
    full = [each for each in progress if each["numInputRows"]]
    seconds = max(map(_ended, full)) - min(map(_began, full))
    if observed is None:
        return Result(seconds, windows=_written(folder / "out", "start", "count"))
    return Result(seconds, sum(each["observedMetrics"][observed]["rows"] for each in full))


def _operators(batches: Iterator[Any]) -> Iterator[Any]:
    import msgspec
    import pyarrow as pa

    decode = msgspec.json.Decoder(jobs.Measured).decode
    schema = pa.schema(
        [("id", pa.int64()), ("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("fahrenheit", pa.float64())]
    )
    for batch in batches:
        kept = [out for raw in batch.column(0).to_pylist() if jobs.is_warm(out := jobs.convert(decode(raw)))]
        columns = [pa.array([getattr(row, name) for row in kept], schema.field(name).type) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _began(progress: dict[str, Any]) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _ended(progress: dict[str, Any]) -> float:
    return _began(progress) + float(progress["durationMs"]["triggerExecution"]) / 1000


def _spark_latencies(progress: Sequence[dict[str, Any]], task: Task) -> Result:
    """From the creation of each record of a batch to the end of the batch."""
    begin = min(map(_began, progress)) + (task.seconds or 0.0) * WARM_SHARE
    created = _created(task)
    latencies: list[float] = []
    for each in progress:
        source = each["sources"][0]
        if _began(each) > begin and each["numInputRows"]:
            for number, last in source["endOffset"][task.topic].items():
                first = source["startOffset"][task.topic][number]
                latencies += (_ended(each) - created[int(number)][first:last]).tolist()
    return Result(latencies=latencies, weights=[1.0] * len(latencies))


def _created(task: Task) -> dict[int, _Floats]:
    """The creation times of the records of each partition."""
    found = {number: list[float]() for number in range(jobs.PARTITIONS)}
    for messages in _consumed(task, ends=True):
        for message in messages:
            found[message.partition()].append(message.timestamp()[1] / 1000)
    return {number: np.array(times) for number, times in found.items()}


def client(_: object, task: Task, __: Path) -> Result:
    """The bound: a bare consumer that decodes, maps, filters and counts in one loop of one thread."""
    import msgspec

    decode = msgspec.json.Decoder(jobs.Measured).decode
    begin, rows, windows, latencies = time.time(), 0, Counter[tuple[str, int]](), list[float]()
    for messages in _consumed(task, ends=task.seconds is None):
        kept = [out for message in messages if jobs.is_warm(out := jobs.convert(decode(message.value())))]
        rows += len(kept)
        if task.job == "window":
            windows.update((out.key, jobs.window_of(out.at)) for out in kept)
        now = time.time()
        if task.seconds is not None and now > begin + task.seconds * WARM_SHARE:
            latencies += [now - message.timestamp()[1] / 1000 for message in messages]
        if task.seconds is not None and now > begin + task.seconds:
            break
    seconds = time.time() - begin
    counted = Counter({key: count for key, count in windows.items() if key[1] < jobs.CLOSING.total_seconds() / jobs.WINDOW_S})
    return Result(seconds, rows, counted if task.job == "window" else None, latencies, [1.0] * len(latencies))


def _consumed(task: Task, ends: bool) -> Iterator[list[Any]]:
    """The messages of the topic from its start to its end; or from its end on."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": task.servers, "group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": ends,
        "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 2,
    })  # fmt: skip
    start, ended = OFFSET_BEGINNING if ends else OFFSET_END, 0
    consumer.assign([TopicPartition(task.topic, number, start) for number in range(jobs.PARTITIONS)])
    while ended < jobs.PARTITIONS:
        got = consumer.consume(CHUNK, 0.02)
        faults = [error for message in got if (error := message.error()) is not None]
        ended += sum(error.code() == KafkaError._PARTITION_EOF for error in faults)
        yield [message for message in got if message.error() is None] if faults else got
    consumer.close()


def _quantiles(latencies: Sequence[float], weights: Sequence[float]) -> list[float | None]:
    """The latencies of which 50, 95 and 99 % of the records stay below, in ms."""
    if not len(latencies):
        return [None] * 3
    order = np.argsort(latencies)
    shares = np.cumsum(np.array(weights)[order])
    places = np.searchsorted(shares, np.array([0.5, 0.95, 0.99]) * shares[-1])
    return [round(float(1000 * np.array(latencies)[order][place]), 1) for place in places]


def _session(engine: str, jars: str) -> Any:
    from pyspark.sql import SparkSession

    from springtide.spark.driver import java
    from springtide.spark.driver import session as sessions

    if engine == "springtide":
        return sessions.create(sessions.local_master(CORES), "bench-kafka")
    java.use(java.find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        **sessions.LOOPBACK, "spark.jars": jars, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(CORES), "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }  # fmt: skip
    session = SparkSession.builder.master(f"local[{CORES}]").appName("bench-kafka").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


RUN: dict[str, Callable[[Any, Task, Path], Result]] = {"springtide": springtide, "spark": spark, "client": client}


def main() -> None:
    """``ENGINE [JARS]``: read a task as JSON from each line, and answer it."""
    engine = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")  # the answers must not contain Spark's output
    os.dup2(2, 1)
    session = None if engine == "client" else _session(engine, sys.argv[2])
    for line in sys.stdin:
        task = Task(**json.loads(line))
        folder = Path(tempfile.mkdtemp(prefix="springtide-bench-"))
        try:
            result = RUN[engine](session, task, folder)
            print(json.dumps(result.to_json(task.records)), file=answers, flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if session is not None:
        session.stop()


if __name__ == "__main__":
    main()
