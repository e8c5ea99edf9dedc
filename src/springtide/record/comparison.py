"""A plot that compares policies: the input rate, and the replicas that each policy used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from springtide.errors import OptionError, nearest
from springtide.model.rate import Rate
from springtide.policy.scale.clairvoyant import Clairvoyant
from springtide.record.canvas import canvas, saved
from springtide.record.plots import COLOURS

SIZE = (11, 7)
MAX_CELLS = 2_000
"""The most cells of time in which the rate is averaged. The picture has fewer pixels across."""


def check(path: Path) -> None:
    """Raise SetupError or OptionError if a plot cannot be drawn there. Call it before hours of simulation, not after."""
    kind = path.suffix.removeprefix(".")
    allowed = canvas(*SIZE).canvas.get_supported_filetypes()
    if kind.lower() not in allowed:
        raise OptionError(f"a plot in {str(path)!r}: its name must end with a known format; {nearest(kind, allowed)}")


def draw(rate: Rate, replicas: Mapping[str, Sequence[tuple[float, int]]], title: str, path: Path) -> Path:
    """Draw the rate above and the replicas below it. ``replicas``: by policy, the seconds of each change and the new number."""
    figure = canvas(*SIZE)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    edges = np.linspace(0.0, rate.end, min(MAX_CELLS, max(2, int(rate.end))) + 1)
    arriving = np.diff(np.interp(edges, rate.steps.edges, rate.steps.counts)) / np.diff(edges)
    above.stairs(arriving, edges, color="black", linewidth=1.0)
    above.set_ylabel("records/s")
    above.set_title(title, loc="left", fontsize=11)
    colours, dashes = cycle(COLOURS), cycle(["-"] * len(COLOURS) + ["--"] * len(COLOURS) + [":"] * len(COLOURS))
    for name, steps in replicas.items():
        bound = name == Clairvoyant.name
        times = [at for at, _ in steps]
        below.step(
            times, [n for _, n in steps], where="pre", linewidth=2.4 if bound else 1.2, label=name,
            color="#BBBBBB" if bound else next(colours), linestyle="-" if bound else next(dashes),
        )  # fmt: skip
    below.set_ylabel("replicas")
    below.set_xlabel("time (s)")
    below.set_ylim(bottom=0)
    below.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return saved(figure, path)
