"""What the control flow needs from the world, and offers to it. Few methods each, so that a test can stand in."""

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
"""Seconds, never going back; handed in, so that tests and simulators step it."""


class Control(Protocol):
    """What the data flow sees of the control flow. It never waits for either."""

    def current(self) -> Plan:
        """The plan in force, taken when a batch starts."""
        ...

    def routes(self, plan: Plan) -> Mapping[str, Route]:
        """How records are routed to each operator under a plan."""
        ...

    def report(self, report: BatchReport) -> None:
        """What a batch did, handed over when it is committed."""
        ...


class Failure(Exception):
    """A data plane failed, and can be started again; its cause is ``__cause__``.

    ``cause``: in a line. ``progressed``: whether anything was committed since it was started. ``mended``: whether it got rid of
    the cause, so that it can be started at once. ``part``: what failed. ``way_out``: what a user can do about it.
    """

    def __init__(self, cause: str, *, progressed: bool, mended: bool = False, part: str = "query", way_out: str = "") -> None:
        super().__init__(cause)
        self.cause, self.progressed, self.mended, self.part, self.way_out = cause, progressed, mended, part, way_out


class DataPlane(Protocol):
    """What carries the records of a run, such as Spark in micro-batches. It is made with the run's ``Control``.

    Five messages pass between the two flows, and nothing else: open; take this plan (``Control.current``, which the data plane
    asks for when it can go over to another one); here is a report (``Control.report``, when it is committed); it ended, and why
    (``carry``); close.
    """

    def open(self) -> None:
        """Start what the operators run on."""
        ...

    def carry(self, ending: Ending) -> Ended | None:
        """Carry records until the run is to end, and say why it ended; None if it is to be called again, as there may be more.

        Raises ``Failure`` if it can be called again, and goes on after the last commit then; any other error is final.
        """
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Planning(Protocol):
    """What the control loop does with a decision: it measures, makes a plan of what was requested, and puts it in force."""

    def measure(self, at: float, interval_s: float) -> Snapshot | None:
        """What happened since the last time, ``at`` seconds after the start; None when there is nothing new to decide on."""
        ...

    def next_plan(self, snapshot: Snapshot, requests: Sequence[Request]) -> Plan: ...

    def adopt(self, plan: Plan, requests: Sequence[Request], snapshot: Snapshot) -> None:
        """Put a plan in force, carry it out and record it."""
        ...


class PolicyHost(Protocol):
    """Where a policy decides: in the thread that asks, or in a process of its own."""

    @property
    def name(self) -> str: ...

    @property
    def restarts(self) -> int:
        """How often its process was started again."""
        ...

    def initial(self) -> State: ...

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]: ...

    def refusals(self, state: State) -> list[Verdict]:
        """The new refusals of guards and managers in the decision that left this state."""
        ...

    def forget(self) -> None:
        """Begin the next decision without what was learned."""
        ...

    def close(self) -> State | None:
        """End its process; returns what the policy learned, where the process has it."""
        ...


class Measuring(Protocol):
    """Who tells what was measured: from batches' reports, or, where there are no batches, by itself."""

    def add(self, report: BatchReport) -> None: ...

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        """What happened since the last one."""
        ...


class Actuator(Protocol):
    """What carries a new plan out into the world beyond the next batch: read limits, executors."""

    def apply(self, plan: Plan) -> None: ...


class Cluster(Protocol):
    """The executors under a run. Asking and releasing return at once, may be repeated, and never raise."""

    def executors(self) -> tuple[Executor, ...]:
        """Those that are there now; none where there are no real ones, as in one process."""
        ...

    def ask(self, total: int) -> None:
        """Want so many in all, those that are there included. Asking for fewer takes none away."""
        ...

    def release(self, names: Sequence[str]) -> None:
        """Let these go, after what they are doing now where the cluster can wait for that."""
        ...


class Journal(Protocol):
    """Where a run's record is kept. Writing returns at once and never raises: a full disk must not stop a batch."""

    def batch(self, report: BatchReport) -> None: ...

    def decision(self, entry: Mapping[str, object]) -> None: ...
