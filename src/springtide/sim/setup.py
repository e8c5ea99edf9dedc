"""A simulation that is ready to run, and its outcome, in either mode."""

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
"""What a summary has in either mode; None where it is undefined: in this mode, or without something to compare with."""

Progress = Callable[[float, float], None]
"""Gets the seconds that were simulated, and the seconds in all."""


@dataclass(frozen=True)
class Span:
    """From when to when. ``end``: infinite when all records shall come and leave. ``begin_s``: when the first batch begins."""

    end: float
    records: int | None = None
    warmup_s: float = 0.0
    begin_s: float = 0.0


@dataclass(frozen=True)
class Setup:
    """A simulation, checked: policy and groupings are made, and times are in seconds. ``grant``: of executors, in batches."""

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
        """The degrees that the model begins with; what is folded into an operator has one each."""
        return {member: o.replicas if member == o.name else 1 for o in self.model.operators for member, _, _ in o.folded}


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: its summary (as ``springtide simulate --json`` prints it), what the policy saw, what it decided.

    ``reports``: in micro-batch mode, what a run on Spark would have recorded of every batch.
    ``learned``: the policy's state in the end.
    ``latencies_s``: with ``by_record``, the latency of every record of the sources, in the order of arrival; NaN where it
    never left.
    """

    summary: Mapping[str, Any]
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)
    decisions: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    latencies_s: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    reports: tuple[BatchReport, ...] = field(default=(), repr=False)
    learned: State | None = field(default=None, repr=False)
