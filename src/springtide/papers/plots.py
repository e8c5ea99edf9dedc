"""Plots of the figures: a line for each grouping, and the range of the seeds around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from springtide.papers.figures import Figure
from springtide.papers.lab import WINDOW, StreamLab
from springtide.papers.posg_setup import SERIES, SHIFTED
from springtide.papers.rows import Row
from springtide.record.canvas import canvas, saved, tidy

# Okabe and Ito's colours, which people with any common colour blindness can distinguish.
COLOURS = {"round-robin": "#999999", "posg": "#E69F00", "full-knowledge": "#009E73", "tide": "#0072B2"}
_MARKS = {"round-robin": "s", "posg": "o", "full-knowledge": "^", "tide": "D"}


def draw(figure: Figure, rows: Sequence[Row], lab: StreamLab, folder: Path) -> Path:
    """Draw a figure into ``folder``: completion times and speed-ups over its points, or over the tuples of a stream."""
    whole = canvas(10, 4.2)
    if figure.points:
        _points(whole, figure, [row for row in rows if row.completion_ms is not None and "with tuples" not in row.row])
    else:
        _over_time(whole, figure, lab)
    whole.suptitle(f"POSG, figure {figure.number}: {figure.title}", x=0.01, ha="left", fontsize=11)
    return saved(whole, folder / f"posg-figure-{figure.number:02d}.png")


def _points(whole: Any, figure: Figure, rows: Sequence[Row]) -> None:
    left, right = whole.subplots(1, 2)
    for series in dict.fromkeys(row.series for row in rows):
        own = [row for row in rows if row.series == series]
        x = [row.x for row in own]
        times = np.array([row.completion_ms for row in own])
        ratios = np.array([(row.min, row.measured, row.max) for row in own])
        for axes, (low, mean, high) in ((left, times.T), (right, ratios.T)):
            axes.plot(x, mean, color=COLOURS[series], marker=_MARKS[series], markersize=4, linewidth=1.6, label=series)
            axes.fill_between(x, low, high, color=COLOURS[series], alpha=0.15, linewidth=0)
    published = sorted({(row.x, row.published) for row in rows if row.series == "posg" and row.published is not None})
    if published:
        right.plot(*zip(*published, strict=True), "x", color="#000000", markersize=7, label="published, posg")
    left.set_ylabel("mean completion time (ms)")
    right.set_ylabel("speed-up over round-robin")
    for axes in (left, right):
        axes.set_xlabel(figure.axis)
        if figure.logarithmic:
            axes.set_xscale("log", base=10 if figure.points[0].x < 1 else 2)
        tidy(axes)
    _heights(left)
    right.legend(frameon=False, fontsize=8)


def _over_time(whole: Any, figure: Figure, lab: StreamLab) -> None:
    """The first seed's stream: least, mean and greatest completion time of every 2,000 tuples."""
    axes = whole.subplots()
    for series in SERIES:
        settings = {"tolerance": 0.05} if (figure.number, series) == (11, "posg") else {}
        windows = lab.runs(SHIFTED, series, settings)[0].windows_s
        x = WINDOW * (1 + np.arange(len(windows)))
        axes.plot(x, windows[:, 1], color=COLOURS[series], linewidth=1.6, label=series)
        axes.fill_between(x, windows[:, 0], windows[:, 2], color=COLOURS[series], alpha=0.15, linewidth=0)
    axes.set_xlabel(figure.axis)
    axes.set_ylabel("completion time (s)")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _heights(axes: Any) -> None:
    """Set the y axis: from 0, or logarithmic if the values differ by more than a factor of ten."""
    drawn = np.concatenate([line.get_ydata() for line in axes.lines])
    if drawn.max() > 10 * drawn.min() > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
