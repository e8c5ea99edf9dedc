"""The ports of the control flow. Each has few methods, so that a test can implement it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from springtide.model.ending import Ended, Ending
from springtide.model.executor import Executor
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport
from springtide.model.request import Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.group import Route
from springtide.policy.scale import State

Clock = Callable[[], float]
"""Seconds that never go back; handed in, so that tests and simulators step them."""


class Control(Protocol):
    """The control flow as the data flow sees it, which never waits for it."""

    def current(self) -> Plan:
        """The plan in force, taken when a batch starts."""

    def routes(self, plan: Plan) -> Mapping[str, Route]:
        """How records are routed to each operator under a plan."""

    def report(self, report: BatchReport) -> None:
        """Take the report of a batch when it is committed."""


class Failure(Exception):
    """A data plane failed, and can be started again; its cause is ``__cause__``.

    ``cause``: in a line. ``progressed``: whether anything was committed since the start. ``mended``: whether the cause is gone,
    so that it can be started at once. ``part``: what failed. ``way_out``: what a user can do about it.
    """

    def __init__(self, cause: str, *, progressed: bool, mended: bool = False, part: str = "query", way_out: str = "") -> None:
        super().__init__(cause)
        self.cause, self.progressed, self.mended, self.part, self.way_out = cause, progressed, mended, part, way_out


class DataPlane(Protocol):
    """What carries the records of a run, such as Spark in micro-batches. It is made with the run's ``Control``.

    Five messages pass between the two flows, and nothing else: open; take this plan (``Control.current``, which the data plane
    calls when it can change plans); here is a report (``Control.report``, at a commit); it ended, and why (``carry``); close.
    """

    def open(self) -> None:
        """Start the engine that the operators run on."""

    def carry(self, ending: Ending) -> Ended | None:
        """Carry records until the run ends, and return why it ended; None to be called again, as there may be more records.

        Raises ``Failure`` if it can be called again, and then continues after the last commit; any other error is final.
        """

    def close(self) -> None:
        """Release all resources."""


class Planning(Protocol):
    """Measures for the control loop, makes a plan from its requests, and puts the plan in force."""

    def measure(self, at: float, interval_s: float) -> Snapshot | None:
        """The measurements since the last call, ``at`` seconds after the start; None when there is nothing new to decide on."""

    def next_plan(self, snapshot: Snapshot, requests: Sequence[Request]) -> Plan: ...

    def adopt(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        """Put a plan in force, record it and carry it out. After a failure, the next call carries it out again."""


class PolicyHost(Protocol):
    """Where a policy decides: in the calling thread, or in a separate process."""

    @property
    def name(self) -> str: ...

    @property
    def restarts(self) -> int:
        """The number of restarts of its process."""

    def initial(self) -> State: ...

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]: ...

    def refusals(self, state: State) -> list[Verdict]:
        """The new refusals of guards and managers in the decision that left this state."""

    def forget(self) -> None:
        """Reset the state before the next decision."""

    def close(self) -> State | None:
        """End its process; returns the policy's state, where the process has it."""


class Measuring(Protocol):
    """Makes snapshots: from batches' reports, or, where there are no batches, by its own measurements."""

    def add(self, report: BatchReport) -> None: ...

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """The measurements since the last snapshot."""


class Actuator(Protocol):
    """Carries out the parts of a plan that batches do not read from it, such as the limits of sources."""

    def apply(self, plan: Plan) -> None: ...


class ClusterManager(Protocol):
    """The executors of a run. Requests and releases return at once, may be repeated, and never raise."""

    def executors(self) -> tuple[Executor, ...]:
        """The present executors; none where there are no real ones, as in one process."""

    def ask(self, total: int) -> None:
        """Request this many executors in all, the present ones included. A lower total releases none."""

    def release(self, names: Sequence[str]) -> None:
        """Release these, after their running tasks where the cluster can wait for that."""


class Journal(Protocol):
    """The record of a run. Writing returns at once and never raises: a full disk must not stop a batch."""

    def batch(self, report: BatchReport) -> None: ...

    def decision(self, entry: Mapping[str, object]) -> None: ...
