"""``springtide simulate``: run a topology on a simulated cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from springtide.cli.common import DATA_DIR, GRANT, MANAGERS, POLICY, errors, parted, show
from springtide.cli.tables import UNKNOWN, count, facts_table, latency_facts, mean_max, number
from springtide.model.duration import seconds


@click.command()
@click.argument("topology")
@click.option("--trace", metavar="CSV", help="Records/s over time, instead of the sources' own rates.")
@click.option("--arrivals", help="Arrivals within a step of the rate: even or poisson. Default: the source's own.")
@DATA_DIR
@POLICY
@click.option("--guard", "guards", multiple=True, metavar="NAME:P=V,…", help="A guard between policy and plan; repeatable.")
@GRANT
@MANAGERS
@click.option("--starting", default="0s", show_default=True, help="Start-up time of a new replica.")
@click.option(
    "--grouping",
    show_default="tide",
    help="Grouping of operators that name none; operators in a line have none unless it is given.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the policy or, as grouping.NAME, of the grouping.",
)
@click.option(
    "--mode", default="continuous", show_default=True, help="continuous, like the papers' engines, or micro-batch, like Spark."
)
@click.option("--trigger", show_default="0s", help="Micro-batch: minimum time between two batches.")
@click.option(
    "--shed-after", help="Continuous: drop records that are older than this when a replica is free for them, such as 30s."
)
@click.option(
    "--queue-limit",
    type=click.IntRange(1),
    help="Continuous: limit of a replica's queue; beyond it the oldest records are dropped.",
)
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same result.")
@click.option("--duration", help="End after this time, such as 10m. Default: when the trace ends.")
@click.option("--target", help="Target of the mean latency in each second, such as 2s.")
@click.option("--interval", default="1s", show_default=True, help="Time between two decisions.")
@click.option(
    "--reconfiguration", default="none", show_default=True, help="Cost of a change of degrees: none, pause or restart."
)
@click.option("--pause", default="0s", show_default=True, help="Duration of a pause or a restart.")
@click.option("--max-slots", default=8, show_default=True, type=click.IntRange(1), help="Maximum number of replicas.")
@click.option("--r-over", type=click.IntRange(1), help="Replicas that suffice at any time, the base of the saved resources.")
@click.option("--costs", metavar="JSON", help="Costs from `springtide calibrate`. Default: costs are measured, without Spark.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def simulate(
    topology: str, pairs: tuple[str, ...], pause: str, data_dir: Path | None, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Simulate TOPOLOGY: a built-in (tweets), a Python file (job.py or job.py:name), module:attribute, or a modelled
    line of operators: line4, line4:12.5ms, line1:70ms:even."""
    from springtide.cli import load

    with errors():
        from springtide.apps.traces import named
        from springtide.sim import Reconfiguration
        from springtide.sim.entry import simulated
        from springtide.sim.options import SimulationOptions

        of_policy, of_grouping = parted(pairs)
        if options["trace"] is not None:
            options["trace"] = named(options["trace"], data_dir)
        options["reconfiguration"] = Reconfiguration(options["reconfiguration"], seconds(pause, "pause"))
        if options["grouping"] is None:
            del options["grouping"]
        asked = SimulationOptions.of({**options, "settings": of_policy, "grouping_settings": of_grouping})
        chosen = load.model_or_topology(topology, options.get("grouping"))
        with _progress() as progress:
            outcome = simulated(chosen, asked, progress)
    show(dict(outcome.summary), as_json, simulation_table)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float, float], None] | None]:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda now, end: bar.update(task, completed=now, total=end if end < float("inf") else None)


def simulation_table(summary: Mapping[str, Any]) -> RenderableType:
    """The summary for people."""
    title = f"{summary['topology']} · {summary['policy']} · {summary['grouping']} · {summary['mode']} · seed {summary['seed']}"
    parts: list[RenderableType] = [Text(title, style="bold"), facts_table(_facts(summary))]
    if summary["policy_failures"]:
        failed = f"{summary['policy']} failed in {summary['policy_failures']} decisions, first with {summary['policy_failure']}"
        parts.append(Text(failed, style="red"))
    return Group(*parts)


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("simulated", number(summary["duration_s"], "s")),
        ("records in", count(summary["rows_in"])),
        ("records out", count(summary["rows_out"])),
        ("records lost", count(summary["rows_lost"])),
        ("records timed out", count(summary["rows_timed_out"])),
        ("records still there", count(summary["rows_there"])),
        ("throughput", number(summary["throughput_rows_s"], " records/s")),
        ("processed", _share(summary["processed_ratio"])),
        *latency_facts(summary["latency_ms"]),
        ("seconds above the target", _share(summary["violation_ratio"])),
        ("replicas, mean (max)", mean_max(summary["replicas"])),
        ("replica seconds", number(summary["replica_seconds"])),
        ("reconfigurations", count(summary["reconfigurations"])),
        ("downtime", _share(summary["downtime_ratio"])),
        ("control messages", count(summary["control_messages"])),
    ]


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def speed_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench simulator``."""
    model, sojourn = document["model"], document["mean_sojourn"]
    title = f"M/M/{model['k']}, load {model['rho']:g}, medians of {document['rounds']} rounds"
    table = Table("", "records", "events/s", "mean sojourn", title=title)
    table.add_row("Springtide", count(document["records"]), count(document["events_per_s"]), f"{sojourn['springtide']:.4f}")
    table.add_row("SimPy", count(document["simpy_records"]), count(document["simpy_events_per_s"]), f"{sojourn['simpy']:.4f}")
    table.add_row("closed form", "", "", f"{sojourn['closed_form']:.4f}")
    low, high = document["ratio_iqr"]
    return Group(table, Text(f"{document['ratio']:.0f} times as fast (IQR {low:.0f} to {high:.0f})"))
