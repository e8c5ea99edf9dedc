"""Tide: Springtide's own scaling policy.

To read in this order.

    policy  the policy: what it measures, forecasts and decides
    replay  simulates possible inputs on numbers of replicas
    uneven  how much chance adds to the waits
"""

from springtide.policy.scale.tide.policy import DEFAULT_TARGET_S, Tide

__all__ = ["DEFAULT_TARGET_S", "Tide"]
