"""The plot of a run: input rate and throughput, degrees and slots, batch times and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.errors import SetupError
from springtide.record.canvas import canvas, saved, tidy
from springtide.record.trace import TracePoint

FILE = "run.png"

_Array = npt.NDArray[np.float64]

# Okabe and Ito's colours, which people with any common colour blindness can distinguish.
_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _RED, _BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000",
)  # fmt: skip
_GREY = "#999999"
COLOURS = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _RED, _BLACK)
_DASHES = ("-", "--", ":")
_CELLS = 150
_UNKNOWN = float("nan")  # one object, so that two series with the same gaps are equal
_LEGEND = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "frameon": False, "borderaxespad": 0.2}


def draw(points: Sequence[TracePoint], folder: Path) -> list[Path]:
    """Draw a run into ``folder`` and return the files. Without batches or without matplotlib, draw nothing."""
    if not points:
        return []
    try:
        figure = canvas(10, 8.5)
    except SetupError:
        return []
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1.15, 1))
    for axes, fill in zip(panels, (_draw_rates, _draw_degrees, _draw_times), strict=True):
        fill(axes, points)
        tidy(axes)
    panels[-1].set_xlabel("time since the first batch (s)")
    panels[-1].set_xlim(0, max(_commits(points)[-1] * 1.005, 1e-3))
    figure.align_ylabels(panels)
    return [saved(figure, folder / FILE)]


def _draw_rates(axes: Any, points: Sequence[TracePoint]) -> None:
    grid, arriving, done = rates(points)
    backlog = _backlog(points)
    axes.stairs(done, grid, baseline=None, color=_BLUE, linewidth=1.8, label="throughput")
    handles = [axes.patches[-1]]
    if arriving is not None:
        axes.stairs(arriving, grid, baseline=None, color=_ORANGE, linewidth=1.8, linestyle="--", label="input rate")
        handles.insert(0, axes.patches[-1])
    axes.set_ylabel("records/s")
    axes.set_ylim(bottom=0)
    if np.isfinite(backlog).any():
        right = axes.twinx()
        handles.append(right.fill_between(_commits(points), backlog, color=_GREY, alpha=0.35, linewidth=0))
        handles[-1].set_label("backlog (right)")
        right.set_ylabel("backlog (records)")
        right.set_ylim(0, max(1.0, float(np.nanmax(backlog)) * 1.05))
        right.yaxis.get_major_locator().set_params(integer=True)
        right.spines["top"].set_visible(False)
        axes.set_zorder(right.get_zorder() + 1)  # the lines over the backlog's area
        axes.patch.set_visible(False)
    axes.legend(handles=handles, ncols=3, **_LEGEND)


def _draw_degrees(axes: Any, points: Sequence[TracePoint]) -> None:
    """Draw degrees over slots as steps that last until the next batch starts; equal degrees are drawn a little apart."""
    starts = _since(points, [point.started for point in points])
    edges = np.maximum.accumulate(np.array([*starts, _commits(points)[-1]]))
    slots = [float(point.slots) for point in points]
    axes.stairs(slots, edges, fill=True, color=_GREY, alpha=0.35, linewidth=0, label="slots")
    lines = degree_lines(points)
    highest = max(slots + [degree for values in lines.values() for degree in values if degree == degree])
    apart = min(0.012 * highest, 0.6 / max(1, len(lines)))
    styles = cycle((colour, dash) for dash in _DASHES for colour in COLOURS)
    for position, (label, values) in enumerate(lines.items()):
        colour, dash = next(styles)
        shown = np.array([*values, values[-1]]) + apart * (position - (len(lines) - 1) / 2)
        axes.step(edges, shown, where="post", color=colour, linestyle=dash, linewidth=2, label=label)
    axes.set_ylabel("degree (replicas)")
    axes.set_ylim(0, highest + 0.6)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(ncols=min(5, len(lines) + 1), **_LEGEND)


def degree_lines(points: Sequence[TracePoint]) -> dict[str, tuple[float, ...]]:
    """Degrees over the points. Operators whose degrees were always equal share a line, so that none hides another."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for name in dict.fromkeys(name for point in points for name in point.degrees):
        values = tuple(float(point.degrees.get(name, _UNKNOWN)) for point in points)
        alike.setdefault(values, []).append(name)
    return {_label(names): values for values, names in alike.items()}


def _label(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _draw_times(axes: Any, points: Sequence[TracePoint]) -> None:
    at = _commits(points)
    mean = np.array([np.nan if point.mean_s is None else point.mean_s for point in points])
    p95 = np.array([np.nan if point.p95_s is None else point.p95_s for point in points])
    mark = "." if len(points) < 60 else ""
    axes.plot(at, [point.duration_s for point in points], color=_GREEN, marker=mark, linewidth=1.2, label="batch time")
    if np.isfinite(mean).any():
        axes.plot(at, p95, color=_RED, linestyle="--", marker=mark, linewidth=1.5, label="latency, 95th percentile")
        axes.plot(at, mean, color=_BLUE, marker=mark, linewidth=1.8, label="latency, mean")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=3, **_LEGEND)


def rates(points: Sequence[TracePoint]) -> tuple[_Array, _Array | None, _Array]:
    """Edges of equal cells of time, and in each cell the input rate (None if unknown) and the throughput, in records/s.

    The records that came by a commit are those done by then plus the backlog. Both are cumulative counts, read at the
    cells' edges: a batch of 50 ms does not show as a spike, and no cell between two batches shows as empty.
    """
    end = float(_commits(points)[-1])
    usual = end / len(points)
    cells = max(1, min(_CELLS, int(end / max(usual, 1e-3))))
    grid = np.linspace(0.0, max(end, 1e-3), cells + 1)
    at = np.concatenate([[0.0], _commits(points)])
    done = np.concatenate([[0.0], np.cumsum([float(point.rows_in) for point in points])])
    backlog = _backlog(points)
    known = np.concatenate([[False], np.isfinite(backlog)])
    arriving = None
    if known.sum() > 1:
        arrived = (done + np.concatenate([[0.0], backlog]))[known]
        arriving = np.diff(np.interp(grid, at[known], arrived)) / np.diff(grid)
        arriving[grid[:-1] < at[known][0] - 1e-9] = np.nan  # the rate is unknown before the first measurement
        arriving = np.maximum(arriving, 0.0)
    return grid, arriving, np.diff(np.interp(grid, at, done)) / np.diff(grid)


def _commits(points: Sequence[TracePoint]) -> _Array:
    return np.maximum.accumulate(_since(points, [point.committed for point in points]))


def _since(points: Sequence[TracePoint], times: Sequence[float]) -> _Array:
    return np.array(times, dtype=np.float64) - points[0].started


def _backlog(points: Sequence[TracePoint]) -> _Array:
    return np.array([np.nan if point.backlog is None else float(point.backlog) for point in points])
