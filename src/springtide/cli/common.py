"""Helpers that the commands share."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType

from springtide.errors import WRONG_USE, OptionError, SpringtideError

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the recorded traces.")
COSTS = click.option(
    "--costs", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Costs of records, from `calibrate`."
)
POLICY = click.option(
    "--policy", default="tide", show_default=True, help="Policy that decides the degrees; see `springtide policies`."
)
GRANT = click.option(
    "--grant", metavar="NAME:P=V,…", help="Hierarchical control with this granting policy: all, token-bucket or budget."
)
MANAGERS = click.option(
    "--managers", default="", help="Options of the managers, such as operators=10s,settle=30s; see docs/control.md."
)

if TYPE_CHECKING:
    from springtide.running.result import Result

GROUPING = "grouping."
"""Prefix of a grouping's parameters among those of the policy."""


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Print an error and exit: with 2 for wrong use, with 1 for a failure."""
    try:
        yield
    except SpringtideError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, WRONG_USE) else 1)


def settings_of(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """``name=value`` pairs as a mapping."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{option} {pair!r}: write name=value")
        settings[name] = value
    return settings


def warn_of_secrets(names: Iterable[str]) -> None:
    """Warn that other users can read a secret in an argument, and say where to put it instead."""
    from springtide.spark.private.properties import secrets

    for name in secrets(names):
        click.echo(
            f"Warning: --conf {name}=… is in the arguments of this process, which every user of this machine can list;"
            " put it into spark-defaults.conf in the folder that SPARK_CONF_DIR names",
            err=True,
        )


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, allow_nan=False, indent=2))


def print_result(result: Result) -> None:
    """Print the summary of a run, and where its plots are."""
    from springtide.cli.tables import summary_table

    console = Console()
    console.print(summary_table(result.summary))
    for plot in result.plots:
        console.print(f"Plot: {plot}", soft_wrap=True, highlight=False)


def show(document: Any, as_json: bool, table: Callable[[Any], RenderableType]) -> None:
    """Print a document, or its table for people."""
    if as_json:
        print_json(document)
    else:
        Console().print(table(document))


def parted(pairs: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """The parameters in ``--set`` of the policy, and those of the grouping."""
    given = settings_of("--set", pairs)
    of_grouping = {name.removeprefix(GROUPING): value for name, value in given.items() if name.startswith(GROUPING)}
    return {name: value for name, value in given.items() if not name.startswith(GROUPING)}, of_grouping
