"""``springtide compare``: policies side by side on one trace, in the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from springtide.cli.common import AS_JSON, COSTS, DATA_DIR, errors, parted, print_json
from springtide.cli.tables import count, milliseconds, number
from springtide.errors import OptionError, RunError

if TYPE_CHECKING:
    from springtide.sim.compare import Comparison


@click.command()
@click.argument("topology")
@click.option("--trace", required=True, metavar="CSV", help="Records/s over time: a CSV file, or a trace by name (see below).")
@DATA_DIR
@click.option("--policies", metavar="A,B,…", help="Policies to compare. Default: all.")
@click.option(
    "--set", "pairs", multiple=True, metavar="POLICY.NAME=VALUE",
    help="A parameter of a policy or, as grouping.NAME, of the grouping; repeatable.",
)  # fmt: skip
@click.option(
    "--grouping",
    metavar="NAME",
    help="Grouping of operators that name none (tide); operators in a line have none unless it is given.",
)
@click.option("--interval", default="30s", show_default=True, help="Time between two decisions.")
@click.option("--target", default="250ms", show_default=True, help="Target of the mean latency in each second.")
@click.option("--starting", default="0s", show_default=True, help="Start-up time of a new replica.")
@click.option("--max-slots", type=click.IntRange(1), help="Maximum number of replicas of all operators together.")
@COSTS
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same result.")
@click.option("--processes", type=click.IntRange(1), help="Policies that run at a time. Default: one for each core.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="PNG", help="File for a plot of rate and replicas."
)
@AS_JSON
def compare(
    topology: str, trace: str, data_dir: Path | None, policies: str | None, pairs: tuple[str, ...], grouping: str | None,
    plot: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run policies on one trace in the simulator, and compare their latency violations and costs.

    TOPOLOGY is a modelled line of operators (line4; line4:12.5ms with another cost; line1:70ms:even without randomness), a
    built-in, a Python file, or module:attribute. Traces by name: psps_sbac, psps_twitter, psps_dns, taxi, nab_taxi, nab_tweets
    (recorded; they need --data-dir), s1, s2, and generated ones with a seed: diurnal:1, bursts:1, steps:1, drift:1, walk:1.
    """
    with errors():
        from springtide.apps.traces import named
        from springtide.cli import load
        from springtide.sim.compare import compare as compared

        if plot is not None:
            _check_plot(plot)
        rate = named(trace, data_dir)
        chosen = None if policies is None else [name.strip() for name in policies.split(",") if name.strip()]
        of_policies, of_grouping = parted(pairs)
        if grouping is not None:
            options |= {"grouping": grouping, "grouping_settings": of_grouping}
        elif of_grouping:
            raise OptionError(f"--set grouping.{next(iter(of_grouping))}: name the grouping too, with --grouping")
        model = load.model_or_topology(topology, grouping)
        with _progress() as progress:
            result = compared(model, rate, policies=chosen, settings=_by_policy(of_policies), progress=progress, **options)
    console = Console()
    if as_json:
        print_json(dict(result.document))
    else:
        console.print(comparison_table(result.document))
    if plot is not None:  # last, so that the result is printed even if the plot fails
        with errors():
            drawn = _drawn(result, plot)
        if not as_json:
            console.print(f"Plot: {drawn}", soft_wrap=True, highlight=False)


def _by_policy(settings: Mapping[str, str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name, value in settings.items():
        policy, dot, parameter = name.rpartition(".")
        if not dot:
            raise OptionError(f"--set {name}={value}: write POLICY.NAME=VALUE, such as threshold.utilisation=0.8")
        found.setdefault(policy, {})[parameter] = value
    return found


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda name, done, of: bar.update(task, description=f"{name} done", completed=done, total=of)


def comparison_table(document: Mapping[str, Any]) -> RenderableType:
    """A row for each policy. Bold: no other policy is better on both violations and cost."""
    title = f"{document['topology']} · {document['trace']} · a decision every {document['interval_s']:g} s"
    title += f" · {document['grouping']}" if "grouping" in document else ""
    table = Table("policy", "above the target", "records above", "cost", "replicas", "p95", "changes", title=title)
    rows = document["rows"]
    for row in rows:
        best = _competes(row) and not any(_beats(other, row) for other in rows)
        table.add_row(
            Text(row["policy"], style="bold" if best else ""), _share(row["violation_ratio"]),
            _share(row["violation_ratio_records"]), _cost(row["cost_vs_clairvoyant"]),
            number(row["replicas"]["mean"]), milliseconds((row["latency_ms"] or {}).get("p95")), count(row["reconfigurations"]),
        )  # fmt: skip
    note = (
        f"Above the target: the share of seconds whose mean latency exceeds {document['target_ms']:g} ms. Cost: replica-seconds"
        " over the clairvoyant's, which knows the trace. Bold: no policy is better on both."
    )
    failed = [
        Text(f"{row['policy']} failed in {row['policy_failures']} decisions, first with {row['policy_failure']}", style="red")
        for row in rows
        if row["policy_failures"]
    ]
    return Group(table, Text(note, style="dim"), *failed)


def _beats(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a policy is better on violations or cost and not worse on either."""
    if not (_competes(row) and _competes(other)):
        return False
    mine, theirs = ((each["violation_ratio"], each["cost_vs_clairvoyant"]) for each in (row, other))
    return all(a <= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs


def _competes(row: Mapping[str, Any]) -> bool:
    """Whether a row has a score and is of a policy that did not fail; the clairvoyant is a bound."""
    from springtide.policy.scale.clairvoyant import Clairvoyant

    known = row["violation_ratio"] is not None and row["cost_vs_clairvoyant"] is not None
    return known and row["policy"] != Clairvoyant.name and not row["policy_failures"]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _cost(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _check_plot(path: Path) -> None:
    from springtide.policy.chosen import check_writable
    from springtide.record.comparison import check

    check(path)
    check_writable(path)


def _drawn(result: Comparison, path: Path) -> Path:
    from springtide.record.comparison import draw

    try:
        return draw(result.rate, result.replicas, str(result.document["trace"]), path)
    except OSError as fault:
        raise RunError(f"the plot {str(path)!r} could not be written: {fault.strerror or fault}") from None
