"""``springtide``: run, simulate, show, policies, doctor, bench.

With ``--json`` standard output is exactly one JSON document; everything else goes to standard error. Exit codes: 0 also
when a target was missed, 1 for a failure, 2 for wrong use.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from springtide.cli.papers import papers
from springtide.cli.simulate import simulate
from springtide.errors import WRONG_USE, OptionError, SpringtideError


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except SpringtideError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, WRONG_USE) else 1)


def _settings(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{option} {pair!r}: write name=value")
        settings[name] = value
    return settings


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, allow_nan=False, indent=2))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="springtide")
@click.option("-v", "--verbose", is_flag=True, help="Log every decision.")
def cli(verbose: bool) -> None:
    """Elastic stream processing on Apache Spark."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s"
    )


@cli.command()
@click.argument("topology")
@click.option("--policy", default="static", show_default=True, help="Who decides the degrees; see `springtide policies`.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A parameter of the policy.")
@click.option("--grouping", default="tide", show_default=True, help="For operators that leave it open.")
@click.option("--target", help="Latency to size batches for, such as 2s.")
@click.option("--trigger", default="0s", show_default=True, help="Least time between two batches.")
@click.option("--interval", default="1s", show_default=True, help="Time between two decisions.")
@click.option("--max-slots", default=8, show_default=True, help="Most tasks at once.")
@click.option("--duration", help="End after this time, such as 60s.")
@click.option("--batches", type=click.IntRange(1), help="End after so many batches.")
@click.option("--available-now", is_flag=True, help="End when what is there now is processed.")
@click.option("--checkpoint", help="Where to go on from, and where a later run can. Default: in the run's folder.")
@click.option("--runs", default="runs", show_default=True, help="Where runs' folders are made.")
@click.option("--master", help="Spark's master. Default: local, with --max-slots threads.")
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's.")
@click.option("--py-files", multiple=True, metavar="FILE", help="Code for the executors: .py, .zip or .whl; repeatable.")
@click.option("--archives", multiple=True, metavar="FILE#NAME", help="Archives for the executors, unpacked as NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(topology: str, pairs: tuple[str, ...], confs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run TOPOLOGY: a built-in (tweets), a Python file (job.py or job.py:name), or module:attribute."""
    from springtide.cli import load
    from springtide.cli.tables import summary_table
    from springtide.cli.view import LiveView
    from springtide.running import run as run_topology

    with _errors():
        chosen = load.topology(topology)
        settings, conf = _settings("--set", pairs), _settings("--conf", confs)
        with LiveView(chosen.name, options["policy"]) as view:
            result = run_topology(chosen, settings=settings, conf=conf, watch=view.update, **options)
    if as_json:
        _print_json(dict(result.summary))
        return
    console = Console()
    console.print(summary_table(result.summary))
    for plot in result.plots:
        console.print(f"Plot: {plot}", soft_wrap=True, highlight=False)


@cli.command()
@click.argument("topology")
@click.option("--mermaid", is_flag=True, help="In Mermaid's notation.")
def show(topology: str, mermaid: bool) -> None:
    """Draw TOPOLOGY without running it."""
    from springtide.cli import load

    with _errors():
        chosen = load.topology(topology)
    click.echo(chosen.mermaid() if mermaid else str(chosen))


@cli.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(name: str | None, as_json: bool) -> None:
    """List what can be chosen, or show one, such as scale/scripted."""
    from springtide.cli.tables import policy_table
    from springtide.policy import registry

    with _errors():
        described = [registry.describe(plugin) for plugin in registry.available()]
        if name is not None:
            described = [registry.describe(registry.find(*name.partition("/")[::2]))]
    if as_json:
        _print_json(described)
    else:
        Console().print(policy_table(described, detailed=name is not None))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Tell what was found on this machine, and what to do about what is missing."""
    from springtide.cli.doctor import examine, render

    findings = examine()
    click.echo(render(findings, as_json))
    sys.exit(0 if all(finding.ok for finding in findings) else 1)


@cli.group()
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

    with _errors():
        document = measure.measure(rounds, batches)
    if as_json:
        _print_json(document)
    else:
        Console().print(overhead_table(document))


@bench.command("simulator")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Rounds; sides alternate in each.")
@click.option("--records", default=4_000_000, show_default=True, type=click.IntRange(1_000), help="Records of our side.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_simulator(rounds: int, records: int, as_json: bool) -> None:
    """How fast the simulator is, beside the same model in SimPy."""
    from springtide.cli.simulate import speed_table

    with _errors():
        from springtide.bench import simulator as measure

        document = measure.measure(rounds, records)
    if as_json:
        _print_json(document)
    else:
        Console().print(speed_table(document))


cli.add_command(simulate)
cli.add_command(papers)


def main() -> None:
    """The entry point."""
    cli()


if __name__ == "__main__":
    main()
