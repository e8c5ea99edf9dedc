"""Back-pressure: the queue of a source."""

from __future__ import annotations

import numpy as np

from springtide.sim.arrivals import Batch, joined


class Gate:
    """A source's queue. A full queue sheds its oldest records. Records retain their creation times."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: list[Batch] = []
        self.size = self.refused = 0

    def passed(self, batch: Batch, closed: bool, room: float, since: float, until: float) -> Batch:
        """The records that leave the source in this step: all arrivals, unless the queue is closed or not empty."""
        if not closed and not self.size:
            return batch
        self._queue.append(batch)
        self.size += len(batch.at)
        if self.size > self._limit:
            shed = self.size - self._limit
            self._queue, self.size, self.refused = (
                [joined(self._queue).part(slice(shed, None))],
                self._limit,
                self.refused + shed,
            )
        if closed:
            return batch.part(slice(0))
        whole = joined(self._queue)
        count = min(self.size, max(1, int(room)))
        self._queue, self.size = [whole.part(slice(count, None))], self.size - count
        freed = whole.part(slice(count))
        even = since + (until - since) * np.arange(1, count + 1) / count
        return freed._replace(at=np.maximum(even, freed.created))

    def oldest(self) -> float:
        return min((float(batch.created[0]) for batch in self._queue if len(batch.at)), default=np.inf)

    def older_than(self, time: float) -> int:
        return sum(int((batch.created < time).sum()) for batch in self._queue)
