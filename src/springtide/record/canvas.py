"""The parts that all plots share: the canvas, the look of the axes, and the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from springtide.errors import SetupError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def canvas(width: float, height: float) -> Figure:
    """An empty canvas, in inches. It is not made by pyplot, which would retain every figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SetupError("plots need matplotlib; pip install 'springtide[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
