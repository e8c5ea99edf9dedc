"""A process of ``springtide bench state``: the pause of the output while 100 MB of state go from 2 tasks to 8, and back.

Files of rows come at a steady pace, whatever the query does. Springtide changes its width between two batches. Spark's way is
to let the query process all files, stop it, repartition its checkpoint, and start it again. So that the query can catch up, no
files come meanwhile; those that were due come right after.

Each contender has its own process and session in each round, and runs there once before it is measured: Spark's state stores do
maintenance every minute even after their query has ended, which would disturb the other contender.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import springtide as st
from springtide.bench.state import answer_of
from springtide.bench.state_throughput import ROCKSDB, SHARDS
from springtide.bench.statistics import turned
from springtide.spark.driver import session as sessions

SLOTS = 8
KEYS = 100_000
TEXT_BYTES = 1_000
"""The length of the text of each key: 100 MB of state in all."""
ROWS = 2_000
EVERY_S = 0.25
STEADY_S, WARM_S = 30.0, 10.0
"""The time for each width, when measured and in the warm-up."""
NARROW, WIDE = 2, 8


@dataclass(frozen=True)
class KeyText:
    key: int
    text: str


SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])


class Feeder:
    """Writes a file of rows into a folder four times a second, on a thread of its own. The first files have every key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = np.random.default_rng(1)
        self._number = 0
        self._over, self._paused = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        folder.mkdir()
        for keys in np.array_split(np.arange(KEYS), 10):
            self._put(keys)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Write no files meanwhile; those that are due follow afterwards."""
        self._paused.set()
        try:
            yield
        finally:
            self._paused.clear()

    def _run(self) -> None:
        due = 0
        while not self._over.wait(EVERY_S):
            due += 1
            while due and not self._paused.is_set():
                self._put(self._random.integers(0, KEYS, ROWS))
                due -= 1

    def _put(self, keys: Any) -> None:
        texts = [f"{key:07d}".rjust(TEXT_BYTES, chr(97 + self._number % 26)) for key in keys]
        hidden = self._folder / f".{self._number}"
        pq.write_table(pa.table({"key": keys, "text": texts}, SCHEMA), hidden)
        os.replace(hidden, self._folder / f"{self._number:06d}.parquet")
        self._number += 1


def rows(session: SparkSession, folder: Path) -> DataFrame:
    reader = session.readStream.schema("key long, text string").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def springtide(session: SparkSession, folder: Path, steady_s: float) -> tuple[float, float]:
    """The longest gap beyond the median while the width goes up and down, and the median duration of a batch."""
    texts = st.source.dataframe(lambda spark: rows(spark, folder / "in"), schema=KeyText, ordered=True)
    latest = texts.key_by("key").aggregate(n=st.agg.count(), text=st.agg.max("text"), shards=SHARDS, name="latest")
    script = f"latest 0:{NARROW} {steady_s:g}:{WIDE} {2 * steady_s:g}:{NARROW}; * 0:1"
    feeder = Feeder(folder / "in")
    feeder.start()
    try:
        result = st.run(
            latest.to(st.sink.discard()).named("latest"), policy="scripted", settings={"script": script}, max_slots=SLOTS,
            duration=3 * steady_s, spark=session, checkpoint=folder / "checkpoint", runs=folder / "runs",
        )  # fmt: skip
    finally:
        feeder.stop()
    reports = [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]
    widths = [report["plan"]["widths"]["latest"] for report in reports]
    if not {NARROW, WIDE} <= set(widths):
        raise RuntimeError(f"the width should go from {NARROW} to {WIDE} and back; it was {widths}")
    busy = [report for report in reports if report["rows_in"]]
    batch_s = statistics.median(report["committed"] - report["started"] for report in busy)
    return _pause([report["committed"] for report in busy]), batch_s


def spark(session: SparkSession, folder: Path, steady_s: float) -> tuple[float, float]:
    """The same with Spark's own means."""
    feeder = Feeder(folder / "in")
    feeder.start()
    ends: list[float] = []
    batches: list[float] = []
    try:
        for number, partitions in enumerate((NARROW, WIDE, NARROW)):
            if number:
                session._streamingCheckpointManager.repartition(str(folder / "checkpoint"), partitions)
            session.conf.set("spark.sql.shuffle.partitions", partitions)
            counted = rows(session, folder / "in").groupBy("key").agg(F.count("*").alias("n"), F.max("text").alias("text"))
            writer = counted.writeStream.outputMode("update").format("noop")
            query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
            end = time.time() + steady_s
            while time.time() < end:
                time.sleep(0.2)
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
            with feeder.paused():
                query.processAllAvailable()
            query.stop()
            busy = [progress for progress in query.recentProgress if progress["numInputRows"]]
            ends += [_end(progress) for progress in busy]
            batches += [progress["durationMs"]["triggerExecution"] / 1000 for progress in busy]
    finally:
        feeder.stop()
    ends = sorted(set(ends))
    return _pause(ends), statistics.median(batches)


def _end(progress: Any) -> float:
    begun = datetime.datetime.fromisoformat(progress["timestamp"]).timestamp()
    return float(begun + progress["durationMs"]["triggerExecution"] / 1000)


def _pause(ends: list[float]) -> float:
    """The longest time between the ends of two batches, less the median; the first sixth warms up and does not count."""
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    return max(0.0, max(gaps[len(gaps) // 6 :]) - statistics.median(gaps))


SIDES = {"springtide": springtide, "spark": spark}


def measured(side: str) -> tuple[float, float]:
    """Warm up a contender in this process, then measure it."""
    session: Any = sessions.create(sessions.local_master(SLOTS), f"bench-state-pause-{side}", conf=ROCKSDB)
    result = 0.0, 0.0
    for steady_s in (WARM_S, STEADY_S):
        with tempfile.TemporaryDirectory(prefix="springtide-bench-") as folder:
            result = SIDES[side](session, Path(folder), steady_s)
    session.stop()
    return result


def rounds(count: int) -> dict[str, Any]:
    """Measure both contenders ``count`` times, each in a process of its own, in an order that rotates."""
    progress = sys.stderr
    results: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(count):
        for side in turned(tuple(SIDES), number):
            results[side].append(tuple(answer_of("state_pause", side)))
            print(f"round {number + 1}: {side} pauses for {results[side][-1][0]:.2f} s", file=progress, flush=True)
    return {
        "springtide_s": round(statistics.median(pause for pause, _ in results["springtide"]), 3),
        "spark_s": round(statistics.median(pause for pause, _ in results["spark"]), 3),
        "usual_batch_s": round(statistics.median(usual for _, usual in results["springtide"]), 3),
        "spark_batch_s": round(statistics.median(usual for _, usual in results["spark"]), 3),
        "rounds": {name: [round(pause, 3) for pause, _ in pauses] for name, pauses in results.items()},
        "state_mb": KEYS * TEXT_BYTES / 1e6,
    }


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")  # the answer must not contain Spark's output
    os.dup2(2, 1)
    what = sys.argv[1]
    print(json.dumps(measured(what) if what in SIDES else rounds(int(what))), file=answer, flush=True)


if __name__ == "__main__":
    main()
