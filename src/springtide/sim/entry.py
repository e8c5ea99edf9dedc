"""``simulate``: a model or a topology, a policy and a grouping, put together on a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from springtide.control.loop import ControlLoop
from springtide.control.planner import Bounds
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.duration import seconds
from springtide.model.rate import Rate, as_rate
from springtide.model.rate import trace as read_trace
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy import registry, scale
from springtide.policy.group import Continual, Grouping
from springtide.policy.scale import ScalePolicy
from springtide.sim import batched
from springtide.sim.constants import Constants, to_json
from springtide.sim.constants import read as read_constants
from springtide.sim.control import SimulatedCluster, Starting
from springtide.sim.engine import Engine
from springtide.sim.measure import Ledger, metrics
from springtide.sim.model import Model
from springtide.sim.rules import Reconfiguration

MODES = ("continuous", "micro-batch")
BOUNDS = {"full-knowledge": "springtide.policy.group.full_knowledge:FullKnowledge"}
"""Groupings that only a simulator can have; the registry lists those that Spark can have too."""
NO_LIMIT = 100_000
DEFAULT_SLOTS = 8

Progress = Callable[[float, float], None]
"""Told how many seconds were simulated, and of how many."""


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: its summary (as ``springtide simulate --json`` prints it), what the policy saw, what it decided.

    ``reports``: in micro-batch mode, what a run on Spark would have recorded of every batch.
    ``latencies_s``: with ``by_record``, the latency of every record of the sources, in the order of arrival; NaN where it
    never left.
    """

    summary: Mapping[str, Any]
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)
    decisions: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    latencies_s: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    reports: tuple[BatchReport, ...] = field(default=(), repr=False)


def simulate(
    what: Model | Topology, *, policy: str | ScalePolicy | None = None, settings: Mapping[str, object] | None = None,
    grouping: str | Grouping | Continual = "tide", grouping_settings: Mapping[str, object] | None = None,
    trace: str | Path | Rate | float | None = None, arrivals: Literal["even", "poisson"] | None = None,
    mode: str = "continuous", seed: int = 0,
    duration: str | float | None = None, records: int | None = None, target: str | float | None = None,
    interval: str | float = 1.0, reconfiguration: str | Reconfiguration = "none", max_slots: int | None = None,
    warmup: str | float = 0.0, by_record: bool = False, costs: str | Path | None = None, trigger: str | float = 0.0,
    constants: Constants | None = None, progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """Simulate a model in numbers, or a topology, whose costs are then measured or read from the file ``costs``.

    It ends when ``records`` of each source came and left, or after ``duration``, or when the rate ends. Without a
    ``policy`` the model's replicas stay as they are. ``trace`` replaces the sources' rates, ``arrivals`` how records come
    within a step of them. Records created before ``warmup`` is over are not measured. The same arguments give the same
    result, but for measured costs. In micro-batch mode ``trigger`` is the least time between two batches, and Spark's
    ``constants`` come from the file ``costs``, if they are not given.
    """
    if mode not in MODES:
        raise OptionError(f"mode {mode!r} does not exist; {nearest(mode, MODES)}")
    batched_mode = mode == "micro-batch"
    model = _model(what, None if trace is None else _rate(trace), costs)
    if arrivals is not None:
        model = replace(model, sources=tuple(replace(source, arrivals=arrivals) for source in model.sources))
    scaler = registry.create("scale", policy, settings or {}) if isinstance(policy, str) else policy
    if scaler is not None:
        scale.check(scaler, [operator.name for operator in model.topology.scalable])
    groupings = {o.name: _grouping(o.grouping or grouping, grouping_settings or {}) for o in model.operators}
    for name, one in groupings.items():
        (_check_batched if batched_mode else _check_continual)(name, one)
    interval_s = seconds(interval, "interval")
    if interval_s <= 0:
        raise OptionError(f"interval={interval!r} is not allowed; it is above 0")
    if by_record and records is None:
        raise OptionError("by_record needs records=, the number of records of each source")
    target_s = None if target is None else seconds(target, "target")
    cost = Reconfiguration(reconfiguration) if isinstance(reconfiguration, str) else reconfiguration  # type: ignore[arg-type]
    end = _end(model, None if duration is None else seconds(duration, "duration"), records)
    about = {
        "topology": model.name, "policy": None if scaler is None else scaler.name, "grouping": _name(grouping), "mode": mode,
        "trace": None if trace is None else _label(trace), "seed": seed,
        "target_ms": None if target_s is None else 1000 * target_s,
    }  # fmt: skip
    if batched_mode:
        if cost.kind != "none" or by_record or seconds(warmup, "warmup"):
            raise OptionError("micro-batch mode is Spark's: reconfiguration, by_record and warmup are for continuous mode")
        told = batched.Settings(
            seed, end, records, target_s, interval_s, seconds(trigger, "trigger"), max_slots or DEFAULT_SLOTS
        )
        fitted = constants or (Constants() if costs is None else read_constants(costs))
        journal = batched.run(model, scaler, groupings, fitted, told, progress)
        summary = {**about, **batched.metrics(journal.reports, target_s), "constants": to_json(fitted)}
        return Outcome(summary, tuple(journal.snapshots), tuple(journal.decisions), reports=tuple(journal.reports))
    engine = Engine(
        model, groupings, seed, records=records, horizon_s=end if math.isfinite(end) else _expected(model, records),
        warmup_s=seconds(warmup, "warmup"), by_record=by_record,
    )  # fmt: skip
    ledger = Ledger()
    cluster = SimulatedCluster(engine, cost, ledger)
    if scaler is None:
        ledger.set_replicas(0.0, sum(station.active for station in engine.stations.values()))
        _run(engine, end, lambda: None, math.inf, progress)
    else:
        first = {member: o.replicas if member == o.name else 1 for o in model.operators for member, _, _ in o.folded}
        loop = ControlLoop(
            model.topology, Starting(scaler, first), bounds=Bounds(max_slots or NO_LIMIT), read_limit=None, trigger_s=0.0,
            interval_s=interval_s, clock=cluster.clock, actuators=[cluster], journal=cluster, monitor=cluster, seed=seed,
        )  # fmt: skip
        _run(engine, end, loop.cycle, interval_s, progress)
    for station in engine.stations.values():
        station.take_counts()
    summary = {**about, **metrics(engine, ledger, engine.now, target_s)}
    return Outcome(summary, tuple(cluster.snapshots), tuple(cluster.decisions), engine.book.by_root if by_record else None)


def _run(engine: Engine, end: float, cycle: Callable[[], None], interval_s: float, progress: Progress | None) -> None:
    """From interval to interval, until the end, or until all records came and left."""
    count = 0
    while engine.now < end:
        count += 1
        until = min(end, count * interval_s)
        if math.isinf(until):
            engine.drain()
            return
        engine.advance(until)
        if engine.now < end:
            cycle()
        if progress is not None:
            progress(engine.now, end)
        if math.isinf(end) and engine.exhausted and not engine.there:
            return


def _end(model: Model, duration_s: float | None, records: int | None) -> float:
    """When the simulation is over; infinite: when all records came and left."""
    if duration_s is not None:
        return duration_s
    if records is not None or all(source.times is not None or source.limit is not None for source in model.sources):
        return math.inf
    end = max(source.steps.end for source in model.sources)
    if math.isinf(end):
        raise OptionError(f"{model.name!r} never ends: its rate has no end; give duration, records or a trace")
    return end


def _expected(model: Model, records: int | None) -> float:
    """About how long it takes until so many records came."""
    return max((records or 0) / (max(source.steps.values) or 1.0) for source in model.sources)


def _model(what: Model | Topology, rate: Rate | None, costs: str | Path | None) -> Model:
    if isinstance(what, Topology):
        from springtide.sim.profile import model_of

        return model_of(what, rate, costs)
    if not isinstance(what, Model):
        raise TopologyError(f"simulate({what!r}): that is {type(what).__name__}, neither a topology nor a springtide.sim.Model")
    if costs is not None:
        raise OptionError(f"costs={str(costs)!r}: model {what.name!r} has its own costs; leave it out")
    return what if rate is None else replace(what, sources=tuple(replace(source, rate=rate) for source in what.sources))


def _rate(trace: str | Path | Rate | float) -> Rate:
    return read_trace(trace) if isinstance(trace, str | Path) else as_rate(trace)


def _label(trace: str | Path | Rate | float) -> str:
    return str(trace)


def _name(grouping: Any) -> str:
    return grouping if isinstance(grouping, str) else str(getattr(grouping, "name", type(grouping).__name__))


def _grouping(chosen: Any, settings: Mapping[str, object]) -> Any:
    return registry.create("group", BOUNDS.get(chosen, chosen), settings) if isinstance(chosen, str) else chosen


def _check_continual(operator: str, grouping: Any) -> None:
    if not isinstance(grouping, Continual):
        able = [cls.name for cls in registry.available("group") if hasattr(cls, "online")] + list(BOUNDS)
        raise OptionError(
            f"grouping {_name(grouping)!r} routes whole batches only, and continuous mode goes record by record;"
            f" {nearest(_name(grouping), able)}; micro-batch mode takes all of them"
        )


def _check_batched(operator: str, grouping: Any) -> None:
    if getattr(grouping, "simulator_only", False):
        raise OptionError(f"grouping {_name(grouping)!r} is a bound for continuous mode; a batch has no queues to look at")
