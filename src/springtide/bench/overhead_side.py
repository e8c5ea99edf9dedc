"""A process of ``springtide bench overhead``: a session that runs the queries of its input."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import springtide as st
from springtide.bench.overhead import ROWS_PER_BATCH
from springtide.spark.driver import java
from springtide.spark.driver import session as sessions

CORES = 2
KEEP_PROGRESS = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
DROPPED = 15
"""Batches at the start of a query that are not measured."""


@dataclasses.dataclass(frozen=True)
class Value:
    value: int


def add(record: Value) -> Value:
    return Value(record.value + 1)


def keep(record: Value) -> bool:
    return record.value % 7 != 0


def double(record: Value) -> Value:
    return Value(record.value * 2)


def topology(shape: str) -> st.Topology:
    """Springtide's query."""
    own: dict[str, Any] = {} if shape == "chained" else {"grouping": "round-robin", "parallelism": CORES}
    rows = st.source.dataframe(_source, schema=Value, ordered=True)
    return rows.map(add, **own).filter(keep, **own).map(double, **own).to(st.sink.discard()).named("overhead")


def _source(session: SparkSession) -> DataFrame:
    reader = session.readStream.format("rate-micro-batch")
    return reader.option("rowsPerBatch", ROWS_PER_BATCH).option("numPartitions", CORES).load().select("value")


Batches = Iterable[pa.RecordBatch]


def _each(function: Callable[[list[int]], list[int]]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A hand-written operator on plain Python values, without record classes."""

    def apply(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = function(batch.column(0).to_pylist())
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["value"])

    return apply


def vanilla(session: SparkSession, shape: str) -> DataFrame:
    """The same query by hand: fused in a single ``mapInArrow``, or with a ``repartition`` before each operator."""
    rows, schema = _source(session), "value long"
    if shape == "chained":
        return rows.mapInArrow(_each(lambda v: [x * 2 for x in [y + 1 for y in v] if x % 7 != 0]), schema)
    steps: list[Callable[[list[int]], list[int]]] = [
        lambda values: [x + 1 for x in values],
        lambda values: [x for x in values if x % 7 != 0],
        lambda values: [x * 2 for x in values],
    ]
    for step in steps:
        rows = rows.repartition(CORES).mapInArrow(_each(step), schema)
    return rows


def run_vanilla(session: SparkSession, shape: str, batches: int, folder: Path) -> list[float]:
    query = vanilla(session, shape).writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    starts: dict[int, float] = {}
    while len(starts) <= batches + DROPPED:
        time.sleep(0.2)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        for progress in query.recentProgress:
            moment = datetime.datetime.fromisoformat(progress["timestamp"])
            starts[progress["batchId"]] = moment.timestamp() * 1000
    query.stop()
    return _periods([starts[batch] for batch in sorted(starts)], batches)


def run_springtide(session: SparkSession, shape: str, batches: int, folder: Path) -> list[float]:
    settings = {"degree": 1}
    result = st.run(
        topology(shape), policy="static", settings=settings, max_slots=CORES, batches=batches + DROPPED + 1,
        spark=session, runs=folder,
    )  # fmt: skip
    lines = (result.folder / "batches.jsonl").read_text().splitlines()
    return _periods([json.loads(line)["started"] * 1000 for line in lines], batches)


def _periods(starts: list[float], batches: int) -> list[float]:
    return [after - before for before, after in itertools.pairwise(starts[DROPPED : DROPPED + batches + 1])]


def _session(settings: str) -> Any:
    if settings == "springtide":
        return sessions.create(sessions.local_master(CORES), "bench-overhead", conf=KEEP_PROGRESS)
    java.use(java.find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench-overhead")
    for name, value in sessions.LOOPBACK.items():
        builder = builder.config(name, value)
    session = builder.config(map=KEEP_PROGRESS).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    """Read lines of [shape, who, batches], and answer each with the batch times in ms."""
    answers = os.fdopen(os.dup(1), "w")  # the answers must not contain Spark's output
    os.dup2(2, 1)
    session = _session(sys.argv[1])
    for line in sys.stdin:
        shape, who, batches = json.loads(line)
        folder = Path(tempfile.mkdtemp(prefix="springtide-bench-"))
        try:
            run = run_vanilla if who == "vanilla" else run_springtide
            print(json.dumps(run(session, shape, batches, folder)), file=answers, flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    session.stop()


if __name__ == "__main__":
    main()
