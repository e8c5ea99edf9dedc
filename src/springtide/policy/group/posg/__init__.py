"""POSG: records go where the least work was sent.

To read in this order.

    grouping  the grouping, batch by batch
    machine   its two state machines, record by record: kernels, which the simulator compiles
"""

from springtide.policy.group.posg.grouping import Posg, greedy

__all__ = ["Posg", "greedy"]
