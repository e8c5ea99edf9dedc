"""The cost of a faulty control flow for the data flow: throughput on Spark with healthy managers, and with managers that raise,
hang, die, stop, return nonsense or see stale data.

Both sides run the same records through the same operators in the same session, one after the other, in an order that rotates
from round to round. All records are available from the beginning, so that batches run back to back and the throughput is the
data flow's maximum. The degrees are the same on both sides. Every record has to come out exactly once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow.parquet as pq

import springtide as st
from springtide.bench.statistics import quartiles, turned
from springtide.record.folder import RunFolder
from springtide.spark.driver import session as sessions

SLOTS = 2
RECORDS = 1_000_000
WARM = 5
"""Batches at the start of a run that are not measured, because the read limit is still adapting."""
SIDES = {"well": ("static", {"degree": 1}), "chaos": ("springtide.bench.chaos_policy:Chaos", {})}


@dataclass(frozen=True)
class Number:
    n: int


def measure(rounds: int = 6, records: int = RECORDS, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """Rows/s of both sides, the median ratio of the rounds and its quartiles, and the number of lost or duplicated rows."""
    rows_s: dict[str, list[float]] = {side: [] for side in SIDES}
    wrong = restarts = 0
    with tempfile.TemporaryDirectory(prefix="springtide-") as folder:
        session: Any = sessions.create(sessions.local_master(SLOTS), "springtide-chaos")
        try:
            for number in range(rounds + 1):
                for side in turned(tuple(SIDES), number):
                    place = Path(folder) / f"{number}-{side}"
                    speed, faults, lost = _run(session, side, records, place, number)
                    wrong, restarts = wrong + faults, restarts + lost
                    if number:  # the first round warms Spark
                        rows_s[side].append(speed)
                    print(f"round {number}, {side}: {speed:,.0f} rows/s", file=progress, flush=True)
        finally:
            session.stop()
    ratios = [chaos / well for chaos, well in zip(rows_s["chaos"], rows_s["well"], strict=True)]
    return {
        "records": records, "rounds": rounds, "control_restarts": restarts, "rows_lost_or_doubled": wrong,
        "rows_s": {side: round(statistics.median(speeds), 1) for side, speeds in rows_s.items()},
        "ratio": round(statistics.median(ratios), 3), "ratio_iqr": quartiles(ratios),
    }  # fmt: skip


def _made(draw: st.Draw) -> Number:
    return Number(draw.index)


def _worked(number: Number) -> Number:
    total = 0
    for i in range(400):  # about 20 µs, so that batches have work to do
        total += i
    return Number(number.n + (total < 0))


def _run(session: Any, side: str, records: int, place: Path, seed: int) -> tuple[float, int, int]:
    """Rows/s, the number of missing or duplicated records, and the number of restarts of the control process."""
    policy, settings = SIDES[side]
    numbers = st.source.generate(_made, rate=1e9, limit=records)
    topology = numbers.map(_worked, name="work", parallelism=SLOTS).to(st.sink.files(place / "out")).named("numbers")
    done = st.run(
        topology, policy=policy, settings=settings, max_slots=SLOTS, target="500ms", interval="200ms", spark=session,
        runs=place, seed=seed,
    )  # fmt: skip
    found = pq.read_table(place / "out").column("n").to_pylist()
    wrong = len(found) - len(set(found)) + len(set(range(records)) - set(found))
    batches = RunFolder(done.folder).batches()[WARM:]
    seconds = batches[-1].committed - batches[0].started
    return sum(batch.rows_in for batch in batches) / seconds, wrong, int(done.summary["control_restarts"])
