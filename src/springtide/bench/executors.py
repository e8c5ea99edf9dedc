"""Latency and cost of fixed executors, Spark's dynamic allocation, and policies, under the same fluctuating load.

A standalone cluster on this machine has six executors with a core each. A record is a call to an external service, which takes
40 ms: its task waits and uses no CPU (``work: "wait"``), so six executors fit on two cores. The rate is that of a recorded
trace, half as fast again, scaled so that four of the six executors are busy at its peak. Each contender is an application of
its own, with the same topology, target and settings. The first seconds, in which Python starts, do not count as late.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import springtide as st
from springtide.apps.traces import named
from springtide.bench.standalone import standalone, with_archive
from springtide.errors import OptionError, nearest
from springtide.model.rate import Rate
from springtide.model.report import violation_ratio
from springtide.record.folder import RunFolder

EXECUTORS = 6
CALL_S = 0.040
BUSY_AT_PEAK = 4.0
"""Busy executors at the trace's peak: 67 % of six, the usual size of a fixed cluster for a peak."""
TARGET_S = 5.0
"""The latency target: several times the 0.7 s that a batch of ten records takes on this cluster."""
INTERVAL_S = 5.0
"""The time between decisions. An executor takes 8 s to start, so much shorter intervals are useless."""
WARM_S = 60.0
FASTEST = 2.0
SPEED = 1.5
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": str(EXECUTORS),
}
"""Spark's dynamic allocation, with its default times: scale out after a second of pending tasks, in after an idle minute."""


@dataclass(frozen=True)
class Call:
    number: int


@dataclass(frozen=True)
class Contender:
    """The policy and the settings of an application."""

    policy: str = "static"
    settings: Mapping[str, object] = field(default_factory=dict)
    executors: str = "elastic"
    slots: int = EXECUTORS
    conf: Mapping[str, str] = field(default_factory=dict)


def sides(mean_busy: float) -> dict[str, Contender]:
    """All contenders by the names in the contract. ``mean_busy``: the mean number of busy executors."""
    mean = math.ceil(mean_busy)
    return {
        "fixed-peak": Contender("static", {"degree": EXECUTORS}, "fixed"),
        "fixed-mean": Contender("static", {"degree": mean}, "fixed", mean),
        "dynamic-allocation": Contender("static", {"degree": EXECUTORS}, "spark", conf=DYNAMIC),
        "spark-ratio": Contender("spark-ratio"),
        "flink": Contender("flink"),
        "tide": Contender("tide"),
    }


NAMES = tuple(sides(1.0))


def measure(
    policies: Sequence[str] | None = None, trace: str = "psps_sbac", data: str | None = None, speed: float = SPEED,
    seconds: float | None = None, progress: TextIO = sys.stderr,
) -> dict[str, Any]:  # fmt: skip
    """Run the contenders one after the other, each for the whole trace, or for ``seconds`` of it."""
    policies = policies or NAMES
    for name in policies:
        if name not in NAMES:
            raise OptionError(f"no policy {name!r} in this benchmark; {nearest(name, NAMES)}")
    if not 0 < speed <= FASTEST:
        raise OptionError(
            f"speed={speed:g} is not allowed; give more than 0 and at most {FASTEST:g}, above which the load differs too much"
        )
    whole = named(trace, data)
    seconds = min(seconds or math.inf, whole.end / speed)
    rate = scaled(whole, speed, seconds)
    busy = CALL_S * rate.count(seconds) / seconds
    rows = []
    with tempfile.TemporaryDirectory(prefix="springtide-") as folder:
        conf = with_archive(Path(folder) / "classes")
        for name in policies:
            print(f"{name}: {seconds:.0f} s", file=progress, flush=True)
            place = Path(folder) / name
            with standalone(place, cores=EXECUTORS) as master:
                rows.append({"policy": name, **_run(sides(busy)[name], rate, master, place, seconds, conf)})
            print(rows[-1], file=progress, flush=True)
    return {
        "work": "wait",
        "trace": trace,
        "speed": speed,
        "target_ms": 1000 * TARGET_S,
        "call_ms": 1000 * CALL_S,
        "rows": rows,
    }


def scaled(rate: Rate, speed: float, seconds: float) -> Rate:
    """The trace, played faster and scaled: at its peak within ``seconds``, ``BUSY_AT_PEAK`` executors are busy."""
    played = [value for start, value in zip(rate.starts, rate.values, strict=True) if start < seconds * speed]
    factor = BUSY_AT_PEAK / CALL_S / max(played)
    starts = tuple(start / speed for start in rate.starts)
    return Rate(starts, tuple(value * factor for value in rate.values), rate.end / speed, rate.label)


def _made(draw: st.Draw) -> Call:
    return Call(draw.index)


def _called(call: Call) -> Call:
    time.sleep(CALL_S)
    return call


def _run(
    side: Contender, rate: Rate, master: str, place: Path, seconds: float, conf: Mapping[str, str]
) -> dict[str, Any]:  # fmt: skip
    calls = st.source.generate(_made, rate=rate)
    topology = calls.map(_called, name="call", parallelism=EXECUTORS).to(st.sink.discard()).named("calls")
    done = st.run(
        topology, policy=side.policy, settings=side.settings, max_slots=side.slots, target=TARGET_S, master=master,
        interval=INTERVAL_S, executors=side.executors, runs=place / "runs", duration=seconds,
        conf={**conf, "spark.cores.max": str(side.slots), **side.conf},
    )  # fmt: skip
    reports = RunFolder(done.folder).batches()
    latency, backlog = done.summary["latency_ms"], [report.backlog for report in reports]
    return {
        "violation_ratio": violation_ratio(reports, TARGET_S, WARM_S),
        "executor_seconds": done.summary["executor_seconds"],
        "latency_ms": latency,
        "backlog_rows_end": backlog[-1] if backlog else None,
        "rows_out": done.summary["rows_out"],
        "reconfigurations": done.summary["reconfigurations"],
        "seconds": round(reports[-1].committed - reports[0].started, 1) if reports else 0.0,
    }
