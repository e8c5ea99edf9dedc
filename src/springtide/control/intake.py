"""How many of the arriving records a batch takes: the read limit and load shedding, by the measured arrival rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from springtide.control.monitor import estimated_rate
from springtide.control.ports import Clock
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.policy.batch.read_limit import Batches, ReadLimit
from springtide.policy.batch.shedding import Shedding


class Intake:
    """Reads batches' reports in the data flow's thread and snapshots in the control loop's."""

    def __init__(
        self, read_limit: ReadLimit | None = None, shedding: Shedding | None = None, trigger_s: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self._read_limit, self._shedding, self._trigger_s, self._clock = read_limit, shedding, trigger_s, clock
        self._limit_state: Mapping[str, Any] = {} if read_limit is None else read_limit.initial()
        self._lock = threading.Lock()  # on the state of the limit
        self._slots = 0  # that the last plan could use
        self._rate: float | None = None  # records/s that arrive, in the last interval that measured it
        self._estimate: float | None = None  # the same by the last report alone
        self._ended: float | None = None  # when the last batch ended
        self.backlog: int | None = None  # when the last batch ended
        self.shed_after_s = None if shedding is None else shedding.timeout_s

    def report(self, report: BatchReport) -> None:
        self._ended, self.backlog, self._estimate = self._clock(), report.backlog, estimated_rate(report)

    def learn(self, report: BatchReport) -> int | None:
        """The most records that the next batch may read. The limit learns from every batch, not with every plan: at its first
        1,000 records a batch takes 0.1 s, and a limit that grows fourfold in an interval left a backlog for ten of them."""
        return self._limited(((report.rows_in, report.duration_s),))

    def read_limit(self, snapshot: Snapshot | None, slots: int) -> int | None:
        """The most records that the next batches may read, on this many slots."""
        if snapshot is not None and snapshot.arrival_rate is not None:
            self._rate = snapshot.arrival_rate
        before, self._slots = self._slots or slots, slots
        return self._limited((), slots / before)

    def _limited(self, batches: Batches, wider: float = 1.0) -> int | None:
        if self._read_limit is None:
            return None
        with self._lock:
            self._limit_state, limit = self._read_limit.decide(self._limit_state, batches, self._rate, wider)
        return limit

    def next_age(self) -> float | None:
        """The maximum age of records in the batch that starts now. It is computed at the batch's start and not with a plan,
        because a batch may start before a control cycle has seen the backlog of the last batch."""
        if self._shedding is not None and self._ended is not None:
            rate = self._estimate if self._rate is None else self._rate
            since_s = min(self._clock() - self._ended, self._trigger_s)  # more arrive until the next batch may start
            waiting = None if self.backlog is None else self.backlog + (rate or 0.0) * since_s
            self.shed_after_s = self._shedding.allowed(waiting, rate, self.shed_after_s)
        return self.shed_after_s
