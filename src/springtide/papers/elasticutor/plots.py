"""Plots of Elasticutor's figures: a panel for each part, a line for each paradigm, and the range of the seeds around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from springtide.papers.elasticutor.exchange import FOUR
from springtide.papers.elasticutor.experiments import Experiment
from springtide.papers.elasticutor.setup import ELASTIC, THREE, Lab, exchange, micro
from springtide.papers.rows import Row
from springtide.record.canvas import canvas, saved, tidy

# Okabe and Ito's colours, which people with any common colour blindness can distinguish.
COLOURS = {"static": "#999999", "resource-centric": "#E69F00", "naive-ec": "#009E73", "elasticutor": "#0072B2"}
_OTHERS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_MARKS = "Dos^vP"
_MOST = 3
"""The most panels in a line of the plot."""


def draw(experiment: Experiment, rows: Sequence[Row], lab: Lab, folder: Path) -> Path | None:
    """Draw an experiment into ``folder``; None if it has no plot."""
    panels = _panels(rows)
    over_time = experiment.name in ("figure 7", "figure 19")
    if not panels and not over_time:
        return None
    down = 1 if over_time else -(-len(panels) // _MOST)
    whole = canvas(11, 3.2 * down + 0.6)
    if over_time:
        _seconds(whole.subplots(), experiment, lab)
    else:
        places = np.ravel(whole.subplots(down, min(_MOST, len(panels)), squeeze=False))
        for axes, ((name, unit), lines) in zip(places, panels.items(), strict=False):
            _lines(axes, experiment, name, unit, lines)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
    whole.suptitle(f"Elasticutor, {experiment.name}: {experiment.title}", x=0.01, ha="left", fontsize=11)
    kind, number = experiment.name.split()
    return saved(whole, folder / f"elasticutor-{kind}-{int(number):02d}.png")


def _panels(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """The lines of each panel, by its name and unit. A row is named "panel: point", or "panel, label: point" if all rows have
    the same paradigm."""
    shown = [row for row in rows if row.x is not None and ": " in row.row]
    alone = len({row.series for row in shown}) == 1
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in shown:
        name, label = row.row.split(": ")[0], row.series
        if alone and ", " in name:
            name, label = name.rsplit(", ", 1)
        found.setdefault((name, row.unit), {}).setdefault(label, []).append(row)
    return found


def _lines(axes: Any, experiment: Experiment, name: str, unit: str, lines: dict[str, list[Row]]) -> None:
    for k, (label, rows) in enumerate(lines.items()):
        own = sorted(rows, key=lambda row: row.x or 0.0)
        x, colour = [row.x for row in own], COLOURS.get(label, _OTHERS[k % len(_OTHERS)])
        axes.plot(x, [row.measured for row in own], color=colour, marker=_MARKS[k % len(_MARKS)], markersize=4, label=label)
        axes.fill_between(x, [row.min for row in own], [row.max for row in own], color=colour, alpha=0.15, linewidth=0)
    if experiment.logarithmic:
        axes.set_xscale("log", base=2)
    heights = [row.measured for rows in lines.values() for row in rows]
    if min(heights) > 0 and max(heights) > 20 * min(heights):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(name, fontsize=9)
    axes.set_xlabel(experiment.axis)
    axes.set_ylabel(unit)
    _tidy(axes)


def _seconds(axes: Any, experiment: Experiment, lab: Lab) -> None:
    """The throughput of the first seed over time; figure 7 shuffles the keys at 0 s and every 30 s."""
    setups = {p: micro(p) for p in THREE} if experiment.name == "figure 7" else {p: exchange(p) for p in FOUR}
    for series, setup in setups.items():
        rates = lab.runs(setup)[0].throughputs
        width = 2.0 if series == ELASTIC else 1.4
        axes.plot(np.arange(len(rates)), rates / 1000, color=COLOURS[series], linewidth=width, label=series)
    axes.set_xlabel(experiment.axis)
    axes.set_ylabel("thousand tuples/s")
    axes.set_ylim(bottom=0)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    tidy(axes)
    axes.legend(frameon=False, fontsize=7)
