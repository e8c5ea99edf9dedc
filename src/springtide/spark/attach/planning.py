"""Measures an attached query by its progress, and carries out plans by requesting executors."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from springtide.control.decider import Decider
from springtide.control.executors import COLD_BATCHES
from springtide.control.ports import Clock
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import Snapshot
from springtide.once import Once
from springtide.spark.attach import history
from springtide.spark.attach.advice import LAST, Advice, advise
from springtide.spark.attach.batches import Limit, QueryBatch, Use, learned_limit, useful_slots
from springtide.spark.attach.goal import Goal, WatchedQuery
from springtide.spark.attach.measure import fixed_s, snapshot
from springtide.spark.attach.shared import SharedExecutors

log = logging.getLogger("springtide.attach")

LIMIT_BATCHES = 10
"""Learn the useful slots from this many batches: a batch of one file must not hide that others have fifty."""


class QueryPlans:
    """A plan grants slots to the query; in a dry run they never change."""

    def __init__(
        self, query: WatchedQuery, decider: Decider, executors: SharedExecutors, goal: Goal, clock: Clock, key: str
    ) -> None:
        self.query, self.goal, self._decider, self._executors = query, goal, decider, executors
        self._clock, self._key = clock, key
        self._last: QueryBatch | None = None  # the batch before the unmeasured ones
        self._new: list[QueryBatch] = []  # the batches of this cycle
        self._idle = False  # the only new batch stands for idle time
        self._recent: deque[QueryBatch] = deque(maxlen=LAST)  # with records
        self._useful: deque[Use] = deque(maxlen=LIMIT_BATCHES)  # of such batches
        self._limit: Limit | None = None
        self._cold = COLD_BATCHES
        self._there = goal.slots  # the fewest slots since the last batch ended
        self._granted = self._clamped(goal.slots)
        self._wished: int | None = None  # in a dry run
        self._advised = Once()
        self.refusals: list[str] = []  # why guards and managers refused requests, since the last plan
        self.rows: deque[Mapping[str, Any]] = deque(maxlen=history.RETAINED_BATCHES)
        self.advice: tuple[Advice, ...] = ()
        if not goal.dry_run:
            executors.join(key, goal.limits, self._granted, goal.before)

    @property
    def wanted(self) -> int:
        """The executors that the policy requests now, or would request in a dry run."""
        return self.goal.limits.executors(self._granted if self._wished is None else self._wished)

    def measure(self, at: float, interval_s: float) -> Snapshot | None:
        """Measure the batches that ended since the last cycle; None if there are none, or if they warmed up a cold cluster."""
        self._executors.look()
        self._count_in_new_executors()
        self._there = min(self._there, self._slots_there())
        ended = self.query.new_batches()
        batches = [replace(batch, slots=self._there) for batch in ended or self._idle_time()]
        known = batches if self._last is None else [self._last, *batches]
        if len(known) > 1 and known[1].number > known[0].number + 1:
            del known[0]  # more batches ended than one cycle reads: measure from the first one read
        there = self._there
        if batches:
            self._last, self._there = batches[-1], self._slots_there()
        if len(known) > 1 and self._cold <= 0:
            self._new, self._idle = known[1:], not ended
            return self._measured(known, at, there)
        if len(known) > 1:
            self._cold -= sum(bool(batch.rows) for batch in known[1:])
        self._follow()
        return None

    def next_plan(self, snapshot: Snapshot, requests: Sequence[Request]) -> Plan:
        slots = self._clamped(requests[-1].degree) if requests else snapshot.plan.degrees[self.query.name]
        return replace(snapshot.plan, degrees={self.query.name: self._clamped(slots)})

    def adopt(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        before, slots = (self.wanted, self.advice), plan.degrees[self.query.name]
        reason = self._decider.requested[-1].reason if self._decider.requested else "; ".join(self.refusals)
        self.refusals.clear()
        if self.goal.dry_run:
            wished = self._decider.requested
            self._wished = self._clamped(wished[-1].degree) if wished else slots
        elif not self._decider.failing:
            if slots != self._granted:
                log.info("query %s: slots %d → %d: %s", self.query.name, self._granted, slots, reason)
            self._granted = slots
            self._executors.want(self._key, slots, reason)
        self._advise(snapshot.there or slots)
        self._follow()
        if not self._idle or before != (self.wanted, self.advice):  # hours of idle time would evict all batches
            self._write_history(snapshot, reason)

    def _measured(self, known: Sequence[QueryBatch], at: float, there: int) -> Snapshot:
        self._recent.extend(batch for batch in self._new if batch.rows)
        self._learn_limit(there)
        return snapshot(
            self.query.name, known, at=at, degree=self._clamped(self._slots_there()) if self.goal.dry_run else self._granted,
            there=there, limit=self._limit and self._limit.slots, trigger_s=self.goal.trigger_s, target_s=self.goal.target_s,
            most=self.goal.limits.most * self.goal.limits.cores, starting_s=self._executors.starting_s,
            nodes=self._executors.nodes,
        )  # fmt: skip

    def _follow(self) -> None:
        if not self.goal.dry_run:
            self._executors.follow()

    def _slots_there(self) -> int:
        return self._executors.there(self._key) or self.goal.slots

    def _count_in_new_executors(self) -> None:
        """Count the application's own executors that start after the attachment; only a policy may release them."""
        before = self._executors.before
        if before <= self.goal.before:
            return
        begun, self.goal = self._clamped(self.goal.slots), self.goal.with_executors(before)
        if self._granted == begun:
            self._granted = self._clamped(self.goal.slots)
        if not self.goal.dry_run:
            self._executors.extend(self._key, self.goal.limits, self._granted)

    def _idle_time(self) -> list[QueryBatch]:
        """An empty batch that ends now, if nothing has arrived since the last batch: the measured rate is zero."""
        now = self._clock()
        quiet_s = max(self.goal.interval_s, 2 * self.goal.trigger_s)
        if self._last is None or now - self._last.ended < quiet_s or not self.query.idle():
            return []
        return [QueryBatch(self._last.number, now, 0.0, 0, unread=self._last.unread, stages=(), in_jobs_s=0.0)]

    def _learn_limit(self, there: int) -> None:
        self._useful.extend(
            Use(slots, there, batch.busy_s or 0.0)
            for batch in self._new
            if batch.rows and (slots := useful_slots(batch.stages or ()))
        )
        before, self._limit = self._limit, learned_limit(self._limit, list(self._useful))
        if self._limit is not None and (before is None or self._limit.slots != before.slots):
            log.info("query %s: no more than %d slots are of use: its stages have no more tasks, or one long one",
                     self.query.name, self._limit.slots)  # fmt: skip

    def _advise(self, there: int) -> None:
        most = self.goal.limits.most * self.goal.limits.cores
        self.advice = advise(list(self._recent), most, self.goal.target_s, fixed_s(list(self._recent), there))
        for advice in self.advice:
            if self._advised.begins(advice.kind):
                log.warning("query %s, more executors cannot help (%s): %s", self.query.name, advice.kind, advice.text)

    def _write_history(self, measured: Snapshot, reason: str) -> None:
        executors = self._executors.count
        for batch in self._new:
            last = batch is self._new[-1]
            self.rows.append(history.row(
                batch, measured, executors, self.wanted, reason if last else "", self.advice if last else ()
            ))  # fmt: skip

    def _clamped(self, slots: int) -> int:
        limits = self.goal.limits
        return max(limits.least * limits.cores, min(int(slots), limits.most * limits.cores))
