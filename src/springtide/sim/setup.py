"""A checked simulation, and its outcome, in either mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.control.plans import Goals
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.policy.chosen import Chosen
from springtide.policy.grant import GrantPolicy
from springtide.policy.scale import State
from springtide.sim.constants import Constants
from springtide.sim.model import Model
from springtide.sim.rules import Reconfiguration

METRICS = (
    "latency_ms", "violation_ratio", "violation_ratio_records", "throughput_rows_s", "processed_ratio", "dephased_ratio",
    "throughput_degradation", "saved_resources", "speedup", "balance", "replicas", "replica_seconds", "slot_seconds",
    "executor_seconds", "reconfigurations", "downtime_ratio", "control_messages", "rows_in", "rows_out", "rows_lost",
    "rows_timed_out", "rows_there", "duration_s", "batches", "batch_ms", "constants", "operators",
    "policy_failures", "policy_failure",
)  # fmt: skip
"""The keys of a summary in either mode. A value is None where it is undefined, or has nothing to compare with."""

Progress = Callable[[float, float], None]
"""Receives the simulated seconds, and the seconds in total."""


@dataclass(frozen=True)
class Span:
    """The simulated time. ``end``: infinite if all records leave first. ``begin_s``: the start of the first batch."""

    end: float
    records: int | None = None
    warmup_s: float = 0.0
    begin_s: float = 0.0


@dataclass(frozen=True)
class Setup:
    """A checked simulation with its policy and groupings; times are in seconds. ``grant``: of executors, in micro-batches."""

    model: Model
    scaler: Chosen | None
    groupings: Mapping[str, Any]
    goals: Goals
    span: Span
    reconfiguration: Reconfiguration
    constants: Constants
    grant: GrantPolicy | None = None
    seed: int = 0
    by_record: bool = False
    progress: Progress | None = None

    @property
    def degrees(self) -> dict[str, int]:
        """The initial degrees; an operator that is folded into another has 1."""
        return {member: o.replicas if member == o.name else 1 for o in self.model.operators for member, _, _ in o.folded}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a simulation: the summary that ``springtide simulate --json`` prints, snapshots, and decisions.

    ``reports``: in micro-batch mode, the reports of all batches, as on Spark. ``learned``: the final state of the policy.
    ``latencies_s``: with ``by_record``, the latency of every source record in the order of arrival; NaN for those that never
    left.
    """

    summary: Mapping[str, Any]
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)
    decisions: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    latencies_s: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    reports: tuple[BatchReport, ...] = field(default=(), repr=False)
    learned: State | None = field(default=None, repr=False)
