"""The measurements of several intervals as one snapshot, for managers whose period is longer than an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot

Gathered = Mapping[str, Any]
"""Sums that JSON can carry. A value that is unknown in an interval is unknown in the sum."""

SUMMED = ("rows_in", "rows_out", "failures", "busy_s", "served")


def gathered(before: Gathered | None, snapshot: Snapshot) -> Gathered:
    """Add an interval. Only a few sums of each operator are retained, not whole snapshots."""
    past: Gathered = before or {"seconds": 0.0, "blind": False, "batches": [], "operators": {}, "sources": {}}
    return {
        # a source without measurements may have had no batch; if all operators lack them too, nothing was measured
        "blind": past["blind"] or all(operator.rows_in is None for operator in snapshot.operators),
        "seconds": past["seconds"] + snapshot.interval_s,
        "batches": [*past["batches"], *([rows, seconds] for rows, seconds in snapshot.batches)],
        "operators": {o.name: _operator(past["operators"].get(o.name), o) for o in snapshot.operators},
        "sources": {source.name: _source(past["sources"].get(source.name), source) for source in snapshot.sources},
    }


def whole(sums: Gathered, snapshot: Snapshot) -> Snapshot:
    """The latest snapshot, as if its interval had covered all gathered intervals."""
    seconds = sums["seconds"]
    return replace(
        snapshot, interval_s=seconds, batches=tuple((rows, took) for rows, took in sums["batches"]), rate=None, latency=None,
        operators=tuple(_over(sums["operators"][operator.name], operator, seconds) for operator in snapshot.operators),
        sources=tuple(
            SourceSnapshot(source.name, None) if sums["blind"] else _whole_source(sums["sources"][source.name], source)
            for source in snapshot.sources
        ),
    )  # fmt: skip


def _operator(before: Gathered | None, operator: OperatorSnapshot) -> Gathered:
    past: Gathered = before or {
        **dict.fromkeys(SUMMED, 0),
        "inputs": {},
        "backlog": None,
        "known": [False] * 2,
        "response": [0.0, 0],
    }
    response, served = past["response"]
    if operator.latency_ms is not None and operator.served:
        response, served = response + operator.latency_ms * operator.served, served + operator.served
    known = [past["known"][0] or operator.rate is not None, past["known"][1] or operator.utilisation is not None]
    return {
        **{name: _plus(past[name], getattr(operator, name)) for name in SUMMED},
        "inputs": {name: past["inputs"].get(name, 0) + came for name, came in operator.inputs},
        "backlog": past["backlog"] if operator.backlog is None else operator.backlog,
        "known": known, "response": [response, served],
    }  # fmt: skip


def _over(sums: Gathered, operator: OperatorSnapshot, seconds: float) -> OperatorSnapshot:
    (rate, utilisation), (response, served), rows, busy = sums["known"], sums["response"], sums["rows_in"], sums["busy_s"]
    lasted = seconds > 0 and operator.degree > 0
    return replace(
        operator, **{name: sums[name] for name in SUMMED},
        inputs=tuple((name, sums["inputs"][name]) for name, _ in operator.inputs),
        rate=rows / seconds if rate and lasted and rows is not None else None,
        utilisation=busy / (operator.degree * seconds) if utilisation and lasted and busy is not None else None,
        backlog=sums["backlog"], latency_ms=response / served if served else None,
    )  # fmt: skip


def _source(before: Any, source: SourceSnapshot) -> list[Any]:
    """[rows, arrivals, arrival rates]: an interval without a measurement, as one without a batch, adds nothing."""
    rows, arrivals, *rates = before or (None, [])  # states of earlier versions have no rates
    known = [] if source.arrival_rate is None else [source.arrival_rate]
    read = rows if source.rows is None else (rows or 0) + source.rows
    return [read, [*arrivals, *source.arrivals], [*(rates[0] if rates else ()), *known]]


def _whole_source(sums: Any, source: SourceSnapshot) -> SourceSnapshot:
    rows, arrivals, rates = sums
    return SourceSnapshot(source.name, rows, tuple(arrivals), fmean(rates) if rates else None, source.backlog)


def _plus(before: float | None, more: float | None) -> float | None:
    return None if before is None or more is None else before + more
