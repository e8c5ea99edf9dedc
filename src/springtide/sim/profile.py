"""Models of topologies: chained operators fold into their head, and costs come from samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from springtide.model.rate import Rate
from springtide.model.topology import AUTO, Kind, Topology
from springtide.model.topology import Operator as Declared
from springtide.sim.draws import ByItem, Weighted
from springtide.sim.model import Edge, Model, Operator, Source
from springtide.sim.samples import Floats, Samples, measure, read


def model_of(topology: Topology, rate: Rate | None = None, costs: str | Path | None = None) -> Model:
    """The model of a topology, with costs from a file or by measuring; ``rate`` replaces the sources' rates."""
    samples = measure(topology) if costs is None else read(topology, costs)
    chains = _chains(topology)
    sources = tuple(
        Source(s.name, rate or _rate(s), _items(samples, s.name), limit=None if rate else getattr(s.source, "limit", None))
        for s in topology.sources
    )
    operators = tuple(_operator(topology, samples, chains, head) for head in chains if _members(topology, chains[head]))
    return Model(topology.name, sources, operators, origin=topology)


def _rate(source: Declared) -> Rate:
    return getattr(source.source, "rate", None) or Rate((0.0,), (1.0,))


def _items(samples: Samples, source: str) -> Weighted:
    """The samples of the source, with equal probabilities."""
    chances = np.zeros(samples.count)
    chances[samples.sources[source]] = 1.0
    return Weighted(chances)


def _chains(topology: Topology) -> dict[str, list[Declared]]:
    """The chains of operators that run in the same tasks, by their head: a source, or an operator behind a shuffle."""
    chains: dict[str, list[Declared]] = {}
    heads: dict[str, list[str]] = {}
    for operator in topology:
        if operator.chained:
            heads[operator.name] = list(dict.fromkeys(head for name in operator.inputs for head in heads[name]))
        else:
            heads[operator.name] = [operator.name]
        for head in heads[operator.name]:
            chains.setdefault(head, []).append(operator)
    return chains


def _members(topology: Topology, chain: list[Declared]) -> list[Declared]:
    return [operator for operator in chain if operator in topology.scalable]


def _name(topology: Topology, chains: dict[str, list[Declared]], head: str) -> str:
    """The name of a chain. A source's chain is named after its first operator, as the source's name stands for its input.

    If several sources share the first operator through a union, the name has both.
    """
    if topology[head].kind is not Kind.SOURCE:
        return head
    firsts = {source.name: _members(topology, chains[source.name])[:1] for source in topology.sources}
    if not firsts[head]:
        return head
    shared = list(firsts.values()).count(firsts[head]) > 1
    return f"{firsts[head][0].name}@{head}" if shared else firsts[head][0].name


def _operator(topology: Topology, samples: Samples, chains: dict[str, list[Declared]], head: str) -> Operator:
    chain, first = _members(topology, chains[head]), topology[head]
    coming = _coming(topology, samples, chains, head)
    parts = {m.name: samples.rows[m.name] * _share(topology, samples, chains, m) * (coming > 0) for m in chain}
    work = {name: rows * samples.seconds[name] for name, rows in parts.items()}
    total = sum(work.values(), np.zeros(samples.count))
    spent, entered = float(total.sum()), float(coming.sum()) or 1.0
    inputs: tuple[str | Edge, ...] = (head,)
    if first.kind is not Kind.SOURCE:
        inputs = tuple(_edges(topology, samples, chains, first, coming))
    return Operator(
        _name(topology, chains, head), inputs, ByItem(_per(total, coming)), parallelism=first.parallelism,
        grouping=None if first.grouping in (None, AUTO) else first.grouping, keys=samples.keys.get(head), hashed=True,
        members=tuple(
            (name, float(work[name].sum()) / spent if spent else 1 / len(parts), float(rows.sum()) / entered)
            for name, rows in parts.items()
        ),
    )  # fmt: skip


def _coming(topology: Topology, samples: Samples, chains: dict[str, list[Declared]], head: str) -> Floats:
    """The number of records that reach a chain, by sample."""
    if topology[head].kind is Kind.SOURCE:
        made = np.zeros(samples.count)
        made[samples.sources[head]] = 1.0
        return made
    return samples.rows[head]


def _share(topology: Topology, samples: Samples, chains: dict[str, list[Declared]], member: Declared) -> Floats:
    """An operator in several chains, behind a union, is shared evenly among those that a sample reaches."""
    homes = [_coming(topology, samples, chains, head) > 0 for head, chain in chains.items() if member in chain]
    shares: Floats = 1.0 / np.maximum(np.sum(homes, axis=0), 1.0)
    return shares


def _edges(
    topology: Topology, samples: Samples, chains: dict[str, list[Declared]], first: Declared, coming: Floats
) -> list[Edge]:
    """The edges into a chain: its producing chains, with the records per record that they serve."""
    feeding = [head for head, chain in chains.items() if any(member.name in first.inputs for member in chain)]
    reached = {head: _coming(topology, samples, chains, head) for head in feeding}
    weights = sum(((rows > 0).astype(np.float64) for rows in reached.values()), np.zeros(samples.count))
    return [
        Edge(_name(topology, chains, head), _per(coming / np.maximum(weights, 1.0), rows)) for head, rows in reached.items()
    ]


def _per(amounts: Floats, rows: Floats) -> Floats:
    return np.where(rows > 0, amounts / np.maximum(rows, 1e-12), 0.0)
