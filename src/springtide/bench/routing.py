"""The cost of routing in a task: microseconds per record, and the delay of a fresh worker's first batch.

Microseconds: ``route`` on shares of 2,000 records of POSG's stream, including the hashes of the keys, after the grouping has
learned from 50,000 records. The groupings take turns; a grouping's time is the least of its rounds, because noise only adds.

Long keys: the same for ``hash`` on strings of 1 kB to 1 MB, with a limit of 2 µs a record and 1 ns a byte.

The first batch: a warm session in which every measured batch has its own, unused Python daemon and workers. Spark starts new
workers for a new environment, so an unused variable is changed for each batch. There are two tasks, so that two cores start two
workers at once. The groupings take turns; the result is the median of the differences to round-robin in the same round.
``hash`` has no table to unpack, so it shows the noise.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import numpy as np
import psutil
import pyarrow as pa

from springtide.bench import balance
from springtide.bench.balance_work import stream
from springtide.bench.statistics import quartiles, turned
from springtide.model.costs import TaskCosts
from springtide.policy import registry
from springtide.policy.group import Grouping, Learner, Share, Table
from springtide.spark.task.context import BATCH_PROPERTY

K = 8
RECORDS, WARM = 2_000, 50_000
FRESH, FRESH_WIDTH, WARM_ROUNDS = ("round-robin", "hash", "posg", "tide"), 2, 2
BASE = FRESH[0]
LONG = {1 << 10: 2_000, 1 << 16: 64, 1 << 20: 8}
"""For each length of a long key, in bytes, the number of records in a share."""
LIMIT_US, LIMIT_NS_PER_BYTE = 2.0, 1.0


def measure(rounds: int, fresh_rounds: int, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """Measure all groupings that run on Spark."""
    names = [cls.name for cls in registry.available("group") if not getattr(cls, "simulator_only", False)]
    groupings: dict[str, Grouping] = {name: registry.create("group", name) for name in names}
    micros = _micros(groupings, rounds)
    long = long_keys(rounds)
    print("microseconds per record: done", file=progress, flush=True)
    extra = _first_batches({name: groupings[name] for name in FRESH}, fresh_rounds, progress)
    return {
        "k": K,
        "records": RECORDS,
        "fresh_tasks": FRESH_WIDTH,
        "rows": [{"grouping": name, "us_per_record": round(micros[name], 3), **_later(extra.get(name))} for name in names],
        "long_keys": long,
    }


def long_keys(rounds: int) -> list[dict[str, Any]]:
    """The time of ``hash`` to route records by a long string, and its limit."""
    rng = np.random.default_rng(3)
    grouping = registry.create("group", "hash")
    rows = []
    for size, count in LONG.items():
        drawn = pa.record_batch({"key": [rng.bytes(size // 2).hex() for _ in range(count)]})
        best = min(_seconds(grouping, drawn) for _ in range(rounds + 1)) / count
        rows.append(
            {
                "bytes": size,
                "us_per_record": round(best * 1e6, 3),
                "ns_per_byte": round(best * 1e9 / size, 3),
                "limit_us": round(LIMIT_US + LIMIT_NS_PER_BYTE * size / 1000, 3),
            }
        )
    return rows


def _seconds(grouping: Grouping, records: pa.RecordBatch) -> float:
    begin = time.perf_counter()
    grouping.route(Share.of(records, ("key",), K), {})
    return time.perf_counter() - begin


def _later(extra: list[float] | None) -> dict[str, Any]:
    if extra is None:
        return {"first_batch_extra_ms": None, "first_batch_extra_ms_iqr": None}
    spread = [round(1000 * value, 1) for value in quartiles(extra)]
    return {"first_batch_extra_ms": round(1000 * statistics.median(extra), 1), "first_batch_extra_ms_iqr": spread}


def _reports(width: int) -> Iterator[list[TaskCosts]]:
    """The reports of ``width`` tasks on 50,000 records of POSG's stream, in batches of 2,000."""
    rng = np.random.default_rng(1)
    records = stream("posg", 1.0, rng)
    tasks = np.arange(RECORDS) % width
    for _ in range(0, WARM, RECORDS):
        drawn = _batch(records.drawn(RECORDS, rng))
        keys, seconds = Share.of(drawn, ("key",), width).keys, drawn.column("seconds").to_numpy()
        yield [TaskCosts.of(t, keys[tasks == t], seconds[tasks == t]) for t in range(width)]


def _learned(grouping: Grouping) -> Table:
    """The table of a grouping after those reports."""
    if not isinstance(grouping, Learner):
        return {}
    state = grouping.initial()
    for reports in _reports(K):
        state = grouping.learn(state, K, reports)
    return grouping.table(state, K)


def _batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _micros(groupings: Mapping[str, Grouping], rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    tables = {name: _learned(grouping) for name, grouping in groupings.items()}
    records = stream("posg", 1.0, np.random.default_rng(1))
    best = dict.fromkeys(groupings, float("inf"))
    for number in range(rounds + 1):
        drawn = _batch(records.drawn(RECORDS, rng))
        for name in turned(tuple(groupings), number):
            begin = time.perf_counter()
            groupings[name].route(Share.of(drawn, ("key",), K, batch=number), tables[name])
            took = time.perf_counter() - begin
            if number:
                best[name] = min(best[name], took * 1e6 / RECORDS)
    return best


def _first_batches(groupings: Mapping[str, Grouping], rounds: int, progress: TextIO) -> dict[str, list[float]]:
    """The delay of the first batch of fresh workers, compared with round-robin, by grouping."""
    extra: dict[str, list[float]] = {name: [] for name in groupings}
    rng = np.random.default_rng(2)
    records = stream("posg", 1e6, np.random.default_rng(1))  # the keys of the reports, and work that takes no time
    with balance.spark_session(FRESH_WIDTH) as session:
        session.sparkContext.setLocalProperty(BATCH_PROPERTY, "0")
        sides = {name: balance.Springtide(session, "wait", FRESH_WIDTH, grouping) for name, grouping in groupings.items()}
        for side in sides.values():
            for reports in _reports(FRESH_WIDTH):
                side.learn(reports)
        for number in range(rounds + WARM_ROUNDS):
            frame = session.createDataFrame(records.drawn(RECORDS, rng)).coalesce(1).cache()
            frame.count()
            took = {name: _first_batch(session, sides[name], frame, f"{name} {number}") for name in turned(FRESH, number)}
            frame.unpersist()
            if number >= WARM_ROUNDS:
                for name, seconds in took.items():
                    extra[name].append(seconds - took[BASE])
        print(f"fresh workers: {rounds} rounds done", file=progress, flush=True)
    return extra


def _first_batch(session: Any, side: balance.Springtide, frame: Any, environment: str) -> float:
    session.sparkContext.environment["SPRINGTIDE_BENCH"] = environment
    side.renew()
    begin = time.perf_counter()
    side.outcome(frame)
    took = time.perf_counter() - begin
    _end_workers()
    return took


def _end_workers() -> None:
    """End Spark's Python processes. Spark does not use those of this environment again."""
    own = [process for process in psutil.Process().children(recursive=True) if _is_worker(process)]
    for process in own:
        process.kill()
    psutil.wait_procs(own, timeout=5)


def _is_worker(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return "-m" in words and "springtide.spark.private.daemon" in words  # in the JVM's arguments it is part of a longer word
