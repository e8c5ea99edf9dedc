"""The executors of a run: ``fleet_rule`` on a cluster, with a clock, a journal, and a manager that grants changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from springtide.control import fleet_rule as rule
from springtide.control.fleet_rule import Change, FleetState, Orders
from springtide.control.fleet_rule import Limits as Limits
from springtide.control.ports import Clock, ClusterManager
from springtide.model.executor import Executor
from springtide.model.request import Action, AddExecutors, RemoveExecutor, Request, Verdict
from springtide.model.snapshot import NodeSnapshot
from springtide.once import Once

log = logging.getLogger("springtide.control")

Judge = Callable[[Sequence[Request], int], tuple[Verdict, ...]]
"""Grants requests, given the number of executors that are paid for. Called in every round, also without requests."""


@dataclass
class Fleet:
    """Follows the slots that plans grant, as far as ``judge`` grants it; without a judge, everything is granted.

    ``tell``: writes to the journal. ``elastic``: False only observes. ``caching``: executors of a host share its cached state.
    """

    cluster: ClusterManager
    limits: Limits
    clock: Clock
    tell: Callable[[Mapping[str, object]], None] = lambda _: None
    elastic: bool = True
    caching: bool = False
    judge: Judge | None = None
    executor_seconds: float = 0.0
    _state: FleetState = field(init=False)
    _used: Mapping[str, float] = field(default_factory=dict)  # cores in use by host, in the last interval
    _refused: Once = field(default_factory=Once)  # changes
    _stay: Once = field(default_factory=Once)  # executors that were granted to move, since the last move

    def __post_init__(self) -> None:
        self._state = FleetState(self.clock())

    def move(self, cluster: ClusterManager, leaving: Iterable[str] = ()) -> None:
        """Continue with the executors of another session after a driver died, or restart with the same executors.

        ``leaving``: executors that were released before.
        """
        now = self.clock()
        self.cluster = cluster
        self._state = FleetState(now, self.starting_s, released=dict.fromkeys(leaving, now))

    @property
    def starting_s(self) -> float:
        """The start-up time of an executor."""
        return self._state.starting_s

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once now; None before any executor was seen."""
        return sum(executor.cores for executor in self._state.there) or None

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """The hosts of the executors: their cores, how many of them were in use, and how full the executors' memory is."""
        hosts: dict[str, list[Executor]] = {}
        for executor in self._state.there:
            hosts.setdefault(executor.host, []).append(executor)
        return tuple(
            NodeSnapshot(
                host, sum(executor.cores for executor in there), self._used.get(host),
                tuple(executor.name for executor in rule.released_first(there)),
                max((share for executor in there if (share := _memory(executor)) is not None), default=None),
            )
            for host, there in hosts.items()
        )  # fmt: skip

    def look(self) -> None:
        """Observe the executors, add up their time, and repeat orders that the cluster did not carry out."""
        now, seen, before = self.clock(), self.cluster.executors(), self._state
        passed = 0.0 if before.looked is None else now - before.looked
        self.executor_seconds += passed * len(before.names)
        self._carry_out(*rule.observed(before, seen, now))
        if passed > 0:
            self._used = _used(before.there, self._state.there, passed)

    def follow(self, slots: int, reason: str = "") -> None:
        """Request missing executors, and release those that were spare for long enough, as far as that is granted."""
        if not self.elastic or not self._state.size:
            return  # the executors of the session have not come yet
        self._state, change = rule.proposed(self._state, self.limits.executors(slots), self.clock(), self.caching)
        why = f"{slots} slots: {reason}" if change.more else f"{slots} slots for {self.starting_s:.0f} s: {reason}"
        self._carry_out(*rule.changed(self._state, self._granted(change, why), self.clock()), why)

    def replace(self, name: str, reason: str) -> None:
        """Release an executor whose move was granted, and request another in its place."""
        now, executor = self.clock(), next((executor for executor in self._state.there if executor.name == name), None)
        if not self.elastic or executor is None:
            return
        self._state = self._state.counted()
        why_not = rule.why_not_moved(self._state, executor, now)
        if not why_not:
            self._stay.end_others(())
            self._carry_out(*rule.moved(self._state, executor, now), reason)
        elif self._stay.begins(name):
            log.info("executor %s stays: %s (%s)", name, why_not, reason)
            self.tell({"executors": {"kept": name}, "reason": f"{why_not} ({reason})"})

    def _granted(self, change: Change, reason: str) -> Change:
        """As much of a change as the judge grants; withdrawing a request needs no grant."""
        if self.judge is None:
            return change
        actions: list[Action] = [AddExecutors(change.more)] if change.more else [RemoveExecutor(name) for name in change.going]
        requests = [Request(action=action, reason=reason, score=change.score, manager="the fleet") for action in actions]
        verdicts = self.judge(requests, self._state.size)
        self._report_refusals([verdict for verdict in verdicts if not verdict.granted])
        granted = [verdict.action for verdict in verdicts]
        return replace(
            change, more=sum(action.count for action in granted if isinstance(action, AddExecutors)),
            going=tuple(action.executor for action in granted if isinstance(action, RemoveExecutor)),
        )  # fmt: skip

    def _report_refusals(self, verdicts: Sequence[Verdict]) -> None:
        """Report each refusal once while it lasts: of more executors, whatever their number, or of a release."""
        refused = {getattr(verdict.request.action, "executor", "more"): verdict for verdict in verdicts}
        self._refused.end_others(refused)
        for what, verdict in refused.items():
            if self._refused.begins(what):
                log.info("%s", verdict)
                self.tell(verdict.refusal())

    def _carry_out(self, state: FleetState, orders: Orders, reason: str | None = None) -> None:
        """``reason``: None for repeated orders, which are not journalled."""
        before, self._state = self._state.total, state
        if orders.total is not None:
            if reason is not None:
                going = f", releasing {', '.join(orders.release)}" if orders.release else ""
                log.info("executors %d → %d%s: %s", before, orders.total, going, reason)
                entry = {"from": before, "to": orders.total, "released": list(orders.release)}
                self.tell({"executors": entry, "reason": reason})
            self.cluster.ask(orders.total)
        if orders.release:
            self.cluster.release(orders.release)


def _used(before: Sequence[Executor], there: Sequence[Executor], passed_s: float) -> dict[str, float]:
    """Cores in use by host."""
    earlier, used = {executor.name: executor.busy_s for executor in before}, dict[str, float]()
    for executor in there:
        busy_s = max(0.0, executor.busy_s - earlier.get(executor.name, 0.0))
        used[executor.host] = used.get(executor.host, 0.0) + busy_s / passed_s
    return used


def _memory(executor: Executor) -> float | None:
    return None if executor.used_bytes is None or not executor.memory_bytes else executor.used_bytes / executor.memory_bytes
