"""A process of ``springtide bench state``: each engine counts the same rows in the same session."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import springtide as st
from springtide.bench.state import LOADS, Load
from springtide.bench.statistics import turned
from springtide.spark.driver import session as sessions
from springtide.spark.state.reading import reading

SLOTS = 4
SHARDS = 256
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}  # fmt: skip


ENOUGH_S = 30.0
"""An engine with slow batches is measured for this long, over at least two batches, after a first batch that does not count."""


@dataclass(frozen=True)
class Variant:
    engine: str
    parallelism: int


SIDES = (
    *(Variant(engine, partitions) for engine in ("tws-pandas", "tws-row") for partitions in (2, 16)),
    *(Variant("builtin", partitions) for partitions in (2, 4, 16)),
    *(Variant(engine, width) for engine in ("springtide", "springtide-processor") for width in (2, 4)),
)


@dataclass(frozen=True)
class Key:
    key: int


@dataclass(frozen=True)
class Counted:
    key: int
    count: int


class Count(st.Processor):
    """A user's own processor on Springtide."""

    count = st.value(int, default=0)

    def process(self, key: int, records: list[Key], state: st.State) -> Iterator[Counted]:
        state.count += len(records)
        yield Counted(key, state.count)


class CountRows(StatefulProcessor):  # type: ignore[misc]
    """The same for ``transformWithState``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        counted = sum(1 for _ in rows) + (self._count.get()[0] if self._count.exists() else 0)
        self._count.update((counted,))
        yield Row(key=key[0], count=counted)

    def close(self) -> None:
        pass


class CountFrames(CountRows):
    """The same for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd  # type: ignore[import-untyped]

        counted = sum(len(frame) for frame in rows) + (self._count.get()[0] if self._count.exists() else 0)
        self._count.update((counted,))
        yield pd.DataFrame({"key": [key[0]], "count": [counted]})


def rows(session: SparkSession, load: Load) -> DataFrame:
    """The source: keys that a hash spreads over the key space."""
    reader = session.readStream.format("rate-micro-batch").option("rowsPerBatch", load.rows).option("numPartitions", 2)
    return reader.load().select(F.pmod(F.xxhash64("value"), F.lit(load.keys)).cast("long").alias("key"))


def counted(session: SparkSession, load: Load, engine: str) -> DataFrame:
    """Spark's query for an engine."""
    source, schema = rows(session, load), "key long, count long"
    if engine == "builtin":
        return source.groupBy("key").count()
    keyed = source.groupBy("key")
    if engine == "tws-row":
        return keyed.transformWithState(CountRows(), schema, "Update", "None")
    return keyed.transformWithStateInPandas(CountFrames(), schema, "Update", "None")


def run_spark(session: SparkSession, load: Load, side: Variant, folder: Path) -> list[float]:
    session.conf.set("spark.sql.shuffle.partitions", side.parallelism)
    writer = counted(session, load, side.engine).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(folder)).start()
    starts: dict[int, float] = {}
    while not _enough(starts, load):
        time.sleep(0.2)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        for progress in query.recentProgress:
            starts[progress["batchId"]] = datetime.datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
    query.stop()
    _check(_spark_total(session, side, folder), load, side, len(starts) - 1)
    return _periods([starts[batch] for batch in sorted(starts)], load)


def _spark_total(session: SparkSession, side: Variant, folder: Path) -> int:
    reader = session.read.format("statestore")
    if side.engine != "builtin":
        reader = reader.option("stateVarName", "count")
    return int(reader.load(str(folder)).agg(F.sum("value.count")).collect()[0][0])


def run_springtide(session: SparkSession, load: Load, side: Variant, folder: Path) -> list[float]:
    keyed = st.source.dataframe(lambda spark: rows(spark, load), schema=Key, ordered=True).key_by("key")
    options: dict[str, Any] = {"shards": SHARDS, "parallelism": side.parallelism}
    stream = keyed.count(**options) if side.engine == "springtide" else keyed.stateful(Count, name="count", **options)
    result = st.run(
        stream.to(st.sink.discard()).named("counts"), policy="static", settings={"degree": side.parallelism}, max_slots=SLOTS,
        batches=load.measured + load.dropped + 1, spark=session, checkpoint=folder / "checkpoint", runs=folder / "runs",
    )  # fmt: skip
    _check(_springtide_total(folder / "checkpoint"), load, side, load.measured + load.dropped)
    lines = (result.folder / "batches.jsonl").read_text().splitlines()
    return _periods([json.loads(line)["started"] * 1000 for line in lines], load)


def _springtide_total(checkpoint: Path) -> int:
    with reading(checkpoint, "count") as state:
        return sum(int(pc.sum(part.column(part.schema.names[-1])).as_py()) for part in state.rows())


def _check(found: int, load: Load, side: Variant, batches: int) -> None:
    """Raise RuntimeError unless the state has counted whole batches, and at least ``batches``."""
    if found % load.rows or found < load.rows * batches:
        raise RuntimeError(f"{side} has counted {found} rows, of {batches} batches of {load.rows}")


def _enough(starts: Mapping[int, float], load: Load) -> bool:
    """Whether all batches have begun; or, if batches are slow, more than three in ``ENOUGH_S``."""
    spent_s = (max(starts.values()) - min(starts.values())) / 1000 if starts else 0.0
    return len(starts) > load.measured + load.dropped or (len(starts) > 3 and spent_s >= ENOUGH_S)


def _periods(starts: list[float], load: Load) -> list[float]:
    dropped = load.dropped if len(starts) > load.measured + load.dropped else 1
    return [after - before for before, after in itertools.pairwise(starts[dropped : dropped + load.measured + 1])]


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")  # the answer must not contain Spark's output
    os.dup2(2, 1)
    progress = sys.stderr
    rounds, loads = int(sys.argv[1]), [load for load in LOADS if str(load.rows) in sys.argv[2:] or not sys.argv[2:]]
    session: Any = sessions.create(sessions.local_master(SLOTS), "bench-state", conf=ROCKSDB)
    times: dict[tuple[Load, Variant], list[float]] = {}
    for number in range(rounds):
        for load in loads:
            for side in turned(SIDES, number):
                folder = Path(tempfile.mkdtemp(prefix="springtide-bench-"))
                try:
                    run = run_springtide if side.engine.startswith("springtide") else run_spark
                    median = statistics.median(run(session, load, side, folder))
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                times.setdefault((load, side), []).append(median)
                print(
                    f"round {number + 1}: {load.rows} rows, {side.engine} at {side.parallelism}: {median:.0f} ms",
                    file=progress,
                    flush=True,
                )
    session.stop()
    print(json.dumps([_row(load, side, medians) for (load, side), medians in times.items()]), file=answer, flush=True)


def _row(load: Load, side: Variant, medians: list[float]) -> dict[str, Any]:
    batch_ms = statistics.median(medians)
    return {
        "engine": side.engine, "parallelism": side.parallelism, "rows": load.rows, "keys": load.keys,
        "rows_s": round(load.rows / batch_ms * 1000), "batch_ms": round(batch_ms, 1), "rounds_ms": medians,
    }  # fmt: skip


if __name__ == "__main__":
    main()
