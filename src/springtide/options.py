"""The options of runs, simulations and attachments, in frozen groups.

The public functions and the commands make these groups from their arguments and pass them on as one value. An option that is
not allowed fails here; the error names the given value, the allowed ones and the remedy.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springtide.control.plane.spec import Spec, make
from springtide.control.planner import SlotLimit
from springtide.control.plans import Goals
from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.ending import Ending
from springtide.model.source import Source
from springtide.model.topology import AUTO, Kind, Topology
from springtide.policy import registry
from springtide.policy.batch.shedding import Shedding
from springtide.policy.chosen import Chosen, named, refuse_simulated
from springtide.policy.group import Grouping
from springtide.policy.shard import Sharder

Duration = str | float
"""Such as ``"2s"`` or ``"250ms"``; a plain number is seconds."""
Folder = str | os.PathLike[str]

EXECUTORS = ("elastic", "fixed", "spark")
STALL_AFTER_S = 60.0


def operators_of(topology: Topology) -> tuple[str, ...]:
    """The operators that a policy may name."""
    return tuple(operator.name for operator in topology.scalable)


def optional_s(value: Duration | None, name: str) -> float | None:
    return None if value is None else seconds(value, name)


def positive_s(value: Duration, name: str) -> float:
    found = seconds(value, name)
    if found <= 0:
        raise OptionError(f"{name}={value!r} is not allowed; give a duration above 0, such as 60s")
    return found


def spec(
    policy: str = "tide", settings: Mapping[str, object] | None = None, guards: Sequence[str] = (),
    operators: Sequence[str] = (), seed: int = 0, grant: str | None = None, managers: str = "",
) -> Spec:  # fmt: skip
    """The policy, its guards, and the granting policy."""
    return Spec(policy, settings or {}, tuple(guards), tuple(operators), seed, grant, managers)


def scaler(asked: Spec) -> Chosen:
    """The policy behind its guards. Policies that only the simulator can ask are refused."""
    refuse_simulated(asked.policy)
    return make(asked)


def goals(
    target: Duration | None = None, trigger: Duration = 0.0, interval: Duration = 1.0, max_slots: int = 8,
    starting_s: float | None = None, pause_s: float | None = None,
) -> Goals:  # fmt: skip
    """The latency target, the minimum time between batches, the time between decisions, and the maximum number of slots."""
    return Goals(
        SlotLimit(max_slots), optional_s(target, "target"), seconds(trigger, "trigger"), positive_s(interval, "interval"),
        starting_s, pause_s,
    )  # fmt: skip


def shedding(shed_after: Duration | None = None, queue_limit: int | None = None) -> Shedding | None:
    """The load shedding; None if no record is dropped."""
    if shed_after is None and queue_limit is None:
        return None
    return Shedding(optional_s(shed_after, "shed_after"), queue_limit)


def check_shedding(shedding: Shedding, topology: Topology) -> None:
    """Refuse load shedding if the age of records is unknown."""
    for source in topology.sources:
        spec = source.source
        counts = isinstance(spec, Source) and spec.has_backlog
        dates = spec.has_times if isinstance(spec, Source) else getattr(spec, "created", None) is not None
        if shedding.queue_limit is not None and not counts:
            raise OptionError(
                f"queue_limit={shedding.queue_limit}: source {source.name!r} does not say how many records wait; give"
                " shed_after instead, the age that records may have"
            )
        if not dates:
            raise OptionError(
                f"source {source.name!r} does not say when records were created, so none is too old; give created="
            )
        if any(reader.kind is Kind.SQL for reader in topology.consumers[source.name]):
            raise OptionError(f"source {source.name!r} is read by a sql operator, inside Spark, where no record is left out")


@dataclass(frozen=True)
class RoutingOptions:
    """Routing to tasks: the grouping of operators that name none, and the sharding of stateful operators."""

    grouping: str = "tide"
    grouping_settings: Mapping[str, object] | None = None
    sharding: str | Sharder = "balance"

    def groupings(self, topology: Topology) -> dict[str, Grouping]:
        """A grouping for every operator that is not chained."""
        default, settings = self.grouping, self.grouping_settings or {}
        registry.create("group", default, settings)
        wanted = {o.name: default if o.grouping == AUTO else o.grouping for o in topology if o.grouping is not None}
        for name, grouping in wanted.items():
            kind = registry.find("group", grouping)
            if getattr(kind, "needs_key", False) and not (topology[name].key or topology[name].by):
                raise OptionError(f"operator {name!r}: grouping {grouping!r} needs a key; write by=column, or .key_by(column)")
            if getattr(kind, "simulator_only", False):
                raise OptionError(f"operator {name!r}: grouping {grouping!r} is a bound, for `springtide simulate` alone")
        return {
            name: registry.create("group", grouping, settings if grouping == default else {})
            for name, grouping in wanted.items()
        }

    def sharder(self) -> Sharder:
        sharder: Sharder = named("shard", self.sharding) if isinstance(self.sharding, str) else self.sharding
        return sharder


def ending(duration: Duration | None = None, batches: int | None = None, available_now: bool = False) -> Ending:
    return Ending(optional_s(duration, "duration"), batches, available_now)


@dataclass(frozen=True)
class PlaceOptions:
    """Where a run writes. ``checkpoint``: None for the run's own folder; ``state``: None for the checkpoint."""

    runs: Path = Path("runs")
    checkpoint: Path | None = None
    state: str | None = None


def places(checkpoint: Folder | None = None, runs: Folder = "runs", state: str | None = None) -> PlaceOptions:
    return PlaceOptions(Path(runs), None if checkpoint is None else Path(checkpoint), state)


@dataclass(frozen=True)
class SparkOptions:
    """The session (``spark``) or the settings of a new one, and who adds and removes its executors."""

    spark: Any = None
    master: str | None = None
    conf: Mapping[str, str] | None = None
    py_files: Sequence[str] = ()
    archives: Sequence[str] = ()
    executors: str | None = None
    min_executors: int = 1

    def __post_init__(self) -> None:
        if self.executors is not None and self.executors not in EXECUTORS:
            raise OptionError(f"executors={self.executors!r} is not allowed; {nearest(self.executors, EXECUTORS)}")

    @property
    def dynamic(self) -> bool:
        """Whether Spark's dynamic allocation may be on."""
        return self.executors == "spark"

    @property
    def elastic(self) -> bool:
        """Whether executors follow the granted slots; not the default in a session of the caller's."""
        return (self.executors or ("elastic" if self.spark is None else "fixed")) == "elastic"


def stall_limit(stall_after: Duration = STALL_AFTER_S) -> float:
    return positive_s(stall_after, "stall_after")


@dataclass(frozen=True)
class RunOptions:
    """All options of a run. ``dry_run``: record the policy's requests without carrying them out."""

    policy: Spec
    goals: Goals
    routing: RoutingOptions
    ending: Ending
    places: PlaceOptions
    spark: SparkOptions
    shedding: Shedding | None = None
    dry_run: bool = False
    stall_after_s: float = STALL_AFTER_S

    def __post_init__(self) -> None:
        least, most = self.spark.min_executors, self.goals.bounds.max_slots
        if not 1 <= least <= most:
            raise OptionError(f"min_executors={least} is not allowed; it is from 1 to max_slots, which is {most}")

    @classmethod
    def of(cls, operators: Sequence[str], given: Mapping[str, Any]) -> RunOptions:
        """From a command line's values, named as the keywords of ``springtide.run``."""
        return cls(**groups(_OF_RUN, {**given, "operators": operators}))


_OF_RUN: Mapping[str, Callable[..., Any]] = {
    "policy": spec, "goals": goals, "routing": RoutingOptions, "ending": ending, "places": places, "spark": SparkOptions,
    "shedding": shedding, "dry_run": lambda dry_run=False: dry_run, "stall_after_s": stall_limit,
}  # fmt: skip


def groups(makers: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Groups of options, each made from the values that its maker has parameters for. Other values raise TypeError."""
    takes = {group: inspect.signature(make).parameters for group, make in makers.items()}
    if unknown := given.keys() - {name for parameters in takes.values() for name in parameters}:
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    return {
        group: make(**{name: given[name] for name in takes[group] if name in given}) for group, make in makers.items()
    }  # fmt: skip
