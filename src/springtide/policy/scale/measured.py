"""Values that policies derive from snapshots: costs, selectivities, arrivals and backlogs.

If an operator did not work in an interval, its previous values apply.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from springtide.model.snapshot import OperatorSnapshot, Snapshot

Shares = Mapping[str, Mapping[str, float]]
"""θ_i^p: by operator and producer, the records received per record that the producer processed."""


def rounded_up(need: float) -> int:
    """The next whole number. 3.0000000000000004 is 3, as a rounding error must not cost a replica."""
    return math.ceil(min(need, 1e9) - 1e-9)


def shown(number: float) -> str:
    """A number for a reason, with four digits or all digits before the point.

    >>> shown(0.123456), shown(12_345.6)
    ('0.1235', '12,346')
    """
    return f"{number:,.0f}" if number >= 1_000 else f"{number:.4g}"


def known_costs(before: Mapping[str, float], snapshot: Snapshot) -> dict[str, float]:
    """The seconds of work per record, from this interval or the last one with served records."""
    return {**before, **{o.name: cost for o in snapshot.operators if (cost := o.cost_s) is not None}}


def shares(before: Shares, snapshot: Snapshot) -> dict[str, dict[str, float]]:
    """θ_i^p = λ_i^p/μ_p (equation 2c), from this interval or the last one in which p processed records.

    μ_p counts processed records, not the input: in table II O_1 received 100 records, also processed 40 older ones, and sent
    117, which are 84 % of 140. The only reader of a source gets all of its records, including its backlog.
    """
    readers = Counter(producer for operator in snapshot.operators for producer, _ in operator.inputs)
    processed = {operator.name: operator.served for operator in snapshot.operators}
    sent = {source.name: source.rows for source in snapshot.sources}
    found = {}
    for operator in snapshot.operators:
        edges = dict(before.get(operator.name, {}))
        for producer, came in operator.inputs:
            if producer in sent and readers[producer] == 1:
                edges[producer] = 1.0
            elif amount := processed.get(producer, sent.get(producer)):
                edges[producer] = came / amount
        found[operator.name] = edges
    return found


def arrival_rates(snapshot: Snapshot) -> dict[str, float]:
    """λ_G by source in records/s. If a source's arrivals are unknown, its records read count instead; without both it is
    omitted."""
    read = {source.name: source.rows / snapshot.interval_s for source in snapshot.sources if source.rows is not None}
    return read | {source.name: source.arrival_rate for source in snapshot.sources if source.arrival_rate is not None}


def carried(snapshot: Snapshot, theta: Shares, sources: Mapping[str, float]) -> dict[str, float]:
    """The input of every operator for this input of the sources (equations 2a and 2b), where it is known."""
    amounts = dict(sources)
    for operator in snapshot.operators:
        edges = theta.get(operator.name, {})
        if operator.inputs and all(producer in edges and producer in amounts for producer, _ in operator.inputs):
            amounts[operator.name] = sum(edges[producer] * amounts[producer] for producer, _ in operator.inputs)
    return {operator.name: amounts[operator.name] for operator in snapshot.operators if operator.name in amounts}


def queues(snapshot: Snapshot) -> dict[str, float]:
    """|q|: the backlog of every operator and source, where it is known.

    In micro-batches the backlog of the sources is counted at the operators, each of which has its share of it.
    """
    found = {operator.name: float(operator.backlog) for operator in snapshot.operators if operator.backlog is not None}
    if snapshot.batches:
        return found | {source.name: 0.0 for source in snapshot.sources if source.rows is not None}
    return found | {source.name: float(source.backlog) for source in snapshot.sources if source.backlog is not None}


def own_queue(operator: OperatorSnapshot, theta: Shares, queued: Mapping[str, float], snapshot: Snapshot) -> float | None:
    """The records that wait for an operator: its backlog, and its share of its sources' backlogs; None if any is unknown."""
    waiting, edges = queued.get(operator.name), theta.get(operator.name, {})
    for producer, _ in operator.inputs:
        if producer not in snapshot.by_name:
            if waiting is None or producer not in edges or producer not in queued:
                return None
            waiting += edges[producer] * queued[producer]
    return waiting
