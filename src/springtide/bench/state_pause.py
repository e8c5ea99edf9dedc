"""One process of ``springtide bench state``: how long no batch ends while 100 MB of state go from 2 tasks to 8, and back.

Files of rows come at a steady pace, whatever the query does. Springtide changes its width between two batches. Spark's way is
to let the query take up what is there, stop it, repartition its checkpoint, and start it again. So that there is an end to what
is there, no files come until it was taken up; those that were due come right after.

Each side has a process and a session of its own in each round, and runs there once before it is measured: Spark's state stores
go on with their work every minute after their query has ended, and would do so beside the other side.
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
"""100 MB of state: so many keys, each with a text of so many bytes."""
ROWS = 2_000
EVERY_S = 0.25
STEADY_S, WARM_S = 30.0, 10.0
"""How long each width is kept, and before anything is measured."""
NARROW, WIDE = 2, 8


@dataclass(frozen=True)
class Said:
    key: int
    text: str


SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])


class Feeder:
    """Puts a file of rows into a folder four times a second, on a thread of its own; the first ones have every key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = np.random.default_rng(1)
        self._number = 0
        self._over, self._held = threading.Event(), threading.Event()
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
    def held(self) -> Iterator[None]:
        """No files meanwhile; those that are due come afterwards."""
        self._held.set()
        try:
            yield
        finally:
            self._held.clear()

    def _run(self) -> None:
        due = 0
        while not self._over.wait(EVERY_S):
            due += 1
            while due and not self._held.is_set():
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
    """The longest gap beyond the usual while the width goes up and down, and how long a batch takes as a rule."""
    said = st.source.dataframe(lambda spark: rows(spark, folder / "in"), schema=Said, ordered=True)
    kept = said.key_by("key").aggregate(n=st.agg.count(), text=st.agg.max("text"), shards=SHARDS, name="kept")
    script = f"kept 0:{NARROW} {steady_s:g}:{WIDE} {2 * steady_s:g}:{NARROW}; * 0:1"
    feeder = Feeder(folder / "in")
    feeder.start()
    try:
        result = st.run(
            kept.to(st.sink.discard()).named("kept"), policy="scripted", settings={"script": script}, max_slots=SLOTS,
            duration=3 * steady_s, spark=session, checkpoint=folder / "checkpoint", runs=folder / "runs",
        )  # fmt: skip
    finally:
        feeder.stop()
    reports = [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]
    widths = [report["plan"]["widths"]["kept"] for report in reports]
    if not {NARROW, WIDE} <= set(widths):
        raise RuntimeError(f"the width was to go from {NARROW} to {WIDE} and back; it was {widths}")
    told = [report for report in reports if report["rows_in"]]
    batch_s = statistics.median(report["committed"] - report["started"] for report in told)
    return _pause([report["committed"] for report in told]), batch_s


def spark(session: SparkSession, folder: Path, steady_s: float) -> tuple[float, float]:
    """The same by Spark's own means."""
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
            with feeder.held():
                query.processAllAvailable()
            query.stop()
            told = [progress for progress in query.recentProgress if progress["numInputRows"]]
            ends += [_end(progress) for progress in told]
            batches += [progress["durationMs"]["triggerExecution"] / 1000 for progress in told]
    finally:
        feeder.stop()
    ends = sorted(set(ends))
    return _pause(ends), statistics.median(batches)


def _end(progress: Any) -> float:
    begun = datetime.datetime.fromisoformat(progress["timestamp"]).timestamp()
    return float(begun + progress["durationMs"]["triggerExecution"] / 1000)


def _pause(ends: list[float]) -> float:
    """The longest time between two batches' ends, beyond the usual; the first sixth is for warming up."""
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    return max(0.0, max(gaps[len(gaps) // 6 :]) - statistics.median(gaps))


SIDES = {"springtide": springtide, "spark": spark}


def measured(side: str) -> tuple[float, float]:
    """One side in this process: warmed up, then measured."""
    session: Any = sessions.create(sessions.local_master(SLOTS), f"bench-state-pause-{side}", conf=ROCKSDB)
    found = 0.0, 0.0
    for steady_s in (WARM_S, STEADY_S):
        with tempfile.TemporaryDirectory(prefix="springtide-bench-") as folder:
            found = SIDES[side](session, Path(folder), steady_s)
    session.stop()
    return found


def rounds(count: int) -> dict[str, Any]:
    """Both sides, each in a process of its own, so many times; another one first in every round."""
    progress = sys.stderr
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(count):
        for side in turned(tuple(SIDES), number):
            found[side].append(tuple(answer_of("state_pause", side)))
            print(f"round {number + 1}: {side} pauses for {found[side][-1][0]:.2f} s", file=progress, flush=True)
    return {
        "springtide_s": round(statistics.median(pause for pause, _ in found["springtide"]), 3),
        "spark_s": round(statistics.median(pause for pause, _ in found["spark"]), 3),
        "usual_batch_s": round(statistics.median(usual for _, usual in found["springtide"]), 3),
        "spark_batch_s": round(statistics.median(usual for _, usual in found["spark"]), 3),
        "rounds": {name: [round(pause, 3) for pause, _ in pauses] for name, pauses in found.items()},
        "state_mb": KEYS * TEXT_BYTES / 1e6,
    }


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")  # what Spark prints must not get into it
    os.dup2(2, 1)
    what = sys.argv[1]
    print(json.dumps(measured(what) if what in SIDES else rounds(int(what))), file=answer, flush=True)


if __name__ == "__main__":
    main()
