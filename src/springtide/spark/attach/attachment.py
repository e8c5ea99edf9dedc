"""A policy beside somebody else's query: it looks, decides, and has the executors follow; the query knows nothing of it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from springtide.control.loop import COLD
from springtide.control.plane.remote import RemotePolicy
from springtide.control.ports import Clock
from springtide.model.snapshot import Snapshot
from springtide.policy.chosen import Chosen
from springtide.policy.scale import State, decided
from springtide.spark.attach import history
from springtide.spark.attach.advice import LAST, Advice, advise
from springtide.spark.attach.batches import Batch, Limit, Use, learned_limit, useful_slots
from springtide.spark.attach.goal import Goal, WatchedQuery
from springtide.spark.attach.measure import fixed_s, snapshot
from springtide.spark.attach.shared import SharedExecutors

log = logging.getLogger("springtide.attach")

SEEN = 10
"""Batches whose stages tell how many slots are of use: a batch of one file must not hide that others have fifty."""


class Attachment:
    """``springtide.attach`` returns it. ``detach()``, or the end of a ``with`` block, leaves the executors as they were.

    ``automatic``: made by ``springtide submit``, for an application that may yet attach by itself.
    """

    def __init__(
        self, query: WatchedQuery, scaler: Chosen, executors: SharedExecutors, goal: Goal, clock: Clock,
        key: str | None = None, automatic: bool = False,
    ) -> None:  # fmt: skip
        """``clock`` tells seconds since 1970, as the query's progress does. ``key``: what tells the query from others.

        A policy in a process of its own is closed when the attachment ends.
        """
        self.automatic = automatic
        self._query, self._policy, self._executors, self._goal, self._clock = query, scaler.policy, executors, goal, clock
        self._key = key or query.name
        self._state: State | None = scaler.state
        self._rng = np.random.default_rng(0)
        self._began = clock()
        self._last: Batch | None = None  # the one before those that are yet to be told of
        self._recent: deque[Batch] = deque(maxlen=LAST)  # with records
        self._useful: deque[Use] = deque(maxlen=SEEN)  # of such batches
        self._limit: Limit | None = None
        self._cold = COLD
        self._there = goal.slots  # the fewest slots that were there since the last batch ended
        self._granted = self._clamped(goal.slots)
        self._told: set[str] = set()
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=history.KEPT)
        self._wished: int | None = None
        self._failing = False
        self._left = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"springtide-attach-{query.name}", daemon=True)
        self.advice: tuple[Advice, ...] = ()
        self.snapshot: Snapshot | None = None
        if not goal.dry_run:
            executors.join(self._key, goal.limits, self._granted, goal.before)

    @property
    def wanted(self) -> int:
        """The executors that the policy wants now; in a dry run, that it would want."""
        slots = self._granted if self._wished is None else self._wished
        return self._goal.limits.executors(slots)

    @property
    def active(self) -> bool:
        """Whether it still looks after the query."""
        return not self._stopped.is_set()

    def start(self) -> Attachment:
        goal = self._goal
        log.info("query %s: attached%s, policy %s, target %g s, %d to %d executors", self._query.name,
                 " for a dry run" * goal.dry_run, goal.policy, goal.target_s, goal.limits.least, goal.limits.most)  # fmt: skip
        self._thread.start()
        return self

    def cycle(self) -> None:
        """Look, decide, follow."""
        self._executors.look()
        self._count_in_those_that_came()
        self._there = min(self._there, self._slots_there())
        ended = self._query.new_batches()
        batches = [replace(batch, slots=self._there) for batch in ended or self._idle_time()]
        known = batches if self._last is None else [self._last, *batches]
        if len(known) > 1 and known[1].number > known[0].number + 1:
            del known[0]  # more have ended than are looked at in one go: time begins at the first that is seen
        if len(known) > 1:
            if self._cold > 0:
                self._cold -= sum(bool(batch.rows) for batch in known[1:])
            else:
                self._decide(known, idle=not ended)
        if batches:
            self._last, self._there = batches[-1], self._slots_there()
        if not self._goal.dry_run:
            self._executors.follow()

    def detach(self) -> None:
        """Ask for the executors that were there before, and look no more. May be called again."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)
        self._leave("detached")

    def history(self) -> Any:
        """A pandas DataFrame with a line for every batch, and every change in between; ``docs/attach.md`` has its columns."""
        return history.frame(list(self._rows))

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()

    def _slots_there(self) -> int:
        return self._executors.there(self._key) or self._goal.slots

    def _count_in_those_that_came(self) -> None:
        """The application's own executors may come after the attachment. They are none too many until a policy says so."""
        before = self._executors.before
        if before <= self._goal.before:
            return
        begun, self._goal = self._clamped(self._goal.slots), self._goal.with_executors(before)
        if self._granted == begun:
            self._granted = self._clamped(self._goal.slots)
        if not self._goal.dry_run:
            self._executors.extend(self._key, self._goal.limits, self._granted)

    def _idle_time(self) -> list[Batch]:
        """Nothing came since the last batch: as good as an empty batch now, and the rate is measured: zero."""
        now = self._clock()
        quiet_s = max(self._goal.interval_s, 2 * self._goal.trigger_s)
        if self._last is None or now - self._last.ended < quiet_s or not self._query.idle():
            return []
        return [Batch(self._last.number, now, 0.0, 0, unread=self._last.unread, stages=(), in_jobs_s=0.0)]

    def _decide(self, batches: list[Batch], idle: bool) -> None:
        """Batches after the first one are new; ``idle``: the only one stands for the time in which there was none."""
        there, before = self._there, (self.wanted, self.advice)
        degree = self._clamped(self._slots_there()) if self._goal.dry_run else self._granted
        self._recent.extend(batch for batch in batches[1:] if batch.rows)
        self._learn_limit(batches[1:], there)
        self.snapshot = measured = snapshot(
            self._query.name, batches, at=self._clock() - self._began, degree=degree, there=there,
            limit=self._limit and self._limit.slots, trigger_s=self._goal.trigger_s, target_s=self._goal.target_s,
            most=self._goal.limits.most * self._goal.limits.cores, starting_s=self._executors.starting_s,
            nodes=self._executors.nodes,
        )  # fmt: skip
        reason = self._asked(measured, degree)
        self._advise(there)
        if idle and before == (self.wanted, self.advice):
            return  # hours of nothing would push all batches out of the history
        executors = self._executors.count
        for batch in batches[1:]:
            last = batch is batches[-1]
            self._rows.append(history.row(
                batch, measured, executors, self.wanted, reason if last else "", self.advice if last else ()
            ))  # fmt: skip

    def _learn_limit(self, batches: list[Batch], there: int) -> None:
        self._useful.extend(
            Use(slots, there, batch.busy_s or 0.0)
            for batch in batches
            if batch.rows and (slots := useful_slots(batch.stages or ()))
        )
        before, self._limit = self._limit, learned_limit(self._limit, list(self._useful))
        if self._limit is not None and (before is None or self._limit.slots != before.slots):
            log.info("query %s: no more than %d slots are of use: its stages have no more tasks, or one long one",
                     self._query.name, self._limit.slots)  # fmt: skip

    def _asked(self, measured: Snapshot, degree: int) -> str:
        """Ask the policy, and want what it wants; the reason, or nothing when all stays."""
        try:
            before = self._policy.initial() if self._state is None else self._state
            self._state, requests = decided(self._policy, before, measured, self._rng)
        except Exception:  # a policy is anybody's code; whatever it raises must not end the attachment
            if not self._failing:
                log.exception("query %s: policy %s failed; the executors stay", self._query.name, self._goal.policy)
            self._failing = True
            return ""
        self._failing = False
        slots = self._clamped(requests[-1].degree if requests else degree)
        reason = requests[-1].reason if requests else ""
        if self._goal.dry_run:
            if requests and slots != self._wished:
                log.info("query %s, dry run: slots %d would change to %d: %s", self._query.name, degree, slots, reason)
            self._wished = slots
        else:
            if slots != self._granted:
                log.info("query %s: slots %d → %d: %s", self._query.name, self._granted, slots, reason)
            self._granted = slots
            self._executors.want(self._key, slots, reason)
        return reason

    def _advise(self, there: int) -> None:
        most = self._goal.limits.most * self._goal.limits.cores
        self.advice = advise(list(self._recent), most, self._goal.target_s, fixed_s(list(self._recent), there))
        for one in self.advice:
            if one.kind not in self._told:
                log.warning("query %s, more executors cannot help (%s): %s", self._query.name, one.kind, one.text)
        self._told |= {one.kind for one in self.advice}

    def _clamped(self, slots: int) -> int:
        limits = self._goal.limits
        return max(limits.least * limits.cores, min(int(slots), limits.most * limits.cores))

    def _leave(self, why: str) -> None:
        with self._lock:
            if self._left:
                return
            self._left = True
        log.info("query %s: %s", self._query.name, why)
        if not self._goal.dry_run:
            try:
                self._executors.leave(self._key)
            except Exception as error:  # noqa: BLE001  the session may be gone, and its executors with it
                log.info("query %s: its executors could not be asked for again: %r", self._query.name, error)
        if isinstance(self._policy, RemotePolicy):
            self._policy.close()

    def _run(self) -> None:
        failing = False
        while not self._stopped.wait(self._goal.interval_s):
            why = self._query.ended()
            if why is not None:
                self._stopped.set()
                self._leave(why)
                return
            try:
                self.cycle()
                failing = False
            except Exception:  # what watches a query may fail; the query goes on
                if not failing and self._query.ended() is None:
                    log.exception("query %s: could not be looked at; its executors stay", self._query.name)
                failing = True
