"""What comes in, and how much of it a batch takes: the arrival rate, the read limit and load shedding."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from springtide.control.ports import Clock
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.policy.batch.read_limit import ReadLimit
from springtide.policy.batch.shedding import Shedding


class Intake:
    """Reads batches' reports in the data flow's thread and snapshots in the control loop's."""

    def __init__(
        self, read_limit: ReadLimit | None = None, shedding: Shedding | None = None, trigger_s: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self._read_limit, self._shedding, self._trigger_s, self._clock = read_limit, shedding, trigger_s, clock
        self._limit_state: Mapping[str, Any] = {} if read_limit is None else read_limit.initial()
        self._slots = 0  # that the last plan could use
        self._rate: float | None = None  # records/s that arrive, as last measured
        self._counted: tuple[float, int] | None = None  # when arrivals were last counted, and the backlog then
        self._ended: float | None = None  # when the last batch ended
        self._rate_guess: float | None = None  # records/s, by the last batch's backlog alone
        self.backlog: int | None = None  # when the last batch ended
        self.shed_after_s = None if shedding is None else shedding.timeout_s

    def report(self, report: BatchReport) -> None:
        self._ended, self.backlog, self._rate_guess = self._clock(), report.backlog, _rate_by_backlog(report)

    def read_limit(self, snapshot: Snapshot | None, slots: int) -> int | None:
        """The most records that the next batches may read, on this many slots."""
        rate = None if snapshot is None else self._measure_rate(snapshot)
        if self._read_limit is None:
            return None
        batches = snapshot.batches if snapshot else ()
        before, self._slots = self._slots or slots, slots
        self._limit_state, limit = self._read_limit.decide(self._limit_state, batches, rate, slots / before)
        return limit

    def next_age(self) -> float | None:
        """How old records may be in the batch that starts now. Asked at its start, not when plans are made: the next batch may
        start before a cycle has seen what the last one left."""
        if self._shedding is not None and self._ended is not None:
            rate = self._rate_guess if self._rate is None else self._rate
            since_s = min(self._clock() - self._ended, self._trigger_s)  # more arrive until the next batch may start
            waiting = None if self.backlog is None else self.backlog + (rate or 0.0) * since_s
            self.shed_after_s = self._shedding.allowed(waiting, rate, self.shed_after_s)
        return self.shed_after_s

    def _measure_rate(self, snapshot: Snapshot) -> float | None:
        """Records/s that arrived. Under a backlog that is not what was read: a limit on throughput would feed on itself."""
        if snapshot.rate is None or snapshot.backlog is None:
            return self._rate  # no batch ended
        at = self._clock() if self._ended is None else self._ended  # when this backlog was counted
        before, self._counted = self._counted, (at, snapshot.backlog)
        if before is not None and at > before[0]:
            read = snapshot.rate * snapshot.interval_s
            self._rate = max(0.0, (read + snapshot.backlog - before[1]) / (at - before[0]))
        return self._rate


def _rate_by_backlog(report: BatchReport) -> float | None:
    """Records/s: the backlog was created after the newest record that was read. The first batch tells nothing better."""
    newest = max((at for at, _ in report.created), default=report.committed)
    return report.backlog / (report.committed - newest) if report.backlog and report.committed > newest else None
