"""Metrics of a simulation, under the names used everywhere. Undefined metrics are None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from springtide.model.report import Latency
from springtide.sim.book import Counts, latency_of, share_above
from springtide.sim.engine import Engine
from springtide.sim.kernels import Floats, Ints
from springtide.sim.model import Model


@dataclass
class Ledger:
    """Totals over the intervals: replicas over time, changes, pauses, arrivals and departures."""

    begin: float = 0.0  # nothing is measured before
    since: float = 0.0
    replicas: int = 0
    most: int = 0
    replica_seconds: float = 0.0
    reconfigurations: int = 0
    down_s: float = 0.0
    down_until: float = 0.0
    gaps: list[float] = field(default_factory=list)  # |in - out| / in of each interval
    bins: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    latency_s: float = 0.0
    completions: float = 0.0

    def set_replicas(self, now: float, replicas: int) -> None:
        self.replica_seconds += max(0.0, now - max(self.since, self.begin)) * self.replicas
        self.since, self.replicas, self.most = now, replicas, max(self.most, replicas)

    def pause(self, now: float, seconds: float) -> None:
        """Add to the downtime; time in which several operators are down counts once."""
        self.down_s += max(0.0, now + seconds - max(now, self.down_until))
        self.down_until = max(self.down_until, now + seconds)

    def interval(self, expected: float, left: float) -> None:
        if expected > 0:
            self.gaps.append(abs(expected - left) / expected)

    def close_book(self, engine: Engine) -> Latency | None:
        """Add the latencies since the last call to the totals, and return them."""
        bins, sums = engine.book.bins, engine.book.sums
        recent = latency_of(bins, sums[0] - self.latency_s, sums[1] - self.completions)
        self.bins = bins.copy() if not len(self.bins) else self.bins + bins
        self.latency_s, self.completions = float(sums[0]), float(sums[1])
        bins[:] = 0
        return recent


def metrics(engine: Engine, ledger: Ledger, end: float, target_s: float | None) -> dict[str, Any]:
    """All metrics of a run that ended at ``end`` seconds. The throughput counts source records that have left."""
    ledger.close_book(engine)
    ledger.set_replicas(end, ledger.replicas)
    totals = {name: station.totals for name, station in engine.stations.items()}
    out = sum(totals[operator.name].served for operator in engine.model.exits)
    lost = sum(counts.lost for counts in totals.values()) + engine.refused
    late = sum(counts.late for counts in totals.values())
    latency = latency_of(ledger.bins, ledger.latency_s, ledger.completions)
    processed = out / engine.expected if engine.expected > 0 else None
    return {
        "latency_ms": None if latency is None else asdict(latency),
        "violation_ratio": None if target_s is None else violation_ratio(engine.book.seconds, target_s, end, engine.oldest()),
        "violation_ratio_records": None if target_s is None else share_above(ledger.bins, target_s),
        "throughput_rows_s": processed * engine.received / end if processed is not None and end > 0 else None,
        "processed_ratio": processed,
        "dephased_ratio": _dephased(engine, out, lost, late, end),
        "throughput_degradation": float(np.mean(ledger.gaps)) if ledger.gaps else None,
        "replicas": {"mean": ledger.replica_seconds / (end - ledger.begin) if end > ledger.begin else None, "max": ledger.most},
        "replica_seconds": ledger.replica_seconds,
        "reconfigurations": ledger.reconfigurations,
        "downtime_ratio": min(ledger.down_s, end) / end if end > 0 else None,
        "control_messages": _messages(engine),
        "rows_in": engine.received,
        "rows_out": out,
        "rows_lost": lost,
        "rows_timed_out": late,
        "rows_there": engine.in_flight,
        "duration_s": end,
        "operators": [_operator(engine.model, operator.name, totals) for operator in engine.model.topology.scalable],
    }


def _operator(model: Model, name: str, totals: Mapping[str, Counts]) -> dict[str, Any]:
    """The totals of an operator: its share of each station that it is folded into. The head gets all losses."""
    rows_in = rows_out = busy_s = response_s = served = 0.0
    lost = late = 0
    for station in model.operators:
        for member, share, rows in station.folded:
            if member == name:
                own = totals[station.name]
                rows_in, rows_out = rows_in + own.rows_in * rows, rows_out + own.served * rows
                busy_s, response_s, served = busy_s + own.busy_s * share, response_s + own.response_s, served + own.served
                lost, late = (lost + own.lost, late + own.late) if station.head == name else (lost, late)
    return {
        "name": name, "rows_in": round(rows_in), "rows_out": round(rows_out), "rows_lost": lost, "rows_timed_out": late,
        "busy_s": busy_s, "response_ms": 1000 * response_s / served if served else None,
    }  # fmt: skip


def violation_ratio(seconds: Floats, target_s: float, end: float, oldest_created: float) -> float | None:
    """The share of seconds with a mean latency above the target, among those with departures or a backlog.

    In a second without departures the age of the oldest record counts, i.e. of the next to leave. ``seconds``: by second,
    departures, the sum of their latencies and the earliest creation time.
    """
    slices = seconds[: max(1, int(np.ceil(end)))]
    counts, sums, oldest = slices.T
    upcoming = np.append(np.minimum.accumulate(np.append(oldest, oldest_created)[::-1])[::-1][1:], np.inf)[: len(counts)]
    ends = np.minimum(np.arange(1, len(counts) + 1), end)
    empty = counts == 0
    ages = np.where(empty, ends - upcoming, sums / np.where(empty, 1.0, counts))
    counted = ~empty | (upcoming < ends)
    return float((ages[counted] > target_s).mean()) if counted.any() else None


def _dephased(engine: Engine, out: int, lost: int, late: int, end: float) -> float | None:
    """The share of records beyond the timeout or lost, among those that left or should have."""
    if not np.isfinite(engine.beyond):
        return None
    overdue = engine.older_than(end - engine.beyond)
    beyond = engine.book.sums[2] + lost + late + overdue
    ended = out + lost + late + overdue
    return float(beyond / ended) if ended else None


def _messages(engine: Engine) -> int | None:
    """The control messages of the groupings that count them."""
    counted = [
        station.router.state.messages for station in engine.stations.values() if hasattr(station.router.state, "messages")
    ]
    return int(sum(np.sum(messages) for messages in counted)) if counted else None
