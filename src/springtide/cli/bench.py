"""``springtide bench``: benchmarks, as ratios within one run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from springtide.cli.common import errors, print_json, show
from springtide.cli.tables import count, facts_table


@click.group()
def bench() -> None:
    """Run a benchmark; results are ratios within one run."""


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--batches", default=40, show_default=True, type=click.IntRange(5), help="Measured batches per side and round.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def overhead(rounds: int, batches: int, as_json: bool) -> None:
    """Measure the overhead over a hand-written query, and the gain by the session settings."""
    from springtide.bench import overhead as measure
    from springtide.cli.tables import overhead_table

    with errors():
        document = measure.measure(rounds, batches)
    show(document, as_json, overhead_table)


@bench.command("simulator")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option(
    "--records", default=4_000_000, show_default=True, type=click.IntRange(1_000), help="Records in Springtide's simulator."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_simulator(rounds: int, records: int, as_json: bool) -> None:
    """Compare the simulator's speed with SimPy's on the same model."""
    from springtide.cli.simulate import speed_table

    with errors():
        from springtide.bench import simulator as measure

        document = measure.measure(rounds, records)
    show(document, as_json, speed_table)


@bench.command()
@click.option("--work", default="wait", show_default=True, type=click.Choice(["wait", "cpu"]), help="Kind of a record's cost.")
@click.option("--quick", is_flag=True, help="Fewer rounds and less warm-up: less accurate, within three minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def balance(work: str, quick: bool, as_json: bool) -> None:
    """Compare how evenly groupings and Spark's own partitioning distribute work on Spark."""
    from springtide.cli.tables import balance_table

    with errors():
        from springtide.bench import balance as measure

        document = measure.measure(work, measure.QUICK if quick else measure.FULL)
    show(document, as_json, balance_table)


@bench.command()
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1), help="Shares that each grouping routes.")
@click.option("--fresh", default=15, show_default=True, type=click.IntRange(1), help="First batches with fresh workers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def routing(rounds: int, fresh: int, as_json: bool) -> None:
    """Measure the cost of routing in a task, and in the first batch of new Python workers."""
    from springtide.cli.tables import routing_table

    with errors():
        from springtide.bench import routing as measure

        document = measure.measure(rounds, fresh)
    show(document, as_json, routing_table)


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decisions(as_json: bool) -> None:
    """Measure the time of a decision of each scaling policy, for 10, 100 and 1,000 operators."""
    from springtide.cli.tables import decisions_table

    with errors():
        from springtide.bench import decisions as measure

        document = measure.measure()
    show(document, as_json, decisions_table)


@bench.command()
@click.option("--policies", help="Only these policies, separated by commas; each takes the trace's length, 15 minutes.")
@click.option("--trace", default="psps_sbac", show_default=True, help="The load: a trace's name, or a CSV file.")
@click.option("--data-dir", help="The folder of recorded traces; or set SPRINGTIDE_DATA.")
@click.option("--speed", default=1.5, show_default=True, help="Speed at which the trace is played; at most 2.")
@click.option("--seconds", type=float, help="Play only this part of the trace, from its start.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def executors(
    policies: str | None, trace: str, data_dir: str | None, speed: float, seconds: float | None, as_json: bool
) -> None:  # fmt: skip
    """Compare elastic executors with fixed ones and Spark's dynamic allocation, on a standalone cluster."""
    from springtide.cli.tables import executors_table

    with errors():
        from springtide.bench import executors as measure

        chosen = [name.strip() for name in policies.split(",")] if policies else measure.NAMES
        document = measure.measure(chosen, trace, data_dir, speed, seconds)
    show(document, as_json, executors_table)


@bench.command()
@click.option("--parts", help="Only these parts, separated by commas: throughput, pause, skew.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--rows", type=int, help="Throughput: only batches of this number of rows, 2000 or 100000 (minutes a round).")
@click.option("--omega", type=int, help="Skew: only with this number of changes of the popular keys a minute, 0, 2, 8 or 16.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def state(parts: str | None, rounds: int, rows: int | None, omega: int | None, as_json: bool) -> None:
    """Compare Springtide's state with Spark's transformWithState and built-in aggregation."""
    from springtide.cli.tables import state_tables

    with errors():
        from springtide.bench import state as measure

        chosen = [name.strip() for name in parts.split(",")] if parts else measure.PARTS
        document = measure.measure(chosen, rounds, rows, omega)
    if as_json:
        print_json(document)
    else:
        for table in state_tables(document):
            Console().print(table)


@bench.command()
@click.option("--rounds", default=6, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def chaos(rounds: int, as_json: bool) -> None:
    """Measure how much the data flow loses to policies that raise, hang, die or give invalid answers."""
    with errors():
        from springtide.bench import chaos as measure

        document = measure.measure(rounds)
    show(document, as_json, lambda facts: facts_table([(name.replace("_", " "), str(facts[name])) for name in facts]))


@bench.command("rounds")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def control_rounds(as_json: bool) -> None:
    """Measure the time of a round of hierarchical control, for up to 1,000 operators on 200 nodes."""
    with errors():
        from springtide.bench import rounds as measure

        document = measure.measure()
    if as_json:
        print_json(document)
        return
    table = Table("operators", "nodes", "ms", "messages")
    for row in document["rows"]:
        table.add_row(count(row["operators"]), count(row["nodes"]), f"{row['ms']:.1f}", count(row["messages"]))
    Console().print(table)


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds; engines take turns in each.")
@click.option("--records", default=400_000, show_default=True, type=click.IntRange(1_000), help="Records of the topic.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds for which the latency of each is measured.")
@click.option("--servers", help="A broker, host:port, in which topics are made; without it one is started.")
@click.option(
    "--jars", type=click.Path(path_type=Path), help="The folder for the jars of Spark's connector, which Maven fetches."
)
@click.option("--bytewax", help="A Python that has bytewax 0.21.1, confluent-kafka and msgspec; without it Bytewax is skipped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kafka(
    rounds: int, records: int, seconds: float, servers: str | None, jars: Path | None, bytewax: str | None, as_json: bool
) -> None:  # fmt: skip
    """Compare Springtide with Spark's own connector, a bare consumer, and Bytewax on a topic of Kafka."""
    from springtide.cli.tables import kafka_table

    with errors():
        from springtide.bench import kafka as measure

        document = measure.measure(rounds, records, seconds, servers, jars, bytewax)
    show(document, as_json, kafka_table)
