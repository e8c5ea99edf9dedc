"""What a simulation is told, and what it gives, in either mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import GrantPolicy
from springtide.policy.scale import ScalePolicy, State
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
"""Told how many seconds were simulated, and of how many."""


@dataclass(frozen=True)
class Setup:
    """A simulation, checked: times in seconds, policy and groupings made, the rest as ``simulate`` describes it."""

    model: Model
    policy: ScalePolicy | None
    groupings: Mapping[str, Any]
    seed: int
    end: float  # infinite: when all records came and left
    records: int | None
    target_s: float | None
    interval_s: float
    max_slots: int
    reconfiguration: Reconfiguration
    warmup_s: float
    by_record: bool
    begin_s: float  # when the first batch begins
    trigger_s: float
    constants: Constants
    progress: Progress | None
    starting_s: float = 0.0
    learned: State | None = None
    grant: GrantPolicy | None = None  # of executors, in batches

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
