"""A process of ``springtide bench state``: throughput when the popular keys change (Elasticutor, figure 6).

Keys are drawn by Zipf's law with exponent 1; ω times a minute a new permutation decides which keys are popular. A record costs
a wait (``work: "wait"``), so eight tasks fit on two cores, and the source always has more records than can be read.

    hash         shards are assigned in ranges, whatever their loads
    restart      the query is stopped, its shards are balanced, and it is restarted, whenever the popular keys have changed
    springtide   shards are balanced between two batches

Every run has its own checkpoint, and so its own seed of the hash of keys. Hash partitioning is therefore lucky in some rounds:
beside its rows a second, the load of its fullest task over the mean is reported.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

import springtide as st
from springtide.bench.state import OMEGAS
from springtide.bench.statistics import turned
from springtide.model.report import BatchReport
from springtide.policy.shard import Loads, Owner, spread
from springtide.policy.shard.balance import balanced
from springtide.record.folder import RunFolder
from springtide.spark.driver import session as sessions

WIDTH = 8
SHARDS = 256
KEYS = 10_000
WAIT_S = 0.001
RATE = 12_000.0
"""The input rate in records a second: more than eight tasks can process at 1 ms a record."""
BATCH = 4_800
"""Records of a batch: 0.6 s of waiting if all tasks have the same number."""
SECONDS = 60.0
SEEN_S = 3.0
"""The time from a change of the popular keys to a restart; the new loads are known by then."""
WARM_S = 10.0
"""The time that is left out at the start of each run. A first run of twice this time warms up the JVM."""
ENGINES = ("hash", "restart", "springtide")


@dataclass(frozen=True)
class Click:
    key: int


@dataclass(frozen=True)
class KeyCount:
    key: int
    count: int


@cache
def _popularity() -> list[float]:
    """Cumulative shares of the ranks."""
    shares = list(accumulate(1 / rank for rank in range(1, KEYS + 1)))
    return [share / shares[-1] for share in shares]


@cache
def _permutation(number: int) -> Any:
    return np.random.default_rng(number).permutation(KEYS).tolist()


def drawn(draw: st.Draw) -> Click:
    """A record whose key is a rank; ``shuffled`` replaces it."""
    return Click(min(bisect(_popularity(), draw.random.random()), KEYS - 1))


def shuffled(omega: int, begun: float) -> Callable[[Click], Click]:
    """Assign the ranks to other keys ω times a minute, by the clock, so that fast and slow engines see the same keys."""

    def shuffle(click: Click) -> Click:
        return Click(_permutation(int((time.time() - begun) * omega / 60))[click.key])

    return shuffle


class WaitAndCount(st.Processor):
    """Counts the records, and waits at each as for an external call."""

    count = st.value(int, default=0)

    def process(self, key: int, records: list[Click], state: st.State) -> Iterator[KeyCount]:
        time.sleep(WAIT_S * len(records))
        state.count += len(records)
        yield KeyCount(key, state.count)


@dataclass
class BalanceAtStart:
    """Leaves the shards where they are while the query runs; ``reload`` balances them for the next start."""

    owner: Owner
    loads: Loads
    name = "held"

    def assign(self, owner: Owner, loads: Loads, width: int) -> Owner:
        self.loads = loads
        return self.owner

    def reload(self) -> None:
        self.owner = balanced(self.owner, self.loads, WIDTH)


def run(session: Any, engine: str, omega: int, folder: Path, seconds: float = SECONDS) -> tuple[float, float]:
    """Records a second after the first seconds, and the mean over the batches of the fullest task's records over the mean."""
    begun = time.time()
    balance = BalanceAtStart(spread(SHARDS, WIDTH), np.zeros(SHARDS))
    sharding: Any = {"hash": "fixed", "restart": balance, "springtide": "balance"}[engine]
    spans = restarts(omega) if engine == "restart" else [seconds]
    for until in spans:
        left = begun + until - time.time()
        if left > 0:
            stream = st.source.generate(drawn, rate=RATE, max_records=BATCH).map(
                shuffled(omega, begun), schema=Click, name="shuffle"
            )
            counts = stream.key_by("key").stateful(WaitAndCount, name="count", shards=SHARDS)
            st.run(
                counts.to(st.sink.discard()).named("clicks"), policy="static", settings={"degree": WIDTH}, max_slots=WIDTH,
                duration=left, spark=session, checkpoint=folder / "checkpoint", runs=folder / "runs",
                sharding=sharding,
            )  # fmt: skip
            balance.reload()
    reports = [report for path in sorted((folder / "runs").iterdir()) for report in RunFolder(path).batches()]
    counted = [report for report in reports if report.started > begun + WARM_S]
    rows_s = sum(report.rows_in for report in counted) / (counted[-1].committed - counted[0].started)
    return rows_s, statistics.fmean(_fullest(report) for report in counted if report.rows_in)


def _fullest(report: BatchReport) -> float:
    rows = [task.rows_in or 0 for task in report.tasks if task.operator == "count"]
    return max(rows) * WIDTH / sum(rows)


def restarts(omega: int) -> list[float]:
    """The seconds at which the query is stopped: ``SEEN_S`` after each change of the popular keys, and at the end."""
    period = 60 / omega if omega else SECONDS
    changes = [number * period for number in range(math.ceil(SECONDS / period))]
    return [*(at + SEEN_S for at in changes if at + SEEN_S < SECONDS), SECONDS]


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    progress = sys.stderr
    session: Any = sessions.create(sessions.local_master(WIDTH), "bench-state-skew")
    results: dict[tuple[int, str], list[tuple[float, float]]] = {}
    omegas = tuple(map(int, sys.argv[2:])) or OMEGAS
    with tempfile.TemporaryDirectory(prefix="springtide-bench-") as folder:
        run(session, "springtide", 0, Path(folder), 2 * WARM_S)
    for number in range(int(sys.argv[1])):
        for omega in omegas:
            for engine in turned(ENGINES, number):
                with tempfile.TemporaryDirectory(prefix="springtide-bench-") as folder:
                    results.setdefault((omega, engine), []).append(run(session, engine, omega, Path(folder)))
                rows_s, fullest = results[omega, engine][-1]
                line = f"round {number + 1}: ω = {omega}, {engine}: {rows_s:.0f} rows/s, fullest task {fullest:.2f}"
                print(line, file=progress, flush=True)
    session.stop()
    rows = [
        {
            "omega": omega, "engine": engine, "rows_s": round(statistics.median(rows_s for rows_s, _ in each)),
            "fullest": round(statistics.median(fullest for _, fullest in each), 3),
            "rounds": [round(rows_s) for rows_s, _ in each],
        }
        for (omega, engine), each in results.items()
    ]  # fmt: skip
    print(json.dumps(rows), file=answer, flush=True)


if __name__ == "__main__":
    from springtide.bench import state_skew  # imported by name: workers look up cached functions there

    state_skew.main()
