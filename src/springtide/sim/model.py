"""The model that the simulator runs. Its values are frozen; all times are in seconds.

>>> from springtide.sim.draws import Exponential, Zipf
>>> model = Model(
...     "shop",
...     sources=(Source("orders", rate=90.0, items=Zipf(1000, 1.0)),),
...     operators=(Operator("price", inputs=("orders",), cost=Exponential(0.01), replicas=2), Operator("pack", ("price",))),
... )
>>> [operator.name for operator in model.exits]
['pack']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from springtide.connectors.generate import GenerateSource
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.endpoints import DiscardSink
from springtide.model.rate import Rate, as_rate
from springtide.model.schema import schema_of
from springtide.model.topology import AUTO, Kind, Topology
from springtide.model.topology import Operator as TopologyOperator
from springtide.sim.draws import NOTHING, Cost, Items, chances_of, generator
from springtide.sim.rules import BackPressure, Cluster

NO_LIMIT = 2**62


@dataclass(frozen=True)
class Source:
    """Records at a rate. ``arrivals``: evenly spaced within a step of the rate, or a Poisson process of that rate.

    ``times`` are creation times that replace the arrivals; the rate then only gives the expected number of records. ``limit``
    is the number of records. ``queue_limit``: the records that it holds back under back-pressure before it sheds the oldest.
    """

    name: str
    rate: Rate | float = 1.0
    items: Items | None = None
    arrivals: Literal["even", "poisson"] = "even"
    times: npt.NDArray[np.float64] | None = field(default=None, compare=False)
    limit: int | None = None
    queue_limit: int = NO_LIMIT
    node: int | None = None

    def __post_init__(self) -> None:
        if self.arrivals not in ("even", "poisson"):
            raise OptionError(
                f"source {self.name!r}: arrivals={self.arrivals!r}; {nearest(self.arrivals, ('even', 'poisson'))}"
            )

    @property
    def steps(self) -> Rate:
        return as_rate(self.rate)


@dataclass(frozen=True)
class Edge:
    """An operator's share of a producer's output: ``copies`` of each record, with a fraction as the chance of one more.

    0.2 is every fifth record on average, 2.5 two or three of each. An array gives the copies by item.
    """

    source: str
    copies: float | npt.NDArray[np.float64] = field(default=1.0, compare=False)

    def of(self, items: int | None) -> float | npt.NDArray[np.float64]:
        """The copies for each of this many items, or their mean for None."""
        if isinstance(self.copies, np.ndarray):
            return float(np.mean(self.copies)) if items is None else self.copies[:items]
        return float(self.copies)


@dataclass(frozen=True)
class Speeds:
    """Cost factors of the replicas, from a record or a time on; further replicas have 1."""

    factors: tuple[float, ...]
    from_record: int = 0  # counted at the operator, in the order of arrival
    from_s: float = 0.0


@dataclass(frozen=True)
class Operator:
    """Replicas with a FIFO queue each, or with a shared queue. ``cost`` is a record's time on a replica of speed 1.

    ``splits``: each of its records goes to a single reader, with the edges' copies as probabilities; else to all readers.
    ``queue_limit``: the records that may wait for a replica, without the one in service; beyond it the oldest is shed.
    ``keys``: by item, its key as a number or, with ``hashed``, as the hash; by default the item is the key. ``nodes``: the
    nodes of its replicas; by default they are spread over the cluster.
    """

    name: str
    inputs: tuple[str | Edge, ...]
    cost: Cost = NOTHING
    replicas: int = 1
    parallelism: int | None = None
    grouping: str | None = None
    queue: Literal["each", "shared"] = "each"
    splits: bool = False
    speeds: tuple[Speeds, ...] = ()
    queue_limit: int = NO_LIMIT
    keys: npt.NDArray[np.uint64] | None = field(default=None, compare=False)
    hashed: bool = False
    nodes: tuple[int, ...] = ()
    members: tuple[tuple[str, float, float], ...] = ()
    """The operators folded into it: name, share of its cost, and records per record of its own."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise OptionError(f"operator {self.name!r}: replicas={self.replicas} is not allowed; it is at least 1")
        if self.queue not in ("each", "shared"):
            raise OptionError(f"operator {self.name!r}: queue={self.queue!r}; {nearest(self.queue, ('each', 'shared'))}")

    @property
    def folded(self) -> tuple[tuple[str, float, float], ...]:
        return self.members or ((self.name, 1.0, 1.0),)

    @property
    def head(self) -> str:
        """The first of the topology's operators that are folded into it."""
        return self.folded[0][0]

    @property
    def phases(self) -> tuple[Speeds, ...]:
        """Its speeds in the order in which they apply; before the first, every replica has 1."""
        ordered = tuple(sorted(self.speeds, key=lambda speeds: (speeds.from_record, speeds.from_s)))
        late = bool(ordered) and (ordered[0].from_record > 0 or ordered[0].from_s > 0)
        return (Speeds(()), *ordered) if late else ordered

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge if isinstance(edge, Edge) else Edge(edge) for edge in self.inputs)


@dataclass(frozen=True)
class Model:
    """Sources, operators and edges without a cycle, and their common rules.

    ``timeout_s``: the maximum age of a record when it starts. ``late``: older ones are removed, or only counted.
    ``feedback_s``: the delay until a grouping learns that a record is done, and until its place in a limited queue is free.
    """

    name: str
    sources: tuple[Source, ...]
    operators: tuple[Operator, ...]
    cluster: Cluster | None = None
    timeout_s: float | None = None
    late: Literal["remove", "count"] = "remove"
    feedback_s: float = 0.0
    back_pressure: BackPressure | None = None
    origin: Topology | None = None
    """The topology that was modelled; None for a model made by hand."""

    def __post_init__(self) -> None:
        if not self.sources or not self.operators:
            raise TopologyError(f"model {self.name!r} needs at least one source and one operator")
        known = {source.name for source in self.sources}
        for operator in self.operators:
            if operator.name in known:
                raise TopologyError(f"model {self.name!r}: two of its parts are named {operator.name!r}")
            for edge in operator.edges:
                if edge.source not in known:
                    raise TopologyError(
                        f"operator {operator.name!r} reads {edge.source!r}, which is not listed before it;"
                        f" {nearest(edge.source, known)}"
                    )
            known.add(operator.name)
        if self.cluster is not None and any(operator.queue == "shared" for operator in self.operators):
            raise OptionError(
                f"model {self.name!r}: replicas on nodes have a queue each; leave queue='shared' or the cluster out"
            )

    def with_rate(self, rate: Rate) -> Model:
        """The same model with another rate of its sources."""
        return replace(self, sources=tuple(replace(source, rate=rate) for source in self.sources))

    def readers(self, name: str) -> tuple[tuple[Operator, Edge], ...]:
        return tuple((operator, edge) for operator in self.operators for edge in operator.edges if edge.source == name)

    @cached_property
    def exits(self) -> tuple[Operator, ...]:
        """The operators from which records leave for good."""
        return tuple(operator for operator in self.operators if not self.readers(operator.name))

    def visits(self, source: Source, seed: int) -> Mapping[str, float]:
        """The mean number of records at each operator per record of a source, weighted by the items' probabilities."""
        size, chances = None, np.ones(1)
        if source.items is not None:
            size, chances = source.items.size, chances_of(source.items, generator(seed, f"items of {source.name}"))
        by_item: dict[str, float | npt.NDArray[np.float64]] = {other.name: float(other is source) for other in self.sources}
        for operator in self.operators:
            by_item[operator.name] = sum((by_item[edge.source] * edge.of(size) for edge in operator.edges), 0.0)
        return {name: float(np.sum(each * chances)) for name, each in by_item.items()}

    @cached_property
    def topology(self) -> Topology:
        """The same graph for the control loop and the policies: operators without functions."""
        if self.origin is not None:
            return self.origin
        made = [
            TopologyOperator(s.name, Kind.SOURCE, source=GenerateSource(_no_record, s.steps), schema=_SCHEMA)
            for s in self.sources
        ]
        for operator in self.operators:
            last, inputs = operator in self.exits, tuple(edge.source for edge in operator.edges)
            if len(inputs) > 1:
                made.append(TopologyOperator(f"into-{operator.name}", Kind.UNION, inputs, schema=_SCHEMA))
                inputs = (made[-1].name,)
            made.append(
                TopologyOperator(
                    operator.name, Kind.SINK if last else Kind.MAP, inputs,
                    function=None if last else _no_record, schema=None if last else _SCHEMA, grouping=AUTO,
                    parallelism=operator.parallelism, sink=DiscardSink() if last else None,
                )
            )  # fmt: skip
        return Topology(self.name, tuple(made))


@dataclass(frozen=True)
class _Item:
    item: int


_SCHEMA = schema_of(_Item)


def _no_record(draw: object) -> _Item:
    raise AssertionError("a simulated operator has no function")
