"""The benchmark of decisions: its cluster is sound, all policies that can decide do so, and the numbers add up."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from springtide.bench import decisions
from springtide.cli.main import cli
from springtide.cli.tables import decisions_table
from springtide.policy import registry

SIZES = (5, 20)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return decisions.measure(sizes=SIZES, rounds=1, progress=io.StringIO())


def rendered(document: dict[str, Any]) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(decisions_table(document))
    return text.getvalue()


def test_every_registered_policy_has_a_row_of_every_size(document: dict[str, Any]) -> None:
    names = [cls.name for cls in registry.available("scale")]
    assert [(row["policy"], row["operators"]) for row in document["rows"]] == [(name, size) for size in SIZES for name in names]
    assert all(row["nodes"] == row["operators"] for row in document["rows"])
    json.dumps(document, allow_nan=False)


def test_what_is_timed_are_decisions_that_ask_for_something(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        if row["policy"] == "clairvoyant":
            assert row["ms"] is None
        elif not row["exempt"]:
            assert row["decisions"] > 0, row
            assert row["ms"] > 0, row
    exempt = {row["policy"] for row in document["rows"] if row["exempt"]}
    assert exempt == {"q-learning", "model-based", "rlearning", "clairvoyant"}


def test_flink_is_timed_with_a_full_window_and_spark_ratio_in_every_other_interval(document: dict[str, Any]) -> None:
    """Eight timed intervals of 30 s: Flink's rule, whose window is full by then, acts in each, spark-ratio every 60 s."""
    made = {(row["policy"], row["operators"]): row["decisions"] for row in document["rows"]}
    assert made["flink", 20] == decisions.TIMED == 8
    assert made["spark-ratio", 20] == 4


def test_growth_is_one_size_over_the_one_before(document: dict[str, Any]) -> None:
    took = {(row["policy"], row["operators"]): row["ms"] for row in document["rows"]}
    growth = {line["policy"]: line["factors"] for line in document["growth"]}
    assert growth["tide"] == [round(took["tide", 20] / took["tide", 5], 2)]
    assert growth["clairvoyant"] == [None]


def test_the_collector_watches_everything_again() -> None:
    decisions.measure(sizes=(2,), rounds=1, progress=io.StringIO())
    assert gc.get_freeze_count() == 0


def test_the_table_names_who_is_too_slow(document: dict[str, Any]) -> None:
    assert "Not measured." in rendered(document)
    rows = [
        {"policy": name, "operators": 1_000, "nodes": 1_000, "ms": ms, "exempt": exempt}
        for name, ms, exempt in (("quick", 49.9, False), ("slow", 50.0, False), ("learner", 900.0, True), ("bound", None, True))
    ]
    made: dict[str, Any] = {"limit_ms": 50.0, "rows": rows, "growth": decisions.growth(rows)}
    assert "Too slow: slow." in rendered(made)
    made["rows"] = [row for row in rows if row["policy"] != "slow"]
    made["growth"] = decisions.growth(made["rows"])
    assert "All do that are not exempt." in rendered(made)


def test_the_command_prints_one_document(monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]) -> None:
    monkeypatch.setattr(decisions, "measure", lambda: document)
    printed = CliRunner().invoke(cli, ["bench", "decisions", "--json"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == document


def flows(size: int) -> Iterator[tuple[str, Any]]:
    for snapshot in decisions.snapshots(size, 3, seed=1):
        for operator in snapshot.operators:
            yield operator.name, (operator, snapshot)


def test_the_cluster_is_a_graph_whose_records_add_up() -> None:
    """An operator reads sources or operators before it, gets what they sent, and is done with no more than came and waited."""
    waited: dict[str, int] = {}
    for name, (operator, snapshot) in flows(60):
        before = {o.name: o.rows_out for o in snapshot.operators[: snapshot.operators.index(operator)]}
        sent = before | {source.name: source.rows for source in snapshot.sources}
        assert operator.inputs
        assert all(rows == sent[producer] for producer, rows in operator.inputs)
        assert operator.rows_in == sum(rows for _, rows in operator.inputs)
        assert operator.served <= operator.rows_in + waited.get(name, 0)
        assert 0 < operator.utilisation <= 1
        assert len(operator.replicas) == operator.degree
        waited[name] = operator.backlog


def test_the_cluster_has_nodes_with_what_their_replicas_use_and_arrivals_by_the_second() -> None:
    snapshot = decisions.snapshots(60, 1, seed=1)[0]
    assert len(snapshot.nodes) == 60
    used = {node.name: 0.0 for node in snapshot.nodes}
    for operator in snapshot.operators:
        for replica in operator.replicas:
            used[replica.node] += replica.utilisation or 0.0
    assert {node.name: node.used for node in snapshot.nodes} == pytest.approx(used, abs=0.001)
    assert all(len(source.arrivals) == 30 and sum(source.arrivals) == source.rows for source in snapshot.sources)
    assert decisions.snapshots(60, 2, seed=1)[0] == snapshot
    assert decisions.snapshots(60, 1, seed=2)[0] != snapshot
