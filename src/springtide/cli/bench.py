"""``springtide bench``: benchmarks, as ratios within one run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table

from springtide.cli import tables
from springtide.cli.common import AS_JSON, errors, show
from springtide.cli.simulate import speed_table

ROUNDS = "Rounds; sides alternate in each."


@click.group()
def bench() -> None:
    """Run a benchmark; results are ratios within one run."""


def _measured(as_json: bool, table: Callable[[Any], RenderableType], name: str, *arguments: object) -> None:
    """Run a benchmark, and print its result. Only now is its module imported, which may need Spark or numba."""
    with errors():
        document = importlib.import_module(f"springtide.bench.{name}").measure(*arguments)
    show(document, as_json, table)


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help=ROUNDS)
@click.option("--batches", default=40, show_default=True, type=click.IntRange(5), help="Measured batches per side and round.")
@AS_JSON
def overhead(rounds: int, batches: int, as_json: bool) -> None:
    """Measure the overhead over a hand-written query, and the gain by the session settings."""
    _measured(as_json, tables.overhead_table, "overhead", rounds, batches)


@bench.command("simulator")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help=ROUNDS)
@click.option(
    "--records", default=4_000_000, show_default=True, type=click.IntRange(1_000), help="Records in Springtide's simulator."
)
@AS_JSON
def bench_simulator(rounds: int, records: int, as_json: bool) -> None:
    """Compare the simulator's speed with SimPy's on the same model."""
    _measured(as_json, speed_table, "simulator", rounds, records)


@bench.command()
@click.option("--work", default="wait", show_default=True, type=click.Choice(["wait", "cpu"]), help="Kind of a record's cost.")
@click.option("--quick", is_flag=True, help="Fewer rounds and less warm-up: less accurate, within three minutes.")
@AS_JSON
def balance(work: str, quick: bool, as_json: bool) -> None:
    """Compare how evenly groupings and Spark's own partitioning distribute work on Spark."""
    _measured(as_json, tables.balance_table, "balance", work, quick)


@bench.command()
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1), help="Shares that each grouping routes.")
@click.option("--fresh", default=15, show_default=True, type=click.IntRange(1), help="First batches with fresh workers.")
@AS_JSON
def routing(rounds: int, fresh: int, as_json: bool) -> None:
    """Measure the cost of routing in a task, and in the first batch of new Python workers."""
    _measured(as_json, tables.routing_table, "routing", rounds, fresh)


@bench.command()
@AS_JSON
def decisions(as_json: bool) -> None:
    """Measure the time of a decision of each scaling policy, for 10, 100 and 1,000 operators."""
    _measured(as_json, tables.decisions_table, "decisions")


@bench.command()
@click.option("--policies", help="Only these policies, separated by commas; each takes the trace's length, 15 minutes.")
@click.option("--trace", default="psps_sbac", show_default=True, help="The load: a trace's name, or a CSV file.")
@click.option("--data-dir", help="The folder of recorded traces; or set SPRINGTIDE_DATA.")
@click.option("--speed", default=1.5, show_default=True, help="Speed at which the trace is played; at most 2.")
@click.option("--seconds", type=float, help="Play only this part of the trace, from its start.")
@AS_JSON
def executors(
    policies: str | None, trace: str, data_dir: str | None, speed: float, seconds: float | None, as_json: bool
) -> None:  # fmt: skip
    """Compare elastic executors with fixed ones and Spark's dynamic allocation, on a standalone cluster."""
    _measured(as_json, tables.executors_table, "executors", _names(policies), trace, data_dir, speed, seconds)


@bench.command()
@click.option("--parts", help="Only these parts, separated by commas: throughput, pause, skew.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help=ROUNDS)
@click.option("--rows", type=int, help="Throughput: only batches of this number of rows, 2000 or 100000 (minutes a round).")
@click.option("--omega", type=int, help="Skew: only with this number of changes of the popular keys a minute, 0, 2, 8 or 16.")
@AS_JSON
def state(parts: str | None, rounds: int, rows: int | None, omega: int | None, as_json: bool) -> None:
    """Compare Springtide's state with Spark's transformWithState and built-in aggregation."""
    _measured(as_json, lambda document: Group(*tables.state_tables(document)), "state", _names(parts), rounds, rows, omega)


@bench.command()
@click.option("--rounds", default=6, show_default=True, type=click.IntRange(1), help=ROUNDS)
@AS_JSON
def chaos(rounds: int, as_json: bool) -> None:
    """Measure how much the data flow loses to policies that raise, hang, die or give invalid answers."""
    _measured(as_json, _chaos_table, "chaos", rounds)


@bench.command("rounds")
@AS_JSON
def control_rounds(as_json: bool) -> None:
    """Measure the time of a round of hierarchical control, for up to 1,000 operators on 200 nodes."""
    _measured(as_json, _rounds_table, "rounds")


def _names(text: str | None) -> Sequence[str] | None:
    """Names separated by commas; None for all."""
    return [name.strip() for name in text.split(",")] if text else None


def _chaos_table(document: Mapping[str, Any]) -> RenderableType:
    return tables.facts_table([(name.replace("_", " "), str(value)) for name, value in document.items()])


def _rounds_table(document: Mapping[str, Any]) -> RenderableType:
    table = Table("operators", "nodes", "ms", "messages")
    for row in document["rows"]:
        operators, nodes, messages = (tables.count(row[name]) for name in ("operators", "nodes", "messages"))
        table.add_row(operators, nodes, f"{row['ms']:.1f}", messages)
    return table


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds; engines take turns in each.")
@click.option("--records", default=400_000, show_default=True, type=click.IntRange(1_000), help="Records of the topic.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds for which the latency of each is measured.")
@click.option("--servers", help="A broker, host:port, in which topics are made; without it one is started.")
@click.option(
    "--jars", type=click.Path(path_type=Path), help="The folder for the jars of Spark's connector, which Maven fetches."
)
@click.option("--bytewax", help="A Python that has bytewax 0.21.1, confluent-kafka and msgspec; without it Bytewax is skipped.")
@AS_JSON
def kafka(
    rounds: int, records: int, seconds: float, servers: str | None, jars: Path | None, bytewax: str | None, as_json: bool
) -> None:
    """Compare Springtide with Spark's own connector, a bare consumer, and Bytewax on a topic of Kafka."""
    _measured(as_json, tables.kafka_table, "kafka", rounds, records, seconds, servers, jars, bytewax)
