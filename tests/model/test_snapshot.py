"""Snapshots as JSON, those of earlier versions included."""

from __future__ import annotations

import json
from typing import Any

import pytest

from springtide.model.snapshot import Snapshot, SourceSnapshot

RECORDED = """
{"at": 1.0, "interval_s": 1.0, "plan": {"degrees": {"a": 1}, "slots": 1, "widths": {"source": 1, "a": 1}, "read_limit": null,
"trigger_s": 0.0, "knowledge": 0, "shed_after_s": null, "shed_before": null, "reason": "", "actions": [], "shards": {}},
"operators": [{"name": "a", "degree": 1, "width": 1, "rows_in": 2, "rows_out": 1, "failures": 0, "busy_s": 0.00124, "rate": 2.0,
"utilisation": 0.00124, "backlog": 0, "latency_ms": 1.24, "served": 1, "inputs": [["source", 2]], "limit": 60, "shards": null,
"replicas": []}], "batches": [], "rate": 2.0, "backlog": 0, "latency": {"mean": 1.24, "p50": 1.24, "p95": 1.24, "p99": 1.24},
"sources": [{"name": "source", "rows": 2, "arrivals": [1.0, 3.0]}], "nodes": [], "target_s": null, "slots": null,
"trigger_s": null, "starting_s": null, "pause_s": null, "there": null, "batch_overhead_s": null}
"""
"""As written before sources had an arrival rate and a backlog."""


def recorded(**changed: Any) -> dict[str, Any]:
    return {**json.loads(RECORDED), **changed}


def test_a_recorded_snapshot_is_read_and_what_it_lacks_is_unknown() -> None:
    snapshot = Snapshot.from_json(recorded())
    assert snapshot.sources == (SourceSnapshot("source", 2, (1.0, 3.0), None, None),)
    assert snapshot.arrival_rate is None
    assert snapshot["a"].inputs == (("source", 2),)


def test_a_snapshot_is_the_same_after_json() -> None:
    source = SourceSnapshot("source", 2, (1.0, 3.0), 2.5, 7)
    snapshot = Snapshot.from_json(recorded(sources=[vars(source)]))
    assert snapshot.sources == (source,)
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot


def test_a_source_may_say_nothing_of_its_arrivals() -> None:
    assert SourceSnapshot.from_json({"name": "source", "rows": None}) == SourceSnapshot("source", None)


def test_what_cannot_have_been_measured_is_unknown() -> None:
    source = SourceSnapshot("source", -1, (1.0, float("nan")), float("inf"), -5)
    assert source == SourceSnapshot("source", None, (), None, None)


@pytest.mark.parametrize(("rates", "together"), [((1.0, 2.0), 3.0), ((1.0, None), None), ((0.0,), 0.0), ((), None)])
def test_the_arrivals_of_all_sources_are_known_where_each_is(rates: tuple[float | None, ...], together: float | None) -> None:
    sources = [vars(SourceSnapshot(f"s{number}", 1, (), rate)) for number, rate in enumerate(rates)]
    assert Snapshot.from_json(recorded(sources=sources)).arrival_rate == together
