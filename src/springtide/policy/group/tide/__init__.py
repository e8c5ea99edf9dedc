"""Tide: Springtide's own grouping.

To read in this order.

    grouping  the grouping, batch by batch
    online    the same record by record: kernels, which the simulator compiles
"""

from springtide.policy.group.tide.grouping import Tide

__all__ = ["Tide"]
