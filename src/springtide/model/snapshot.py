"""What was measured in one interval. A measurement that is missing, or cannot be one, is None, never zero."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from springtide.model.plan import Plan
from springtide.model.report import Latency


class _Measured:
    """What cannot have been measured (not a number, infinite, negative) becomes None, so that no policy acts on it.

    A series or a list with such a number in it becomes empty, as if nothing was told.
    """

    _single: ClassVar[tuple[str, ...]]  # the fields that may be None
    _series: ClassVar[tuple[str, ...]]  # those that are tuples with numbers

    def __init_subclass__(cls) -> None:
        """Found once for a class: a snapshot has thousands of values."""
        types = {name: str(kind) for name, kind in cls.__annotations__.items()}
        cls._single = tuple(name for name, kind in types.items() if "None" in kind)
        cls._series = tuple(name for name, kind in types.items() if re.match(r"tuple\b.*\b(int|float)\b", kind))

    def __post_init__(self) -> None:
        for name in self._single:
            if _absurd(getattr(self, name)):
                object.__setattr__(self, name, None)
        for name in self._series:
            value = getattr(self, name)
            if isinstance(value, tuple) and any(_absurd(one) for item in value for one in _numbers(item)):
                object.__setattr__(self, name, ())


def _absurd(value: object) -> bool:
    return isinstance(value, (int, float)) and not 0 <= value < math.inf


def _numbers(item: object) -> tuple[object, ...]:
    return item if isinstance(item, tuple) else (item,)


@dataclass(frozen=True)
class NodeSnapshot(_Measured):
    """A machine: its cores, and how many of them are in use, by whomever.

    ``executors``: those on it, where there are such, the one that is missed least first. ``memory``: the share of theirs that
    is in use, of the one that has most in use.
    """

    name: str
    cores: float
    used: float | None = None
    executors: tuple[str, ...] = ()
    memory: float | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NodeSnapshot:
        return cls(**{**document, "executors": tuple(document.get("executors", ()))})


@dataclass(frozen=True)
class ReplicaSnapshot(_Measured):
    """One replica of an operator: where it is, and the share of the interval in which it was busy."""

    node: str
    utilisation: float | None = None


@dataclass(frozen=True)
class OperatorSnapshot(_Measured):
    """One operator over one interval: what came, what left, and how busy its replicas were.

    ``inputs``: whom it reads, sources or operators, with the records that came from each. ``limit``: the most replicas that
    it can use. ``shards``: how many parts its state is cut into, if it has any.
    """

    name: str
    degree: int
    width: int
    rows_in: int | None
    rows_out: int | None
    failures: int | None
    busy_s: float | None
    rate: float | None  # records/s arriving
    utilisation: float | None  # busy time / (degree × interval)
    backlog: int | None  # records that wait for it
    latency_ms: float | None  # in batches: from the start of its stage to its end; else from a record's coming to its leaving
    served: int | None = None  # records that it was done with; in batches those that came
    inputs: tuple[tuple[str, int], ...] = ()
    limit: int | None = None
    shards: int | None = None
    replicas: tuple[ReplicaSnapshot, ...] = ()

    @property
    def cost_s(self) -> float | None:
        """Seconds of work that a record takes; None when nothing was served."""
        return self.busy_s / self.served if self.served and self.busy_s else None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "replicas": [dict(vars(one)) for one in self.replicas]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OperatorSnapshot:
        inputs = tuple((name, rows) for name, rows in document["inputs"])
        return cls(**{**document, "inputs": inputs, "replicas": tuple(ReplicaSnapshot(**one) for one in document["replicas"])})


@dataclass(frozen=True)
class SourceSnapshot(_Measured):
    """One source over one interval: what arrived, what was read and what waits. An arrival is a record's creation: a new end
    offset of a topic, a new record of a generated stream.

    ``rows``: records that were read. ``arrivals``: records/s that arrived, read or not, in parts of about a second, the latest
    last; empty where creation times are unknown. ``arrival_rate``: their mean, by what was read and by what the backlog grew.
    ``backlog``: records that wait to be read, at the last count.
    """

    name: str
    rows: int | None
    arrivals: tuple[float, ...] = ()
    arrival_rate: float | None = None
    backlog: int | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SourceSnapshot:
        return cls(**{**document, "arrivals": tuple(document.get("arrivals", ()))})


@dataclass(frozen=True)
class Snapshot(_Measured):
    """The whole topology over one interval, ``at`` seconds after the run's start; every operator after those it reads.

    ``batches``: (records, seconds) of each batch that ended in the interval; a batch-size rule learns from them.
    ``target_s``: the latency that is wanted of the run. ``slots``: the most replicas that all operators may have together.
    ``trigger_s``: the time between two batches, 0 or None where none is set. ``starting_s``: how long a replica takes to come.
    ``pause_s``: how long a change of degrees stops the operators; not at all on Spark.
    ``there``: slots for which nothing has to start, where executors come and go.
    ``batch_overhead_s``: what a batch takes beside its work, which no replica shortens, where that was measured.
    """

    at: float
    interval_s: float
    plan: Plan
    operators: tuple[OperatorSnapshot, ...]
    batches: tuple[tuple[int, float], ...]
    rate: float | None
    backlog: int | None
    latency: Latency | None
    sources: tuple[SourceSnapshot, ...] = ()
    nodes: tuple[NodeSnapshot, ...] = ()
    target_s: float | None = None
    slots: int | None = None
    trigger_s: float | None = None
    starting_s: float | None = None
    pause_s: float | None = None
    there: int | None = None
    batch_overhead_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.interval_s < math.inf:
            object.__setattr__(self, "interval_s", 0.0)  # an interval that was none: nothing was measured in it

    @property
    def arrival_rate(self) -> float | None:
        """Records/s that arrived at all sources together; None where one of them is unknown."""
        rates = [source.arrival_rate for source in self.sources]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known and len(known) == len(rates) else None

    @cached_property
    def by_name(self) -> dict[str, OperatorSnapshot]:
        return {operator.name: operator for operator in self.operators}

    def __getitem__(self, name: str) -> OperatorSnapshot:
        return self.by_name[name]

    def to_json(self) -> dict[str, Any]:
        """Of 1,000 operators in 5 ms where ``asdict`` takes 37: a driver has other things to do."""
        return {
            **{part.name: getattr(self, part.name) for part in fields(self)},
            "plan": self.plan.to_json(),
            "operators": [one.to_json() for one in self.operators],
            "latency": None if self.latency is None else dict(vars(self.latency)),
            "sources": [dict(vars(one)) for one in self.sources],
            "nodes": [dict(vars(one)) for one in self.nodes],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Snapshot:
        latency = document["latency"]
        parts = {
            "plan": Plan.from_json(document["plan"]),
            "operators": tuple(OperatorSnapshot.from_json(one) for one in document["operators"]),
            "batches": tuple((rows, seconds) for rows, seconds in document["batches"]),
            "latency": None if latency is None else Latency(**latency),
            "sources": tuple(SourceSnapshot.from_json(one) for one in document["sources"]),
            "nodes": tuple(NodeSnapshot.from_json(one) for one in document["nodes"]),
        }
        return cls(**{**document, **parts})
