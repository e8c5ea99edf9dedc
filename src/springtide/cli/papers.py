"""``springtide papers``: the papers' experiments, repeated in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table

from springtide.cli.common import AS_JSON, errors, show
from springtide.cli.tables import number
from springtide.errors import OptionError

if TYPE_CHECKING:
    from springtide.papers.rows import Row

SHOWN = ("posg", "full-knowledge", "tide")
"""The series with a column; they are compared with round-robin."""


@click.group()
def papers() -> None:
    """Repeat the papers' experiments in the simulator, and compare with the published numbers."""


PLOTS = click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Folder for plots of the figures."
)


@papers.command()
@click.option("--seeds", default=100, show_default=True, type=click.IntRange(1), help="Streams for each point.")
@click.option("--figure", "numbers", multiple=True, type=int, metavar="N", help="Only this figure, 4 to 12; repeatable.")
@PLOTS
@AS_JSON
def posg(seeds: int, numbers: tuple[int, ...], plots: Path | None, as_json: bool) -> None:
    """POSG's figures 4 to 12: round-robin, posg, full knowledge and tide on the paper's streams."""
    from springtide.papers.lab import StreamLab
    from springtide.papers.plots import draw
    from springtide.papers.posg import FIGURES

    with errors():
        for wrong in (figure for figure in numbers if figure not in FIGURES):
            raise OptionError(f"--figure {wrong}: POSG's figures with measurements are {', '.join(map(str, FIGURES))}")
        figures = [FIGURES[chosen] for chosen in sorted(set(numbers)) or FIGURES]
        rows, drawn = _measured(figures, StreamLab(seeds), draw, plots)
    _print(rows, _table, as_json, drawn)


@papers.command()
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Runs of each configuration.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the taxi trace; or set SPRINGTIDE_DATA."
)
@AS_JSON
def edf(seeds: int, data_dir: Path | None, as_json: bool) -> None:
    """EDF's table 1: thresholds, Q-learning and model-based learning on the taxi trace, with and without token bucket."""
    from springtide.apps.traces import named
    from springtide.papers.edf import TABLE, Bench, orders, table

    with errors():
        bench = Bench(named("taxi", data_dir), seeds)
        with Console(stderr=True).status("") as status:
            bench.progress = partial(_show, status, TABLE)
            rows = table(bench) + orders(bench)
    _print(rows, _edf_tables, as_json)


@papers.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="Runs of each set-up.")
@click.option("--seconds", default=60, show_default=True, type=click.IntRange(30), help="Measured time of each run.")
@click.option("--figure", "figures", multiple=True, type=int, metavar="N", help="Only this figure, 6 to 16 or 19; repeatable.")
@click.option("--table", "tables", multiple=True, type=int, metavar="N", help="Only this table, 2 or 3; repeatable.")
@PLOTS
@AS_JSON
def elasticutor(
    seeds: int, seconds: int, figures: tuple[int, ...], tables: tuple[int, ...], plots: Path | None, as_json: bool
) -> None:
    """Elasticutor's figures 6 to 16 and 19, tables 2 and 3: static, resource-centric, naive-EC and Elasticutor."""
    from springtide.papers.elasticutor.experiments import EXPERIMENTS
    from springtide.papers.elasticutor.plots import draw
    from springtide.papers.elasticutor.setup import Lab

    asked = [f"figure {figure}" for figure in figures] + [f"table {table}" for table in tables]
    with errors():
        for wrong in (name for name in asked if name not in EXPERIMENTS):
            raise OptionError(f"{wrong} is not among Elasticutor's with measurements: {', '.join(EXPERIMENTS)}")
        experiments = [EXPERIMENTS[name] for name in EXPERIMENTS if not asked or name in asked]
        rows, drawn = _measured(experiments, Lab(seeds, seconds), draw, plots)
    _print(rows, _elasticutor_tables, as_json, drawn)


def _measured(
    experiments: Iterable[Any], lab: Any, draw: Callable[..., Path | None], plots: Path | None
) -> tuple[list[Row], list[Path]]:
    rows: list[Row] = []
    drawn: list[Path | None] = []
    with Console(stderr=True).status("") as status:
        for experiment in experiments:
            lab.progress = partial(_show, status, experiment.name)
            found = experiment.measure(lab)
            rows += found
            status.console.print(f"{experiment.name}: {experiment.title}, {len(found)} rows", highlight=False)
            if plots is not None:
                drawn.append(draw(experiment, found, lab, plots))
    return rows, [path for path in drawn if path is not None]


def _show(status: Status, experiment: str, run: str) -> None:
    status.update(f"{experiment}: {run}")


def _print(
    rows: Sequence[Row], table: Callable[[Sequence[Row]], RenderableType], as_json: bool, drawn: Sequence[Path] = ()
) -> None:
    show([row.as_json() for row in rows] if as_json else rows, as_json, table)
    for path in () if as_json else drawn:
        Console().print(f"Plot: {path}", soft_wrap=True, highlight=False)


def _elasticutor_tables(rows: Sequence[Row]) -> RenderableType:
    """A table for each experiment, with a column for each series. A ✗ marks what was not reproduced; the reasons are below."""
    parts: list[RenderableType] = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        own = [row for row in rows if row.experiment == experiment]
        series = list(dict.fromkeys(row.series for row in own))
        table = Table(
            "", *series, title=experiment, title_justify="left", caption="measured (published)", caption_justify="left"
        )
        for name, unit in dict.fromkeys((row.row, row.unit) for row in own):
            line = {row.series: row for row in own if (row.row, row.unit) == (name, unit)}
            table.add_row(f"{name} ({unit})", *(_judged(line[name]) if name in line else "" for name in series))
        missed = [row for row in own if row.verdict == "not reproduced"]
        parts += [table, *(f"  ✗ {row.row}, {row.series}: {row.note}" for row in missed), ""]
    return Group(*parts)


def _judged(row: Row) -> str:
    published = f" ({number(row.published)})" if row.published is not None else ""
    return f"{number(row.measured)}{published}{' ✗' if row.verdict == 'not reproduced' else ''}"


def _edf_tables(rows: Sequence[Row]) -> RenderableType:
    """Table 1 with measured and, in brackets, published values; then the orders. A ✗ marks what was not reproduced; the
    reasons are below."""
    from springtide.papers.edf import METRICS, TABLE

    cells = {(row.row, row.series): row for row in rows if row.experiment == TABLE}
    first = Table("", *METRICS, title=TABLE, title_justify="left", caption="measured (published)", caption_justify="left")
    for label in dict.fromkeys(label for label, _ in cells):
        first.add_row(label, *(_judged(cells[label, metric]) for metric in METRICS))
    rest = [row for row in rows if row.experiment != TABLE]
    second = Table("", "measured", "published", "verdict", title="orders", title_justify="left")
    for row in rest:
        second.add_row(row.row, f"{number(row.measured)} {row.unit}", number(row.published), row.verdict)
    why = [f"  {row.row}, {row.series}: {row.note}" for row in rows if row.verdict == "not reproduced"]
    return Group(first, "", second, "", *why)


def _table(rows: Sequence[Row]) -> RenderableType:
    """A table for each figure, with a row for each point; below it the reasons why a number was not reproduced.

    A cell is the mean over the seeds, with minimum and maximum. The verdict is about POSG.
    """
    parts: list[RenderableType] = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        table = Table("", *SHOWN, "published", "verdict", title=experiment, title_justify="left")
        own = [row for row in rows if row.experiment == experiment]
        for name in dict.fromkeys(row.row for row in own):
            line = {row.series: row for row in own if row.row == name}
            judged = line.get("posg") or next(iter(line.values()))
            cells = (_span(line[series]) if series in line else "" for series in SHOWN)
            published = number(judged.published) if judged.published is not None else ""
            table.add_row(name, *cells, published, judged.verdict)
        parts.append(table)
        parts += [f"  {row.row}, {row.series}: {row.note}" for row in own if row.verdict == "not reproduced"]
        parts.append("")
    return Group(*parts)


def _span(row: Row) -> str:
    unit = "" if row.unit == "ratio" else f" {row.unit}"
    mean = f"{row.measured:.3f}" if row.unit == "ratio" else number(row.measured)
    return f"{mean}{unit}" if row.min == row.max else f"{mean}{unit} ({number(row.min)}–{number(row.max)})"
