"""The network of sources and operators, simulated in steps.

The graph has no cycle, so within a step each operator receives all its input before the next one is simulated. Records that
leave an operator after the step's end stay until a later step. The boundaries of steps change no result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from springtide.policy.group import Continual
from springtide.policy.group.full_knowledge import FullKnowledge
from springtide.sim.arrivals import BLOCK, Arrivals, Batch
from springtide.sim.book import LatencyBook, new_book, with_room, write_down
from springtide.sim.cluster import LONGEST_STEP_S, network_of, place
from springtide.sim.compile import compiled
from springtide.sim.draws import generator, reads_items
from springtide.sim.flow import handed_on
from springtide.sim.gate import Gate
from springtide.sim.kernels import Ints
from springtide.sim.model import Model
from springtide.sim.rules import Cluster
from springtide.sim.station import Station


class Engine:
    """Simulates a model up to the times that the caller asks for."""

    def __init__(
        self, model: Model, groupings: Mapping[str, Continual], seed: int, *, records: int | None = None,
        horizon_s: float = 0.0, warmup_s: float = 0.0, by_record: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.now, self._warmup = model, 0.0, warmup_s
        timeout = math.inf if model.timeout_s is None or model.late == "count" else model.timeout_s
        self.beyond = math.inf if model.timeout_s is None else model.timeout_s
        self.sources = [Arrivals(source, seed, records, number * (records or 0)) for number, source in enumerate(model.sources)]
        carried = _carried(model, groupings, by_record)
        looked_at = model.cluster is not None or model.back_pressure is not None  # whether a record's replica matters
        self.stations = {
            operator.name: Station(
                operator, groupings[operator.name], _seed(seed, operator.name), timeout, model.feedback_s, carried, looked_at
            )
            for operator in model.operators
        }
        self.book: LatencyBook = new_book(BLOCK, horizon_s, len(model.sources) * (records or 0) if by_record else 0)
        self.received, self._received_before = 0, 0
        self.expected, self._expected_before = 0.0, 0.0  # expected departures for the received records
        self.sent: Counter[tuple[str, str]] = Counter()  # records along each edge
        self.arrived: dict[str, Counter[int]] = {source.name: Counter() for source in model.sources}  # by second
        self._came, self._read = Counter[str](), Counter[str]()  # records that arrived at each source, and that it passed on
        visits = [model.visits(source, seed) for source in model.sources]
        self._exiting = [sum(counts[operator.name] for operator in model.exits) for counts in visits]
        shares = np.array([max(source.steps.values) for source in model.sources])
        shares = shares / (shares.sum() or 1.0)
        self._visits = {
            name: sum(share * counts[name] for share, counts in zip(shares, visits, strict=True)) for name in self.stations
        }
        self._gates = [Gate(source.queue_limit) for source in model.sources]
        self._closed, self._room = False, math.inf
        looks = model.back_pressure.every_s if model.back_pressure else math.inf
        self._longest = min(looks, self._connect(model.cluster) if model.cluster else math.inf)
        self._exits = {operator.name for operator in model.exits}
        self._readers = {name: model.readers(name) for name in [s.name for s in model.sources] + list(self.stations)}
        self._splits = {operator.name for operator in model.operators if operator.splits}
        self._coins = {name: generator(seed, f"copies from {name}") for name in self._readers}

    @property
    def exhausted(self) -> bool:
        """Whether all records have arrived."""
        return all(source.exhausted for source in self.sources)

    @property
    def in_flight(self) -> int:
        """The number of records in sources and operators."""
        return sum(station.in_flight for station in self.stations.values()) + self.held_back

    @property
    def held_back(self) -> int:
        """The number of records that the sources hold back."""
        return sum(gate.size for gate in self._gates)

    @property
    def refused(self) -> int:
        """The number of records that the sources dropped."""
        return sum(gate.refused for gate in self._gates)

    def oldest(self) -> float:
        """The creation time of the oldest record in flight."""
        stations = min(station.oldest() for station in self.stations.values())
        return min(stations, *(gate.oldest() for gate in self._gates))

    def older_than(self, time: float) -> int:
        """The number of records in flight that were created before ``time``."""
        stations = sum(station.older_than(time) for station in self.stations.values())
        return stations + sum(gate.older_than(time) for gate in self._gates)

    def take_received(self) -> tuple[int, float]:
        """The arrivals since the last call, and the expected departures for them."""
        taken = self.received - self._received_before, self.expected - self._expected_before
        self._received_before, self._expected_before = self.received, self.expected
        return taken

    def take_arrived(self, since: float, until: float) -> dict[str, tuple[float, ...]]:
        """Each source's arrivals in each second of this span, which are then forgotten; a partial second is extrapolated."""
        taken = {}
        for name, counts in self.arrived.items():
            seconds = range(math.floor(since), math.ceil(until))
            lengths = [min(until, second + 1) - max(since, second) for second in seconds]
            taken[name] = tuple(counts.pop(s, 0) / length for s, length in zip(seconds, lengths, strict=True))
        return taken

    def take_flow(self) -> dict[str, tuple[int, int, int]]:
        """By source: records that arrived and that were passed on since the last call, and records held back."""
        came, read = self._came, self._read
        self._came, self._read = Counter(), Counter()
        return {name: (came[name], read[name], gate.size) for name, gate in zip(self.arrived, self._gates, strict=True)}

    def take_sent(self) -> dict[tuple[str, str], int]:
        """The records along each edge since the last call."""
        taken, self.sent = dict(self.sent), Counter()
        return taken

    def resize(self, replicas: Mapping[str, int]) -> None:
        """Change the numbers of active replicas."""
        for name, degree in replicas.items():
            self.stations[name].resize(degree)
        if self.model.cluster is not None:
            place(self.model.cluster, self.stations.values())

    def interrupt(self, names: Sequence[str], seconds: float, drop: bool) -> None:
        """Start no record at these operators for this time; ``drop`` discards their queues."""
        for name in names:
            self.stations[name].defer(self.now, self.now + seconds, drop)

    def _connect(self, cluster: Cluster) -> float:
        """Place the replicas on nodes, and connect the nodes; the result limits the length of a step."""
        place(cluster, self.stations.values())
        network = network_of(cluster)
        for station in self.stations.values():
            station.network = network
        return LONGEST_STEP_S if network is not None and network.wire.any() else math.inf

    def _check_queues(self) -> None:
        marks = self.model.back_pressure
        if marks is None:
            return
        longest, self._room = 0, math.inf
        for name, station in self.stations.items():
            queues = station.queues()
            longest = max(longest, int(queues.max()))
            room = np.maximum(0, marks.high - queues).sum() + station.served
            self._room = min(self._room, room / (self._visits[name] or 1.0))
        self._closed = longest > (marks.low if self._closed else marks.high)

    def advance(self, until: float) -> None:
        """Simulate up to ``until``."""
        while self.now < until or any(source.next_at <= until for source in self.sources):
            self._size_blocks()
            self._step(min(until, self.now + self._longest, *(source.block_end for source in self.sources)))
            self._check_queues()

    def _size_blocks(self) -> None:
        """A step scans all records in the queues of replicas: the steps grow with the queues, as a backlog of n would take n²
        work otherwise. Records that wait for the first free replica are not scanned, but their steps are limited alike."""
        waiting = max(station.under_way for station in self.stations.values())
        for source in self.sources:
            source.block = max(BLOCK, waiting // 4)

    def drain(self) -> float:
        """Simulate until all records have left, and return the time of the last departure."""
        while not self.exhausted:
            self.advance(min(source.block_end for source in self.sources))
        while self.in_flight:
            ends = [station.last_departure() for station in self.stations.values()]
            self.advance(max(*ends, self.now + self._longest if self.held_back else self.now))
        return self.now

    def _step(self, until: float) -> None:
        sent: dict[str, list[Batch]] = {name: [] for name in self.stations}
        for source, gate, exiting in zip(self.sources, self._gates, self._exiting, strict=True):
            batch = source.take(until)
            self.received += len(batch.at)
            self.expected += len(batch.at) * exiting
            self._note(source.source.name, batch)
            passed = gate.passed(batch, self._closed, self._room, self.now, until)
            self._room -= len(passed.at)
            self._came[source.source.name] += len(batch.at)
            self._read[source.source.name] += len(passed.at)
            self._send(source.source.name, passed, sent)
        for name, station in self.stations.items():
            left, served = station.step(sent[name], self.now, until)
            if name in self._exits:
                self._write_down(station, left, served, until)
            elif served:
                self._send(name, station.leaving(), sent)
            station.clear()
        self.now = until

    def _note(self, source: str, batch: Batch) -> None:
        if len(batch.at):
            first = int(batch.at[0])
            ends = np.searchsorted(batch.at, np.arange(first + 1, int(batch.at[-1]) + 1), side="left")
            counts = np.diff(ends, prepend=0, append=len(batch.at))
            self.arrived[source].update({first + i: n for i, n in enumerate(counts.tolist())})

    def _write_down(self, station: Station, left: Ints, served: int, until: float) -> None:
        self.book = with_room(self.book, served, until)
        compiled(write_down)(station.rows, left, served, self.book, self.beyond, self._warmup)

    def _send(self, name: str, batch: Batch, sent: dict[str, list[Batch]]) -> None:
        if len(batch.at):
            for reader, part in handed_on(self._readers[name], name in self._splits, batch, self._coins[name]):
                sent[reader].append(part)
                self.sent[name, reader] += len(part.at)


def _carried(model: Model, groupings: Mapping[str, Continual], by_record: bool) -> tuple[str, ...]:
    """The optional columns of records that something reads."""
    items = any(
        reads_items(operator.cost)
        or type(groupings[operator.name]) is not FullKnowledge
        or any(isinstance(edge.copies, np.ndarray) for edge in operator.edges)
        for operator in model.operators
    )
    asked = {"item": items, "root": by_record, "origin": model.cluster is not None}
    return tuple(name for name, is_asked in asked.items() if is_asked)


def _seed(seed: int, name: str) -> int:
    """The seed of an operator's grouping."""
    return int(generator(seed, f"grouping of {name}").integers(2**31))
