"""The options of simulations in frozen groups: those shared with runs, and those of the two modes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from springtide import options
from springtide.control.plane.spec import Spec, hierarchical, make
from springtide.control.plans import Goals
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.duration import seconds
from springtide.model.rate import Rate, as_rate
from springtide.model.rate import trace as read_trace
from springtide.model.topology import Topology
from springtide.options import Duration
from springtide.policy import scale
from springtide.policy.batch.shedding import Shedding
from springtide.policy.chosen import Chosen, named
from springtide.policy.grant import GrantPolicy
from springtide.policy.group import Continual, Grouping
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.scale.clairvoyant import Clairvoyant, Foreseen
from springtide.sim.constants import Constants
from springtide.sim.model import Model
from springtide.sim.rules import Reconfiguration

MODES = ("continuous", "micro-batch")
NO_LIMIT = 100_000
"""Slots without ``max_slots``: more than any cluster has."""
BATCH_SLOTS = 8
"""Default of ``max_slots`` in micro-batch mode, as in a run."""


@dataclass(frozen=True)
class LoadOptions:
    """The load: a rate that replaces the sources' own, the arrivals within its steps, and the file of costs."""

    trace: str | Path | Rate | float | None = None
    arrivals: Literal["even", "poisson"] | None = None
    costs: str | Path | None = None

    @cached_property
    def rate(self) -> Rate | None:
        if self.trace is None:
            return None
        return read_trace(self.trace) if isinstance(self.trace, str | Path) else as_rate(self.trace)

    def model(self, what: Model | Topology) -> Model:
        model = modelled(what, self.rate, self.costs)
        if self.arrivals is None:
            return model
        return replace(model, sources=tuple(replace(source, arrivals=self.arrivals) for source in model.sources))


def modelled(what: Model | Topology, rate: Rate | None, costs: str | Path | None) -> Model:
    """The model to simulate. A topology's costs are measured, or read from a file."""
    if isinstance(what, Topology):
        from springtide.sim.profile import model_of

        return model_of(what, rate, costs)
    if not isinstance(what, Model):
        raise TopologyError(f"simulate({what!r}): that is {type(what).__name__}, neither a topology nor a springtide.sim.Model")
    if costs is not None:
        raise OptionError(f"costs={str(costs)!r}: model {what.name!r} has its own costs; leave it out")
    return what if rate is None else what.with_rate(rate)


@dataclass(frozen=True)
class PolicyOptions:
    """The policy (a name or an object), its guards and its granting policy. Without a policy the degrees never change.

    ``learned``: the initial state.
    """

    policy: str | ScalePolicy | None = None
    settings: Mapping[str, object] | None = None
    guards: Sequence[str] = ()
    grant: str | None = None
    managers: str = ""
    learned: State | None = None

    def __post_init__(self) -> None:
        bound = self.policy == Clairvoyant.name or isinstance(self.policy, Clairvoyant | Foreseen)
        if bound and (self.guards or self.grant is not None):
            option = "guards" if self.guards else "grant"
            raise OptionError(f"'clairvoyant' is a theoretical bound without guards and grants; leave {option} out")
        if self.settings and not isinstance(self.policy, str):
            raise OptionError(
                f"settings={dict(self.settings)!r} are for a policy by its name; give them to {self.policy!r} itself"
            )

    def chosen(self, operators: Sequence[str]) -> Chosen | None:
        """The guarded policy with its initial state."""
        made = self._made(operators)
        if made is None or self.learned is None:
            return made
        without_guards = self.guards and "guards" not in self.learned
        return replace(made, state={"policy": self.learned, "guards": {}} if without_guards else self.learned)

    def granting(self) -> GrantPolicy | None:
        """The granting policy of executors, in micro-batch mode."""
        return None if self.grant is None else named("grant", self.grant)

    def _made(self, operators: Sequence[str]) -> Chosen | None:
        if isinstance(self.policy, str):
            return make(
                Spec(self.policy, self.settings or {}, tuple(self.guards), tuple(operators), 0, self.grant, self.managers)
            )
        managed = hierarchical(self.grant, self.managers)
        if self.policy is None:
            return None
        policy = self.policy if managed is None else managed(self.policy)
        policy = Guarded(policy, tuple(named("guard", guard) for guard in self.guards)) if self.guards else policy
        scale.check(policy, operators)
        return Chosen(policy)


@dataclass(frozen=True)
class GroupingOptions:
    """The default grouping of operators (a name or an object)."""

    grouping: str | Grouping | Continual = "tide"
    grouping_settings: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        return name_of(self.grouping)


def name_of(grouping: Any) -> str:
    return grouping if isinstance(grouping, str) else str(getattr(grouping, "name", type(grouping).__name__))


@dataclass(frozen=True)
class ModeOptions:
    """The mode, and the options that apply to one mode only."""

    mode: str = "continuous"
    reconfiguration: str | Reconfiguration = "none"
    warmup: Duration = 0.0
    by_record: bool = False
    begin: Duration | None = None
    trigger: Duration | None = None
    constants: Constants | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"mode {self.mode!r} does not exist; {nearest(self.mode, MODES)}")
        of_records = self.change.kind != "none" or self.by_record or self.warmup_s > 0
        if self.in_batches and of_records:
            raise OptionError("micro-batch mode is Spark's: reconfiguration, by_record and warmup are for continuous mode")
        given = {"trigger": self.trigger, "begin": self.begin, "constants": self.constants}
        unused = [name for name, value in given.items() if value is not None and not self.in_batches]
        if unused:
            raise OptionError(
                f"{unused[0]}={given[unused[0]]!r} has no effect in continuous mode; give mode='micro-batch' with it"
            )

    @property
    def in_batches(self) -> bool:
        return self.mode == "micro-batch"

    @cached_property
    def change(self) -> Reconfiguration:
        """The cost of a change of degrees."""
        asked = self.reconfiguration
        return Reconfiguration(asked) if isinstance(asked, str) else asked  # type: ignore[arg-type]  # which checks it

    @property
    def warmup_s(self) -> float:
        return seconds(self.warmup, "warmup")

    @property
    def begin_s(self) -> float:
        return seconds(self.begin or 0.0, "begin")

    def goals(
        self, target: Duration | None = None, interval: Duration = 1.0, max_slots: int | None = None, starting: Duration = 0.0
    ) -> Goals:
        """``starting``: the start-up time of a new replica."""
        return options.goals(
            target, self.trigger or 0.0, interval, max_slots or (BATCH_SLOTS if self.in_batches else NO_LIMIT),
            seconds(starting, "starting"), None if self.change.kind == "none" else self.change.seconds,
        )  # fmt: skip


@dataclass(frozen=True)
class SpanOptions:
    """The end: after a time, when this number of records of each source has left, or when the rate ends."""

    duration_s: float | None = None
    records: int | None = None


def span(duration: Duration | None = None, records: int | None = None) -> SpanOptions:
    return SpanOptions(options.optional_s(duration, "duration"), records)


def replicas_over(r_over: int | None = None) -> int | None:
    if r_over is not None and r_over < 1:
        raise OptionError(f"r_over={r_over!r} is not allowed; it is a number of replicas, at least 1")
    return r_over


@dataclass(frozen=True)
class SimulationOptions:
    """All options of a simulation. ``r_over``: replicas that suffice at any time, the base of the saved resources."""

    load: LoadOptions
    policy: PolicyOptions
    grouping: GroupingOptions
    goals: Goals
    span: SpanOptions
    mode: ModeOptions
    shedding: Shedding | None = None
    r_over: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.shedding is not None and self.mode.in_batches:
            raise OptionError("shed_after and queue_limit are for continuous mode; batches are simulated without load shedding")
        if self.mode.by_record and self.span.records is None:
            raise OptionError("by_record needs records=, the number of records of each source")

    def with_policy(self, policy: str | ScalePolicy, settings: Mapping[str, object] | None = None) -> SimulationOptions:
        return replace(self, policy=replace(self.policy, policy=policy, settings=settings))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SimulationOptions:
        """Options from a command line, by the keywords of ``springtide.sim.simulate``."""
        names = inspect.signature(ModeOptions).parameters
        mode = ModeOptions(**{name: value for name, value in given.items() if name in names})
        rest = {name: value for name, value in given.items() if name not in names}
        return cls(mode=mode, **options.groups({**_GROUPS, "goals": mode.goals}, rest))


_GROUPS: Mapping[str, Callable[..., Any]] = {
    "load": LoadOptions, "policy": PolicyOptions, "grouping": GroupingOptions, "span": span, "shedding": options.shedding,
    "r_over": replicas_over, "seed": lambda seed=0: seed,
}  # fmt: skip
