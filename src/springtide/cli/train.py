"""``springtide train``: train a policy in the simulator, and save its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from springtide.cli.common import COSTS, DATA_DIR, errors, print_json, settings_of
from springtide.errors import OptionError


@click.command()
@click.argument("topology")
@click.option("--trace", required=True, metavar="CSV", help="Records/s over time: a CSV file, or a trace by name.")
@DATA_DIR
@click.option("--policy", required=True, help="Policy to train; see `springtide policies`.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A parameter of the policy; repeatable.")
@click.option(
    "--passes", default=1, show_default=True, type=click.IntRange(1), help="Number of times that the trace is played."
)
@click.option("--interval", default="30s", show_default=True, help="Time between two decisions, as in the later run.")
@click.option("--target", default="250ms", show_default=True, help="Target of the mean latency in each second.")
@click.option("--max-slots", type=click.IntRange(1), help="Maximum number of replicas.")
@click.option("--mode", default="continuous", show_default=True, help="continuous, or micro-batch, like Spark.")
@COSTS
@click.option("--seed", default=0, show_default=True, help="Seed of the first pass; each pass adds 1.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File for the learned state.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the violations and replicas of each pass.")
def train(
    topology: str, trace: str, data_dir: Path | None, policy: str, pairs: tuple[str, ...], passes: int, seed: int, out: Path,
    as_json: bool, costs: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Train a policy on a trace, for `springtide run --policy NAME --set state=FILE`."""
    with errors():
        from springtide.apps.traces import named
        from springtide.cli import load
        from springtide.policy.chosen import check_writable, write_state
        from springtide.sim import simulate
        from springtide.sim.options import modelled

        rate, learned = named(trace, data_dir), None
        model = modelled(load.model_or_topology(topology), rate, costs)
        settings = settings_of("--set", pairs)
        check_writable(out)
        passes_done = []
        for number in range(passes):
            outcome = simulate(
                model, policy=policy, settings=settings, trace=rate, seed=seed + number, learned=learned, **options
            )
            if outcome.summary["policy_failures"]:
                raise OptionError(
                    f"policy {policy!r} failed in {outcome.summary['policy_failures']} decisions of pass {number + 1}, first"
                    f" with {outcome.summary['policy_failure']}; nothing is saved"
                )
            learned = outcome.learned
            passes_done.append({
                "pass": number + 1, "violation_ratio": outcome.summary["violation_ratio"],
                "replica_seconds": outcome.summary["replica_seconds"],
            })  # fmt: skip
            click.echo(f"pass {number + 1}: {outcome.summary['violation_ratio'] or 0.0:.2%} above the target", err=True)
        write_state(out, policy, learned or {})
    if as_json:
        print_json({"policy": policy, "out": str(out), "passes": passes_done})
