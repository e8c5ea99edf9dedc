"""What was measured of every operator in one interval. A measurement that is missing is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from springtide.model.plan import Plan
from springtide.model.report import Latency


@dataclass(frozen=True)
class OperatorSnapshot:
    """One operator over one interval: what came, what left, and how busy its replicas were."""

    name: str
    degree: int
    width: int
    rows_in: int
    rows_out: int
    failures: int
    busy_s: float
    rate: float | None  # records/s arriving
    utilisation: float | None  # busy time / (degree × interval)
    backlog: int | None  # records that wait for it
    latency_ms: float | None  # from the start of its stage to its end, mean over batches


@dataclass(frozen=True)
class Snapshot:
    """The whole topology over one interval, ``at`` seconds after the run's start.

    ``batches``: (records, seconds) of each batch that ended in the interval; a batch-size rule learns from them.
    """

    at: float
    interval_s: float
    plan: Plan
    operators: tuple[OperatorSnapshot, ...]
    batches: tuple[tuple[int, float], ...]
    rate: float | None
    backlog: int | None
    latency: Latency | None

    def __getitem__(self, name: str) -> OperatorSnapshot:
        return next(o for o in self.operators if o.name == name)
