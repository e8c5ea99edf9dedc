"""A policy beside somebody else's query: the control loop of a run, around a query that knows nothing of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from springtide.control.decider import Decider
from springtide.control.loop import ControlLoop
from springtide.control.ports import Clock, PolicyHost
from springtide.control.switch import FixedMode, Mode
from springtide.model.snapshot import Snapshot
from springtide.policy.scale import State
from springtide.spark.attach import history
from springtide.spark.attach.advice import Advice
from springtide.spark.attach.goal import Goal, WatchedQuery
from springtide.spark.attach.planning import QueryPlans
from springtide.spark.attach.shared import SharedExecutors

log = logging.getLogger("springtide.attach")


class Attachment:
    """``springtide.attach`` returns it. ``detach()``, or the end of a ``with`` block, leaves the executors as they were.

    ``automatic``: made by ``springtide submit``, for an application that may yet attach by itself.
    """

    def __init__(
        self, query: WatchedQuery, host: PolicyHost, executors: SharedExecutors, goal: Goal, clock: Clock,
        key: str | None = None, automatic: bool = False, state: State | None = None,
    ) -> None:  # fmt: skip
        """``clock`` tells seconds since 1970, as the query's progress does. ``key``: what tells the query from others.
        ``state``: what the policy has learned before. The host is closed when the attachment ends."""
        self.automatic = automatic
        self._query, self._executors, self._key = query, executors, key or query.name
        self._decider = Decider(
            host, record=self._record, clock=clock, state=state, subject=f"query {query.name}: ",
            switch=FixedMode(Mode.DRY_RUN if goal.dry_run else Mode.ON),
        )  # fmt: skip
        self._plans = QueryPlans(query, self._decider, executors, goal, clock, self._key)
        self._loop = ControlLoop(
            self._plans, self._decider, clock, goal.interval_s, self._end_with_query, f"springtide-attach-{query.name}"
        )
        self._left = False
        self._lock = threading.Lock()

    @property
    def wanted(self) -> int:
        """The executors that the policy wants now; in a dry run, that it would want."""
        return self._plans.wanted

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Why more executors cannot help, where they cannot."""
        return self._plans.advice

    @property
    def snapshot(self) -> Snapshot | None:
        """What was last measured."""
        return self._loop.snapshot

    @property
    def active(self) -> bool:
        """Whether it still looks after the query."""
        return self._loop.active

    def start(self) -> Attachment:
        goal = self._plans.goal
        log.info("query %s: attached%s, policy %s, target %g s, %d to %d executors", self._query.name,
                 " for a dry run" * goal.dry_run, goal.policy, goal.target_s, goal.limits.least, goal.limits.most)  # fmt: skip
        self._loop.start()
        return self

    def cycle(self) -> None:
        """Measure, decide, and have the executors follow."""
        self._loop.cycle()

    def detach(self) -> None:
        """Ask for the executors that were there before, and watch no more. May be called again."""
        self._leave("detached")

    def history(self) -> Any:
        """A pandas DataFrame with a line for every batch, and every change in between; ``docs/attach.md`` has its columns."""
        return history.frame(list(self._plans.rows))

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()

    def _record(self, entry: Mapping[str, object]) -> None:
        """The history gets the reasons of refusals; what a dry run would do is in its column of what is wanted."""
        if "refused" in entry:
            self._plans.refusals.append(str(entry["reason"]))

    def _end_with_query(self) -> bool:
        why = self._query.ended()
        if why is not None:
            self._leave(why)
        return why is not None

    def _leave(self, why: str) -> None:
        self._loop.stop()
        with self._lock:
            if self._left:
                return
            self._left = True
        log.info("query %s: %s", self._query.name, why)
        if not self._plans.goal.dry_run:
            try:
                self._executors.leave(self._key)
            except Exception as error:  # noqa: BLE001  the session may be gone, and its executors with it
                log.info("query %s: its executors could not be asked for again: %r", self._query.name, error)
