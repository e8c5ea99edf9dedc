"""``simulate``: run a model or a topology on a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from springtide import options
from springtide.errors import OptionError, nearest
from springtide.model.rate import Rate
from springtide.model.topology import Topology
from springtide.policy import registry
from springtide.policy.batch.shedding import Shedding
from springtide.policy.chosen import Chosen
from springtide.policy.group import Continual, Grouping
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.scale.clairvoyant import Clairvoyant
from springtide.sim import batched, continuous
from springtide.sim.constants import Constants
from springtide.sim.constants import read as read_constants
from springtide.sim.future import foreseen
from springtide.sim.model import NO_LIMIT as MOST_WAITING
from springtide.sim.model import Model
from springtide.sim.options import (
    GroupingOptions,
    LoadOptions,
    ModeOptions,
    PolicyOptions,
    SimulationOptions,
    SpanOptions,
    name_of,
    replicas_over,
    span,
)
from springtide.sim.rules import Reconfiguration
from springtide.sim.setup import METRICS, Outcome, Progress, Setup, Span

_RULES = ("cluster", "timeout_s", "late", "feedback_s", "back_pressure")


def simulate(
    what: Model | Topology, *, policy: str | ScalePolicy | None = None, settings: Mapping[str, object] | None = None,
    grouping: str | Grouping | Continual = "tide", grouping_settings: Mapping[str, object] | None = None,
    trace: str | Path | Rate | float | None = None, arrivals: Literal["even", "poisson"] | None = None,
    mode: str = "continuous", seed: int = 0,
    duration: str | float | None = None, records: int | None = None, target: str | float | None = None,
    interval: str | float = 1.0, reconfiguration: str | Reconfiguration = "none", max_slots: int | None = None,
    warmup: str | float = 0.0, by_record: bool = False, costs: str | Path | None = None, begin: str | float | None = None,
    trigger: str | float | None = None, constants: Constants | None = None, r_over: int | None = None,
    starting: str | float = 0.0, guards: Sequence[str] = (), learned: State | None = None, progress: Progress | None = None,
    grant: str | None = None, managers: str = "", shed_after: str | float | None = None, queue_limit: int | None = None,
) -> Outcome:  # fmt: skip
    """Simulate a model, or a topology with costs that are measured or read from the file ``costs``.

    It ends when ``records`` of each source have left, after ``duration``, or when the rate ends. Without a ``policy`` the
    replicas do not change. ``trace`` replaces the sources' rates, ``arrivals`` the distribution of records within a step of the
    rate. Records created during ``warmup`` are not measured. The same arguments give the same result, except if costs are
    measured. In micro-batch mode ``begin`` is the earliest start of the first batch, ``trigger`` the minimum time between
    batches, and Spark's ``constants`` are by default read from the file ``costs``. ``r_over`` is a number of replicas that
    suffices at any time, the papers' base of the saved resources. ``starting`` is the start-up time of a new replica.
    ``guards`` limit the policy's requests; ``learned`` is its initial state. In continuous mode, ``shed_after`` drops records
    that are older when a replica becomes free for them, and ``queue_limit`` drops the oldest record of a longer queue.
    """
    how = ModeOptions(mode, reconfiguration, warmup, by_record, begin, trigger, constants)
    asked = SimulationOptions(
        load=LoadOptions(trace, arrivals, costs),
        policy=PolicyOptions(policy, settings, guards, grant, managers, learned),
        grouping=GroupingOptions(grouping, grouping_settings),
        goals=how.goals(target, interval, max_slots, starting),
        span=span(duration, records),
        mode=how,
        shedding=options.shedding(shed_after, queue_limit),
        r_over=replicas_over(r_over),
        seed=seed,
    )
    return simulated(what, asked, progress)


def simulated(what: Model | Topology, asked: SimulationOptions, progress: Progress | None = None) -> Outcome:
    """Simulate with these options."""
    setup = _set_up(what, asked, progress)
    outcome = batched.run(setup) if asked.mode.in_batches else continuous.run(setup)
    measured = {**dict.fromkeys(METRICS), **outcome.summary}
    if asked.r_over is not None and measured["replicas"]["mean"] is not None:
        measured["saved_resources"] = 1 - measured["replicas"]["mean"] / asked.r_over
    return replace(outcome, summary={**_about(setup, asked), **{name: measured[name] for name in METRICS}})


def _about(setup: Setup, asked: SimulationOptions) -> dict[str, Any]:
    target_s = asked.goals.target_s
    return {
        "topology": setup.model.name, "policy": None if setup.scaler is None else setup.scaler.policy.name,
        "grouping": asked.grouping.name, "mode": asked.mode.mode,
        "trace": None if asked.load.trace is None else str(asked.load.trace), "seed": asked.seed,
        "target_ms": None if target_s is None else 1000 * target_s,
    }  # fmt: skip


def _set_up(what: Model | Topology, asked: SimulationOptions, progress: Progress | None) -> Setup:
    model = asked.load.model(what)
    if asked.shedding is not None:
        model = _shedding(model, asked.shedding)
    scaler = asked.policy.chosen([operator.name for operator in model.topology.scalable])
    groupings = _groupings(model, asked)
    if asked.mode.in_batches:
        _check_rules(model)
    end = _end(model, asked.span)
    costs = asked.load.costs
    return Setup(
        model=model,
        scaler=_foreseeing(scaler, model, end, asked),
        groupings=groupings,
        goals=asked.goals,
        span=Span(end, asked.span.records, asked.mode.warmup_s, asked.mode.begin_s),
        reconfiguration=asked.mode.change,
        constants=asked.mode.constants or (Constants() if costs is None else read_constants(costs)),
        grant=asked.policy.granting(),
        seed=asked.seed,
        by_record=asked.mode.by_record,
        progress=progress,
    )


def _shedding(model: Model, asked: Shedding) -> Model:
    """The model with PSPS's load shedding: its timeout t_out, and its queue limit at every operator."""
    operators = model.operators
    if asked.queue_limit is not None:
        operators = tuple(replace(operator, queue_limit=asked.queue_limit) for operator in operators)
    return replace(model, timeout_s=model.timeout_s if asked.timeout_s is None else asked.timeout_s, operators=operators)


def _groupings(model: Model, asked: SimulationOptions) -> dict[str, Any]:
    """The grouping of each operator. An operator with a shared queue needs none: a record waits for the first free replica."""
    in_batches, routing = asked.mode.in_batches, asked.grouping
    shared = {o.name for o in model.operators if o.queue == "shared" and not in_batches}
    wanted = {o.name: "full-knowledge" if o.name in shared else o.grouping or routing.grouping for o in model.operators}
    settings = routing.grouping_settings or {}
    groupings = {name: _grouping(chosen, {} if name in shared else settings) for name, chosen in wanted.items()}
    for grouping in groupings.values():
        (_check_batched if in_batches else _check_continual)(grouping)
    return groupings


def _grouping(chosen: Any, settings: Mapping[str, object]) -> Any:
    return registry.create("group", chosen, settings) if isinstance(chosen, str) else chosen


def _foreseeing(scaler: Chosen | None, model: Model, end: float, asked: SimulationOptions) -> Chosen | None:
    """Tell the clairvoyant the future; other policies do not change."""
    if scaler is None or not isinstance(scaler.policy, Clairvoyant):
        return scaler
    goals = asked.goals
    if goals.target_s is None or math.isinf(end):
        raise OptionError("'clairvoyant' needs a target to keep, and an end: give target=, and duration= or a trace")
    seer = foreseen(scaler.policy, model, end, asked.seed, goals.bounds.max_slots, goals.interval_s, goals.target_s)
    return replace(scaler, policy=seer)


def _end(model: Model, span: SpanOptions) -> float:
    """The end of the simulation; infinite if it ends when all records have left."""
    if span.duration_s is not None:
        return span.duration_s
    if span.records is not None or all(source.times is not None or source.limit is not None for source in model.sources):
        return math.inf
    end = max(source.steps.end for source in model.sources)
    if math.isinf(end):
        raise OptionError(f"{model.name!r} never ends: its rate has no end; give duration, records or a trace")
    return end


def _check_continual(grouping: Any) -> None:
    if not isinstance(grouping, Continual):
        able = [cls.name for cls in registry.available("group") if hasattr(cls, "online")]
        raise OptionError(
            f"grouping {name_of(grouping)!r} routes whole batches only, and continuous mode goes record by record;"
            f" {nearest(name_of(grouping), able)}; micro-batch mode takes all of them"
        )


def _check_rules(model: Model) -> None:
    """Refuse rules that apply to continuous mode only."""
    limits = [part.queue_limit for part in model.sources] + [part.queue_limit for part in model.operators]
    default = Model(model.name, model.sources, model.operators)
    found = [f.name for f in fields(Model) if f.name in _RULES and getattr(model, f.name) != getattr(default, f.name)]
    found += ["queue_limit"] if any(limit != MOST_WAITING for limit in limits) else []
    found += ["node"] if any(source.node is not None for source in model.sources) else []
    found += ["nodes"] if any(operator.nodes for operator in model.operators) else []
    if found:
        raise OptionError(
            f"micro-batch mode is Spark's, and model {model.name!r} has {', '.join(found)}, which is for continuous mode;"
            " leave it out"
        )


def _check_batched(grouping: Any) -> None:
    if getattr(grouping, "simulator_only", False):
        raise OptionError(f"grouping {name_of(grouping)!r} is a bound for continuous mode; a batch has no queues to look at")
