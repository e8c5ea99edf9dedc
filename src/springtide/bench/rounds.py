"""The duration of a control round of all managers, for 10, 100 and 1,000 operators on up to 200 nodes.

The cluster is that of ``bench decisions``, on fewer nodes, with delays between them. In a timed round every operator's manager
decides by EDF's threshold policy, every node's manager looks for a replica to move, and the application's manager ranks and
grants the proposals. Degrees stay the same, so that every round has the same number of proposals. Several rounds form a turn;
the result is the least of the turns' medians, because noise only adds time.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

import numpy as np

from springtide.bench.decisions import INTERVAL_S, snapshots
from springtide.control.hierarchy import Hierarchy
from springtide.model.snapshot import NodeSnapshot, ReplicaSnapshot, Snapshot
from springtide.policy.scale import ScalePolicy
from springtide.policy.scale.threshold import Threshold

SIZES = ((10, 2), (100, 20), (1_000, 200))
"""Numbers of operators and of nodes."""
LIMIT_MS = 200.0
"""The longest allowed round with 1,000 operators on 200 nodes."""
WARM, TIMED, TURNS = 2, 8, 3
"""Rounds to warm up, rounds in a turn, and turns."""


def measure(
    sizes: Sequence[tuple[int, int]] = SIZES, turns: int = TURNS, seed: int = 0, policy: ScalePolicy | None = None,
    progress: TextIO = sys.stderr,
) -> dict[str, Any]:  # fmt: skip
    """A row for each size; ``messages``: the most messages in a round."""
    rows = []
    for operators, nodes in sizes:
        rows.append(_row(policy or Threshold(), operators, nodes, turns, seed))
        print(f"{operators:,} operators on {nodes} nodes: done", file=progress, flush=True)
    return {"interval_s": INTERVAL_S, "limit_ms": LIMIT_MS, "rounds": turns * TIMED, "rows": rows}


def _row(policy: ScalePolicy, operators: int, nodes: int, turns: int, seed: int) -> dict[str, Any]:
    intervals = [on_nodes(snapshot, nodes) for snapshot in snapshots(operators, WARM + turns * TIMED, seed)]
    hierarchy = Hierarchy(policy, settle_s=0.0, migration=True, migrate_above=0.6, delays=_delays(nodes, random.Random(seed)))
    state, rng, took, messages = hierarchy.initial(), np.random.default_rng(seed), [], 0
    gc.collect()
    gc.freeze()  # unlike a run, all intervals are in memory; the collector would scan them again and again
    try:
        for snapshot in intervals:
            begin = time.perf_counter()
            state, _ = hierarchy.decide(state, snapshot, rng)
            took.append(time.perf_counter() - begin)
            messages = max(messages, state["messages"])
    finally:
        gc.unfreeze()
    medians = [statistics.median(took[begin : begin + TIMED]) for begin in range(WARM, len(took), TIMED)]
    return {"operators": operators, "nodes": nodes, "ms": round(1000 * min(medians), 3), "messages": messages}


def on_nodes(snapshot: Snapshot, nodes: int) -> Snapshot:
    """The snapshot moved to ``nodes`` nodes, each with a core more than it has replicas; the used cores move along."""
    operators = tuple(
        replace(operator, replicas=tuple(_on(replica, nodes) for replica in operator.replicas))
        for operator in snapshot.operators
    )
    hosted, used = [0] * nodes, [0.0] * nodes
    for replica in (replica for operator in operators for replica in operator.replicas):
        number = int(replica.node.removeprefix("node"))
        hosted[number] += 1
        used[number] += replica.utilisation or 0.0
    moved = tuple(NodeSnapshot(f"node{i}", hosted[i] + 1, round(used[i], 3)) for i in range(nodes))
    return replace(snapshot, operators=operators, nodes=moved)


def _on(replica: ReplicaSnapshot, nodes: int) -> ReplicaSnapshot:
    return replace(replica, node=f"node{int(replica.node.removeprefix('node')) % nodes}")


def _delays(nodes: int, chance: random.Random) -> dict[str, dict[str, float]]:
    """Random delays of up to 20 ms between all nodes."""
    return {f"node{i}": {f"node{j}": chance.uniform(0, 20) for j in range(nodes) if j != i} for i in range(nodes)}
