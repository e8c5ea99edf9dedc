"""Scale in: remove the replicas on the busiest nodes.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def busiest(replicas: Sequence[str], count: int, utilisation: Mapping[str, float | None]) -> tuple[str, ...]:
    """The nodes of the replicas to remove. ``replicas``: the node of each. A node of unknown utilisation counts as idle.

    >>> busiest(["n1", "n2", "n1"], 2, {"n1": 0.4, "n2": 0.9})
    ('n2', 'n1')
    """
    return tuple(sorted(replicas, key=lambda node: -(utilisation.get(node) or 0.0))[:count])
