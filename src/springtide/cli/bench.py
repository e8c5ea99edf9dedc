"""``springtide bench``: measurements, as ratios within one run."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from springtide.cli.common import errors, print_json
from springtide.cli.tables import count, facts_table


@click.group()
def bench() -> None:
    """Measurements, as ratios within one run."""


@bench.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--batches", default=40, show_default=True, type=click.IntRange(5), help="Measured batches per side and round.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def overhead(rounds: int, batches: int, as_json: bool) -> None:
    """What Springtide adds to a hand-written query, and what its session settings save."""
    from springtide.bench import overhead as measure
    from springtide.cli.tables import overhead_table

    with errors():
        document = measure.measure(rounds, batches)
    if as_json:
        print_json(document)
    else:
        Console().print(overhead_table(document))


@bench.command("simulator")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--records", default=4_000_000, show_default=True, type=click.IntRange(1_000), help="Records of our side.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_simulator(rounds: int, records: int, as_json: bool) -> None:
    """How fast the simulator is, beside the same model in SimPy."""
    from springtide.cli.simulate import speed_table

    with errors():
        from springtide.bench import simulator as measure

        document = measure.measure(rounds, records)
    if as_json:
        print_json(document)
    else:
        Console().print(speed_table(document))


@bench.command()
@click.option("--work", default="wait", show_default=True, type=click.Choice(["wait", "cpu"]), help="What a record's cost is.")
@click.option("--quick", is_flag=True, help="Fewer rounds and less warm-up: within three minutes, and less sure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def balance(work: str, quick: bool, as_json: bool) -> None:
    """How evenly groupings spread work on Spark, beside Spark's own partitioning."""
    from springtide.cli.tables import balance_table

    with errors():
        from springtide.bench import balance as measure

        document = measure.measure(work, measure.QUICK if quick else measure.FULL)
    if as_json:
        print_json(document)
    else:
        Console().print(balance_table(document))


@bench.command()
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1), help="Shares that every grouping routes.")
@click.option("--fresh", default=15, show_default=True, type=click.IntRange(1), help="First batches with fresh workers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def routing(rounds: int, fresh: int, as_json: bool) -> None:
    """What routing costs a task, and the first batch of fresh Python workers."""
    from springtide.cli.tables import routing_table

    with errors():
        from springtide.bench import routing as measure

        document = measure.measure(rounds, fresh)
    if as_json:
        print_json(document)
    else:
        Console().print(routing_table(document))


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decisions(as_json: bool) -> None:
    """How long one decision of every scaling policy takes, for 10, 100 and 1,000 operators."""
    from springtide.cli.tables import decisions_table

    with errors():
        from springtide.bench import decisions as measure

        document = measure.measure()
    if as_json:
        print_json(document)
    else:
        Console().print(decisions_table(document))


@bench.command()
@click.option("--policies", help="Some of them only, with commas; each takes the trace's length, 15 minutes.")
@click.option("--trace", default="psps_sbac", show_default=True, help="The load: a trace's name, or a CSV file.")
@click.option("--data-dir", help="The folder of recorded traces; or set SPRINGTIDE_DATA.")
@click.option("--speed", default=1.5, show_default=True, help="How fast the trace is played; at most twice.")
@click.option("--seconds", type=float, help="Only the beginning of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def executors(
    policies: str | None, trace: str, data_dir: str | None, speed: float, seconds: float | None, as_json: bool
) -> None:  # fmt: skip
    """Executors that follow a load, beside fixed ones and Spark's dynamic allocation, on a standalone cluster."""
    from springtide.cli.tables import executors_table

    with errors():
        from springtide.bench import executors as measure

        chosen = [name.strip() for name in policies.split(",")] if policies else measure.NAMES
        document = measure.measure(chosen, trace, data_dir, speed, seconds)
    if as_json:
        print_json(document)
    else:
        Console().print(executors_table(document))


@bench.command()
@click.option("--parts", help="Some of throughput, pause and skew only, with commas.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option(
    "--rows", type=int, help="Throughput only with batches of so many rows: 2000 or 100000, which takes minutes a round."
)
@click.option("--omega", type=int, help="Skew only with popular keys that change so many times a minute: 0, 2, 8 or 16.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def state(parts: str | None, rounds: int, rows: int | None, omega: int | None, as_json: bool) -> None:
    """State: Spark's transformWithState and built-in aggregation beside Springtide's shards."""
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
    """What managers that raise, hang, die or answer nonsense cost the records that flow."""
    with errors():
        from springtide.bench import chaos as measure

        document = measure.measure(rounds)
    if as_json:
        print_json(document)
    else:
        Console().print(facts_table([(name.replace("_", " "), str(value)) for name, value in document.items()]))


@bench.command("rounds")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def control_rounds(as_json: bool) -> None:
    """How long one round of hierarchical control takes, for up to 1,000 operators on 200 nodes."""
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
