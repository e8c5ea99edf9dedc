"""``springtide``: run, demo, show, policies, doctor, control, submit, state, simulate, compare, train, calibrate, papers and
bench.

With ``--json`` standard output is one JSON document; everything else goes to standard error. Exit codes: 1 for a failure, 2 for
wrong use, else 0, also if a target was missed.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import click
from rich.console import Console

from springtide.cli.bench import bench
from springtide.cli.calibrate import calibrate
from springtide.cli.common import (
    AS_JSON,
    GRANT,
    MANAGERS,
    POLICY,
    errors,
    parted,
    print_json,
    print_result,
    settings_of,
    warn_of_secrets,
)
from springtide.cli.compare import compare
from springtide.cli.control import control
from springtide.cli.demo import demo
from springtide.cli.papers import papers
from springtide.cli.simulate import simulate
from springtide.cli.state import state
from springtide.cli.submit import submit
from springtide.cli.train import train
from springtide.errors import OptionError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="springtide")
@click.option("-v", "--verbose", is_flag=True, help="Log every decision.")
def cli(verbose: bool) -> None:
    """Elastic stream processing on Apache Spark."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s"
    )
    if "" not in sys.path:
        sys.path.append("")  # module:Class may be in the current folder; last, so that its files hide no installed module


@cli.command()
@click.argument("topology")
@POLICY
@click.option(
    "--guard",
    "guards",
    multiple=True,
    metavar="NAME:P=V,…",
    help="A guard between policy and plan, such as cooldown:before_out=30s; repeatable.",
)
@GRANT
@MANAGERS
@click.option("--shed-after", help="Drop and count records that are older than this when their batch starts, such as 30s.")
@click.option(
    "--queue-limit", type=click.IntRange(1), help="Limit of waiting records; beyond it the oldest are dropped and counted."
)
@click.option("--dry-run", is_flag=True, help="Decide and record, but change no degree: all slots stay in use.")
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the policy (state=FILE from `springtide train`) or, as grouping.NAME, of the grouping; repeatable.",
)
@click.option("--grouping", default="tide", show_default=True, help="Grouping of operators that name none.")
@click.option(
    "--sharding", default="balance", show_default=True, help="Policy that assigns the shards of stateful operators to tasks."
)
@click.option("--target", help="Latency target for the size of batches, such as 2s.")
@click.option("--trigger", default="0s", show_default=True, help="Minimum time between two batches.")
@click.option("--interval", default="1s", show_default=True, help="Time between two decisions.")
@click.option("--max-slots", default=8, show_default=True, help="Maximum number of concurrent tasks.")
@click.option("--executors", help="On a cluster: elastic (the default), fixed, or spark for Spark's dynamic allocation.")
@click.option("--min-executors", default=1, show_default=True, help="Minimum number of executors.")
@click.option("--duration", help="End after this time, such as 60s.")
@click.option("--stall-after", default="60s", show_default=True, help="Warn of a task without progress for this long.")
@click.option("--batches", type=click.IntRange(1), help="End after this number of batches.")
@click.option("--available-now", is_flag=True, help="End when the records that are available now are processed.")
@click.option("--checkpoint", help="Checkpoint to resume from and to write. Default: in the run's folder.")
@click.option("--state", metavar="URI", help="Location of the state, such as s3://bucket/folder. Default: in the checkpoint.")
@click.option("--runs", default="runs", show_default=True, help="Folder in which run folders are created.")
@click.option("--master", help="Spark's master. Default: local, with --max-slots threads.")
@click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A Spark setting; put secrets into spark-defaults.conf instead; repeatable.",
)
@click.option("--py-files", multiple=True, metavar="FILE", help="Code for the executors: .py, .zip or .whl; repeatable.")
@click.option(
    "--archives", multiple=True, metavar="FILE#NAME", help="Archives for the executors, unpacked as NAME; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(topology: str, pairs: tuple[str, ...], confs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run TOPOLOGY: a built-in (tweets), a Python file (job.py or job.py:name), or module:attribute."""
    from springtide.cli import load
    from springtide.cli.view import LiveView
    from springtide.options import RunOptions, operators_of
    from springtide.running import execute

    with errors():
        chosen = load.topology(topology)
        (settings, of_grouping), conf = parted(pairs), settings_of("--conf", confs)
        warn_of_secrets(conf)
        given = {**options, "settings": settings, "grouping_settings": of_grouping, "conf": conf}
        asked = RunOptions.of(operators_of(chosen), given)
        with LiveView(chosen.name, asked.policy.policy) as view:
            result = execute(chosen, asked, watch=view.update)
    if as_json:
        print_json(dict(result.summary))
        return
    print_result(result)


@cli.command()
@click.argument("topology")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid diagram.")
def show(topology: str, mermaid: bool) -> None:
    """Draw TOPOLOGY without running it."""
    from springtide.cli import load

    with errors():
        chosen = load.topology(topology)
    click.echo(chosen.mermaid() if mermaid else str(chosen))


def _kind_and_name(text: str) -> tuple[str, str]:
    from springtide.policy import registry

    kind, slash, name = text.partition("/")
    alike = [f"{plugin.kind}/{plugin.name}" for plugin in registry.available() if plugin.name == text]
    if not slash and alike:
        raise OptionError(f"{text!r} lacks its kind; write {' or '.join(alike)}")
    return kind, name


def _check(name: str | None) -> None:
    """Print the rules that a scaling policy breaks, with its default parameters, and exit with 1 if there are any."""
    from springtide.policy import registry, trial

    kind, short = _kind_and_name(name or "")
    if kind != "scale":
        raise OptionError(f"--check: {name!r} is no scaling policy; write its name, such as scale/tide or scale/module:Class")
    found = trial.violations(registry.create("scale", short))
    for fault in found:
        click.echo(f"{name}: {fault}", err=True)
    click.echo(f"{name}: rules broken: {len(found)}")
    if found:
        sys.exit(1)


@cli.command()
@click.argument("name", required=False)
@AS_JSON
@click.option("--markdown", is_flag=True, help="Print docs/policies.md, with every parameter.")
@click.option("--check", is_flag=True, help="Check the scaling policy NAME, such as scale/module:Class, by common rules.")
def policies(name: str | None, as_json: bool, markdown: bool, check: bool) -> None:
    """List all policies and plug-ins or those of a kind, such as scale; or describe one by NAME, such as scale/scripted."""
    from springtide.cli.tables import policies_markdown, policy_table
    from springtide.policy import registry

    with errors():
        if check:
            _check(name)
            return
        described = [registry.describe(plugin) for plugin in registry.available()]
        of_kind = [plugin for plugin in described if plugin["kind"] == name]
        if name is not None:
            described = of_kind or [registry.describe(registry.find(*_kind_and_name(name)))]
    if as_json:
        print_json(described)
    elif markdown:
        click.echo(policies_markdown(described), nl=False)
    else:
        Console().print(policy_table(described, detailed=name is not None and not of_kind))


@cli.command()
@AS_JSON
@click.option("--kafka", "servers", metavar="HOST:PORT", help="Check a connection to Kafka instead.")
@click.option("--topic", help="With --kafka: a topic that is to be read, or a pattern that begins with ^.")
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="With --kafka: a setting; of a secret env:NAME or file:PATH."
)
@errors()
def doctor(as_json: bool, servers: str | None, topic: str | None, config: tuple[str, ...]) -> None:
    """Check whether this machine can run Springtide, and say how to correct what does not suffice."""
    from springtide.cli.doctor import examine, render

    if servers is None and (topic is not None or config):
        raise OptionError("--topic and --config are for --kafka HOST:PORT; give it too")
    if servers is None:
        findings = examine()
    else:
        from springtide.cli.doctor_kafka import examine_kafka

        findings = examine_kafka(servers, topic, settings_of("--config", config))
    click.echo(render(findings, as_json))
    sys.exit(0 if all(finding.ok for finding in findings) else 1)


cli.add_command(demo)
cli.add_command(control)
cli.add_command(submit)
cli.add_command(state)
cli.add_command(simulate)
cli.add_command(compare)
cli.add_command(train)
cli.add_command(calibrate)
cli.add_command(papers)
cli.add_command(bench)


def main() -> None:
    """The entry point."""
    cli()


if __name__ == "__main__":
    main()
