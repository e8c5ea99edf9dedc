"""The manager of a node reports the load of its node, and requests a move away from an overloaded node.

Where replicas have places, a replica moves; where every batch assigns tasks to executors, an executor moves.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), sections
3.3 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.model.request import Request
from springtide.model.snapshot import NodeSnapshot, Snapshot
from springtide.policy.place import Neighbourhood, NodeReport
from springtide.policy.place.overload import overload
from springtide.policy.place.relief import relief

Hosted = Sequence[tuple[str, int]]
"""The replicas on a node: the operator, and the replica's index in the snapshot."""


@dataclass(frozen=True)
class NodeManager:
    """Serves as the manager of every node; it has no state.

    ``above``: U_mig, the share of a node's CPU, or of its executors' memory, above which something should move away.
    """

    above: float

    def report(self, node: NodeSnapshot, hosted: Hosted) -> NodeReport:
        """A node has room for a replica per core, as in the paper's cluster: 8 cores, 8 replicas."""
        used = node.used / node.cores if node.used is not None and node.cores > 0 else None
        return NodeReport(node.name, max(0, int(node.cores) - len(hosted)), used, node.executors, node.memory)

    def propose(self, here: NodeReport, hosted: Hosted, around: Neighbourhood, rng: np.random.Generator) -> Request | None:
        """A request to migrate, if the node is overloaded and a neighbour is not."""
        if here.executors:
            return self._relieved(here, around)
        found = overload(here, hosted, around, self.above, rng)
        if found is None:
            return None
        action, score = found
        reason = (
            f"{here.utilisation:.0%} of {here.node} in use, above {self.above:.0%}: {action.operator} moves to {action.node}"
        )
        return Request(action=action, reason=reason, score=score, manager=f"node {here.node}")

    def _relieved(self, here: NodeReport, around: Neighbourhood) -> Request | None:
        found = relief(here, around, self.above)
        if found is None:
            return None
        action, score, full = found
        reason = f"{full} in use, above {self.above:.0%}: executor {action.executor} goes, another comes elsewhere"
        return Request(action=action, reason=reason, score=score, manager=f"node {here.node}")


def hosted_by(snapshot: Snapshot) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {node.name: [] for node in snapshot.nodes}
    for operator in snapshot.operators:
        for place, replica in enumerate(operator.replicas):
            if replica.node in found:
                found[replica.node].append((operator.name, place))
    return found
