"""Back-pressure: what a source holds back, and what it lets go again."""

from __future__ import annotations

import numpy as np

from springtide.sim.arrivals import Batch, joined


class Gate:
    """A source's own queue. When it is full the oldest records are shed; creation times stay those of their arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[Batch] = []
        self.held = self.refused = 0

    def passed(self, batch: Batch, closed: bool, room: float, since: float, until: float) -> Batch:
        """What leaves the source in this step: all that comes, as long as nothing is or was held back."""
        if not closed and not self.held:
            return batch
        self._held.append(batch)
        self.held += len(batch.at)
        if self.held > self._limit:
            shed = self.held - self._limit
            self._held, self.held, self.refused = [joined(self._held).part(slice(shed, None))], self._limit, self.refused + shed
        if closed:
            return batch.part(slice(0))
        whole = joined(self._held)
        count = min(self.held, max(1, int(room)))
        self._held, self.held = [whole.part(slice(count, None))], self.held - count
        freed = whole.part(slice(count))
        even = since + (until - since) * np.arange(1, count + 1) / count
        return freed._replace(at=np.maximum(even, freed.created))

    def oldest(self) -> float:
        return min((float(batch.created[0]) for batch in self._held if len(batch.at)), default=np.inf)

    def older_than(self, time: float) -> int:
        return sum(int((batch.created < time).sum()) for batch in self._held)
