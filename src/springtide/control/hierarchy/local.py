"""The view of an operator's manager: its operator as if it were the whole topology, and the operators that it reads as sources.

So every scaling policy can run on it, and sees nothing but its own operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from springtide.model.plan import Plan
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale.measured import queues


def local_views(snapshot: Snapshot, bounds_ms: Mapping[str, float]) -> Iterator[Snapshot]:
    """For each operator a snapshot of it alone; the target is the operator's own bound, if it has one."""
    sources = {source.name: source for source in snapshot.sources}
    readers = Counter(name for operator in snapshot.operators for name, _ in operator.inputs)
    nodes = {node.name: node for node in snapshot.nodes}
    queued, per_row = queues(snapshot), _arrivals_per_row(snapshot)
    for operator in snapshot.operators:
        name, bound = operator.name, bounds_ms.get(operator.name)
        read = tuple(_read(operator, *edge, sources, readers, per_row) for edge in operator.inputs)
        at_sources = sum(queued.get(source, 0.0) for source, _ in operator.inputs if source in sources)
        yield Snapshot(
            at=snapshot.at, interval_s=snapshot.interval_s,
            plan=Plan({name: operator.degree}, snapshot.plan.slots, {name: operator.width}),
            operators=(operator,), batches=snapshot.batches, rate=operator.rate,
            backlog=None if operator.backlog is None else operator.backlog + round(at_sources), latency=None, sources=read,
            nodes=tuple(nodes[node] for node in dict.fromkeys(replica.node for replica in operator.replicas) if node in nodes),
            target_s=None if bound is None else bound / 1000, slots=snapshot.slots, trigger_s=snapshot.trigger_s,
            starting_s=snapshot.starting_s,
        )  # fmt: skip


def _read(
    operator: OperatorSnapshot, name: str, came: int, sources: Mapping[str, SourceSnapshot], readers: Mapping[str, int],
    per_row: float | None,
) -> SourceSnapshot:  # fmt: skip
    """An input as a source. A source with no other reader is taken whole, with its backlog. An operator as a source has no
    backlog: it has sent on whatever it processed.
    """
    source = sources.get(name)
    if source is not None and (readers[name] == 1 or not source.rows):
        return source
    rows = None if operator.rate is None else came
    if source is None or not source.rows:
        known = rows is not None
        return SourceSnapshot(name, rows, (), came * per_row if known and per_row is not None else None, 0 if known else None)
    share = came / source.rows
    rate = None if source.arrival_rate is None else source.arrival_rate * share
    return replace(source, rows=rows, arrivals=tuple(part * share for part in source.arrivals), arrival_rate=rate)


def _arrivals_per_row(snapshot: Snapshot) -> float | None:
    """Records/s that arrive at the sources, divided by the records read from them in the interval.

    In micro-batches records wait at the sources only. So the input of every operator grows like that of the sources.
    """
    read = sum(source.rows or 0 for source in snapshot.sources)
    return snapshot.arrival_rate / read if snapshot.batches and snapshot.arrival_rate is not None and read else None
