"""``simulate``: a model or a topology, a policy and a grouping, put together on a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from springtide.control.plane.spec import hierarchical
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.duration import seconds
from springtide.model.rate import Rate, as_rate
from springtide.model.rate import trace as read_trace
from springtide.model.topology import Topology
from springtide.policy import registry, scale
from springtide.policy.batch.shedding import Shedding
from springtide.policy.chosen import chosen, named
from springtide.policy.group import Continual, Grouping
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.scale.clairvoyant import Clairvoyant, Foreseen
from springtide.sim import batched, continuous
from springtide.sim.constants import Constants
from springtide.sim.constants import read as read_constants
from springtide.sim.future import foreseen
from springtide.sim.model import NO_LIMIT as MOST_WAITING
from springtide.sim.model import Model
from springtide.sim.rules import Reconfiguration
from springtide.sim.setup import METRICS, Outcome, Progress, Setup

MODES = ("continuous", "micro-batch")
NO_LIMIT = 100_000
"""On slots: more than any cluster has."""
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
    """Simulate a model in numbers, or a topology, whose costs are then measured or read from the file ``costs``.

    It ends when ``records`` of each source came and left, or after ``duration``, or when the rate ends. Without a
    ``policy`` the model's replicas stay as they are. ``trace`` replaces the sources' rates, ``arrivals`` how records come
    within a step of them. Records created before ``warmup`` is over are not measured. The same arguments give the same
    result, but for measured costs. In micro-batch mode ``begin`` is when the first batch may start, ``trigger`` the least time
    between two, and Spark's ``constants`` come from the file ``costs``, if they are not given. ``r_over``: how many replicas
    would be too many at any time, as the papers have it, to which the saved resources are in proportion. ``starting``: how
    long a new replica takes to come. ``guards`` stand between the policy and the plan; ``learned`` is the policy's state to
    begin with. ``shed_after``: a record that is older when it would be served is removed; ``queue_limit``: when more wait for
    a replica, the oldest of them is; both in continuous mode.
    """
    if mode not in MODES:
        raise OptionError(f"mode {mode!r} does not exist; {nearest(mode, MODES)}")
    in_batches = mode == "micro-batch"
    model = modelled(what, None if trace is None else _rate(trace), costs)
    if arrivals is not None:
        model = replace(model, sources=tuple(replace(source, arrivals=arrivals) for source in model.sources))
    if shed_after is not None or queue_limit is not None:
        model = _shedding(model, in_batches, shed_after, queue_limit)
    names = [operator.name for operator in model.topology.scalable]
    if (guards or grant is not None) and (policy == Clairvoyant.name or isinstance(policy, Clairvoyant | Foreseen)):
        raise OptionError(
            f"'clairvoyant' is a bound, which nothing stands in the way of; leave {'guards' if guards else 'grant'} out"
        )
    scaler, begun = _scaler(policy, settings, guards, names, hierarchical(grant, managers))
    if learned is not None and guards and "guards" not in learned:  # it was learned without them
        learned = {"policy": learned, "guards": {}}
    shared = {o.name for o in model.operators if o.queue == "shared" and not in_batches}
    wanted = {o.name: "full-knowledge" if o.name in shared else o.grouping or grouping for o in model.operators}
    groupings = {name: _grouping(one, {} if name in shared else grouping_settings or {}) for name, one in wanted.items()}
    for one in groupings.values():
        (_check_batched if in_batches else _check_continual)(one)
    interval_s = seconds(interval, "interval")
    if interval_s <= 0:
        raise OptionError(f"interval={interval!r} is not allowed; it is above 0")
    if r_over is not None and r_over < 1:
        raise OptionError(f"r_over={r_over!r} is not allowed; it is a number of replicas, at least 1")
    if by_record and records is None:
        raise OptionError("by_record needs records=, the number of records of each source")
    target_s = None if target is None else seconds(target, "target")
    cost = Reconfiguration(reconfiguration) if isinstance(reconfiguration, str) else reconfiguration  # type: ignore[arg-type]
    if in_batches and (cost.kind != "none" or by_record or seconds(warmup, "warmup")):
        raise OptionError("micro-batch mode is Spark's: reconfiguration, by_record and warmup are for continuous mode")
    if in_batches:
        _check_rules(model)
    else:
        given = {"trigger": trigger, "begin": begin, "constants": constants}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise OptionError(
                f"{unused[0]}={given[unused[0]]!r} has no effect in continuous mode; give mode='micro-batch' with it"
            )
    end = _end(model, None if duration is None else seconds(duration, "duration"), records)
    if isinstance(scaler, Clairvoyant):
        scaler = _told(scaler, model, end, seed, interval_s, target_s, max_slots or NO_LIMIT)
    setup = Setup(
        model, scaler, groupings, seed, end, records, target_s, interval_s, max_slots or (8 if in_batches else NO_LIMIT), cost,
        seconds(warmup, "warmup"), by_record, seconds(begin or 0.0, "begin"), seconds(trigger or 0.0, "trigger"),
        constants or (Constants() if costs is None else read_constants(costs)), progress, seconds(starting, "starting"),
        begun if learned is None else learned, None if grant is None else named("grant", grant),
    )  # fmt: skip
    outcome = batched.run(setup) if in_batches else continuous.run(setup)
    about = {
        "topology": model.name, "policy": None if scaler is None else scaler.name, "grouping": _name(grouping), "mode": mode,
        "trace": None if trace is None else _label(trace), "seed": seed,
        "target_ms": None if target_s is None else 1000 * target_s,
    }  # fmt: skip
    measured = {**dict.fromkeys(METRICS), **outcome.summary}
    if r_over is not None and measured["replicas"]["mean"] is not None:
        measured["saved_resources"] = 1 - measured["replicas"]["mean"] / r_over
    return replace(outcome, summary={**about, **{name: measured[name] for name in METRICS}})


def _shedding(model: Model, in_batches: bool, shed_after: str | float | None, queue_limit: int | None) -> Model:
    """The model with what PSPS leaves out: its t_out, and its queue limit at every operator."""
    if in_batches:
        raise OptionError("shed_after and queue_limit are for continuous mode; batches are simulated without load shedding")
    asked = Shedding(None if shed_after is None else seconds(shed_after, "shed_after"), queue_limit)  # which checks them
    timeout_s = model.timeout_s if asked.timeout_s is None else asked.timeout_s
    operators = model.operators
    if queue_limit is not None:
        operators = tuple(replace(one, queue_limit=queue_limit) for one in operators)
    return replace(model, timeout_s=timeout_s, operators=operators)


def _scaler(
    policy: str | ScalePolicy | None, settings: Mapping[str, object] | None, guards: Sequence[str], operators: Sequence[str],
    managed: Callable[[ScalePolicy], ScalePolicy] | None,
) -> tuple[ScalePolicy | None, State | None]:  # fmt: skip
    if isinstance(policy, str):
        made = chosen(policy, settings, guards, operators, managed)
        return made.policy, made.state
    if settings:
        raise OptionError(f"settings={dict(settings)!r} are for a policy by its name; give them to {policy!r} itself")
    if policy is not None:
        policy = policy if managed is None else managed(policy)
        policy = Guarded(policy, tuple(named("guard", one) for one in guards)) if guards else policy
        scale.check(policy, operators)
    return policy, None


def _told(
    scaler: Clairvoyant, model: Model, end: float, seed: int, interval_s: float, target_s: float | None, max_slots: int
) -> ScalePolicy:
    if target_s is None or math.isinf(end):
        raise OptionError("'clairvoyant' needs a target to keep, and an end: give target=, and duration= or a trace")
    return foreseen(scaler, model, end, seed, max_slots, interval_s, target_s)


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


def modelled(what: Model | Topology, rate: Rate | None, costs: str | Path | None) -> Model:
    """What is to be simulated, in numbers: a topology's costs are measured, or read from a file."""
    if isinstance(what, Topology):
        from springtide.sim.profile import model_of

        return model_of(what, rate, costs)
    if not isinstance(what, Model):
        raise TopologyError(f"simulate({what!r}): that is {type(what).__name__}, neither a topology nor a springtide.sim.Model")
    if costs is not None:
        raise OptionError(f"costs={str(costs)!r}: model {what.name!r} has its own costs; leave it out")
    return what if rate is None else what.with_rate(rate)


def _rate(trace: str | Path | Rate | float) -> Rate:
    return read_trace(trace) if isinstance(trace, str | Path) else as_rate(trace)


def _label(trace: str | Path | Rate | float) -> str:
    return str(trace)


def _name(grouping: Any) -> str:
    return grouping if isinstance(grouping, str) else str(getattr(grouping, "name", type(grouping).__name__))


def _grouping(chosen: Any, settings: Mapping[str, object]) -> Any:
    return registry.create("group", chosen, settings) if isinstance(chosen, str) else chosen


def _check_continual(grouping: Any) -> None:
    if not isinstance(grouping, Continual):
        able = [cls.name for cls in registry.available("group") if hasattr(cls, "online")]
        raise OptionError(
            f"grouping {_name(grouping)!r} routes whole batches only, and continuous mode goes record by record;"
            f" {nearest(_name(grouping), able)}; micro-batch mode takes all of them"
        )


def _check_rules(model: Model) -> None:
    """What a batch has no use for."""
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
        raise OptionError(f"grouping {_name(grouping)!r} is a bound for continuous mode; a batch has no queues to look at")
