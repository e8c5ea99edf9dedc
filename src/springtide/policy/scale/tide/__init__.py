"""Tide: Springtide's own scaling policy.

To read in this order.

    policy  the policy: what it measures, forecasts and decides
    replay  what so many replicas would make of what may come
    uneven  how much chance adds to the waits
"""

from springtide.policy.scale.tide.policy import DEFAULT_TARGET_S, Tide

__all__ = ["DEFAULT_TARGET_S", "Tide"]
