"""The distribution of an operator's output to its readers: copies of every record, or each record to one reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.sim.arrivals import Batch
from springtide.sim.kernels import Floats
from springtide.sim.model import Edge, Operator

Readers = Sequence[tuple[Operator, Edge]]


def handed_on(readers: Readers, splits: bool, batch: Batch, coins: np.random.Generator) -> list[tuple[str, Batch]]:
    """The batch for each reader, by its name."""
    if not len(batch.at):
        return [(operator.name, batch) for operator, _ in readers]
    if splits:
        return _split(readers, batch, coins.random(len(batch.at)))
    return [(operator.name, _copied(batch, edge, coins)) for operator, edge in readers]


def _split(readers: Readers, batch: Batch, coins: Floats) -> list[tuple[str, Batch]]:
    parts = []
    low: Floats | float = 0.0
    for operator, edge in readers:
        high = low + _copies(batch, edge)
        parts.append((operator.name, batch.part((low <= coins) & (coins < high))))
        low = high
    return parts


def _copies(batch: Batch, edge: Edge) -> Floats | float:
    return edge.copies[batch.item] if isinstance(edge.copies, np.ndarray) else float(edge.copies)


def _copied(batch: Batch, edge: Edge, coins: np.random.Generator) -> Batch:
    wanted = _copies(batch, edge)
    if isinstance(wanted, float) and wanted == 1.0:
        return batch
    whole = np.floor(wanted)
    counts = (whole + (coins.random(len(batch.at)) < wanted - whole)).astype(np.int64)
    return batch.part(np.repeat(np.arange(len(counts)), counts))
