"""EDF's R_max,op: the target response time of each operator, from that of the whole application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shared_out(target_s: float, names: Sequence[str], cost_s: Mapping[str, float]) -> dict[str, float]:
    """Each operator's share of the target in ms, in proportion to its cost per record.

    An operator of unknown cost counts with the mean cost; without any costs all shares are equal.

    >>> shared_out(0.24, ["a", "b", "c"], {"a": 1.0, "b": 3.0})
    {'a': 40.0, 'b': 120.0, 'c': 80.0}
    >>> shared_out(0.24, ["a", "b"], {"a": 0.0})
    {'a': 120.0, 'b': 120.0}
    """
    known = [cost_s[name] for name in names if name in cost_s]
    if not any(known):
        known, cost_s = [1.0], {}
    usual = sum(known) / len(known)
    total = sum(cost_s.get(name, usual) for name in names)
    return {name: 1000 * target_s * cost_s.get(name, usual) / total for name in names}
