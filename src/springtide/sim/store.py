"""The rows at one operator: a range of columns that moves on as records leave, and grows as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from springtide.sim.arrivals import Batch
from springtide.sim.kernels import Rows

_KINDS = {"key": np.uint64, "item": np.int64, "root": np.int64, "target": np.int64, "origin": np.int64, "fate": np.int8}
_COMING = ("at", "created", "cost")  # with the carried columns: all that a row has before its replica


class Store:
    """The first ``known`` of its ``count`` rows have a replica and all columns; the others wait.

    ``carried``: the optional columns that operators pass on. All columns are allocated, as untouched memory costs nothing, but
    only those in use are copied.
    """

    def __init__(self, size: int, carried: Sequence[str]) -> None:
        self.carried = tuple(carried)
        self.count = self.known = self._head = 0
        self._columns = _fresh(size)
        self.rows = self._columns

    @property
    def size(self) -> int:
        return len(self._columns.at)

    def append(self, batch: Batch, order: Any) -> slice:
        """Append records in this order, and return their rows."""
        first, last = self.count, self.count + len(batch.at)
        self._make_room(last)
        new, rows = slice(first, last), self.rows
        rows.at[new], rows.created[new] = batch.at[order], batch.created[order]
        for name in self.carried:
            getattr(rows, name)[new] = getattr(batch, name)[order]
        self.count = last
        return new

    def leave(self, gone: int) -> None:
        """Drop this many rows from the front."""
        if gone:
            self._head, self.known, self.count = self._head + gone, self.known - gone, self.count - gone
            self._look()

    def _make_room(self, count: int) -> None:
        """Make room for ``count`` rows. The rows move to the front once as many have left as remain: each moves about once."""
        if self.count <= self._head:
            self._move(self._columns)
        if self._head + count > self.size:
            self._move(_fresh(2 * count))

    def _move(self, columns: Rows) -> None:
        if self._head == 0 and columns is self._columns:
            return
        for name in Rows._fields:
            rows = self.count if name in _COMING or name in self.carried else self.known
            getattr(columns, name)[:rows] = getattr(self.rows, name)[:rows]
        self._columns, self._head = columns, 0
        self._look()

    def _look(self) -> None:
        self.rows = Rows(**{name: column[self._head :] for name, column in self._columns._asdict().items()})


def _fresh(size: int) -> Rows:
    return Rows(**{name: np.zeros(size, dtype=_KINDS.get(name, np.float64)) for name in Rows._fields})
