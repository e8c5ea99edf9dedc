"""Runs a policy's control loop for any streaming query, without changes to the query."""

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
    """The result of ``springtide.attach``. ``detach()``, or the end of a ``with`` block, restores the number of executors.

    ``automatic``: made by ``springtide submit``, for an application that may still attach by itself.
    """

    def __init__(
        self, query: WatchedQuery, host: PolicyHost, executors: SharedExecutors, goal: Goal, clock: Clock,
        key: str | None = None, automatic: bool = False, state: State | None = None,
    ) -> None:  # fmt: skip
        """``clock``: seconds since 1970, as in the query's progress. ``key``: identifies the query among others. ``state``:
        the policy's knowledge from earlier runs. The end of the attachment closes the host."""
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
        """The executors that the policy requests now, or would request in a dry run."""
        return self._plans.wanted

    @property
    def advice(self) -> tuple[Advice, ...]:
        """The reasons why more executors cannot help, if there are any."""
        return self._plans.advice

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest measurements."""
        return self._loop.snapshot

    @property
    def active(self) -> bool:
        """Whether it still controls the query's executors."""
        return self._loop.active

    def start(self) -> Attachment:
        goal = self._plans.goal
        log.info("query %s: attached%s, policy %s, target %g s, %d to %d executors", self._query.name,
                 " for a dry run" * goal.dry_run, goal.policy, goal.target_s, goal.limits.least, goal.limits.most)  # fmt: skip
        self._loop.start()
        return self

    def cycle(self) -> None:
        """Measure, decide, and request executors."""
        self._loop.cycle()

    def detach(self) -> None:
        """Request the previous number of executors, and stop. May be called repeatedly."""
        self._leave("detached")

    def history(self) -> Any:
        """A pandas DataFrame with a row for every batch, and every change in between; columns: ``docs/attach.md``."""
        return history.frame(list(self._plans.rows))

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()

    def _record(self, entry: Mapping[str, object]) -> None:
        """Collect the reasons of refusals for the history."""
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
