"""AUTOSCALE+: as AUTOSCALE, with the forecast that fits best and the CPU that replicas can really use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from springtide.errors import OptionError
from springtide.model.snapshot import NodeSnapshot, Snapshot
from springtide.policy.forecast.best_fit import BestFit
from springtide.policy.registry import parameter
from springtide.policy.scale.autoscale import Autoscale

_LEAST_SHARE = 0.01  # of a core: a replica on a full node still gets its turn


@dataclass(frozen=True)
class AutoscalePlus(Autoscale):
    """DABS-Storm's policy (section 4). It differs from AUTOSCALE in:

    - EstimR by the best of linear, logarithmic and exponential regression.
    - Whether to act is judged by Capacity = Δ/latency × usable CPU (equation 9), with what the nodes have left over.
    - The new degree is sized by ResCapacity = Δ/latency × reserved CPU × margin (equation 13): after a change replicas may be
      anywhere, and only what is reserved is sure.

    The margin is 1 − λ, which is the slight underestimate that the text speaks of; ``literal_margin`` takes λ itself, as
    equation 13 is printed: with λ = 0.3, three times as many replicas as are needed.

    1,000/s of 5 ms with 6,000 waiting are 5.5 replicas (see AUTOSCALE); if their nodes let them use 0.9 of a core, 6.1. So 6
    are too few, and sized by 1 · (1 − 0.3) of a core, ⌈5.5 / 0.7⌉ = 8 are wanted.
    """

    name = "autoscale+"
    source = "DABS-Storm (Kotto Kombi et al.), section 4"
    summary = "the best of three forecasts through the graph, against the CPU that can be used"

    reserved: float = parameter(1.0, "cores", 0.01, 1, help="what is reserved for each replica")
    weight: float = parameter(0.3, "", 0, 0.99, help="λ: the reserved CPU counts as 1 − λ of it when a degree is computed")
    literal_margin: bool = parameter(False, help="λ of the reserved CPU instead of 1 − λ, as equation 13 is printed")
    cap: float = parameter(3.0, "times", 1, 1_000, help="limits an exponential forecast, as a multiple of the window's largest")
    linear_log: bool = parameter(False, help="leave the exponential out, as the authors' code does")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.literal_margin and self.weight == 0:
            raise OptionError("'autoscale+': weight=0 leaves no CPU with literal_margin; give a weight above 0")

    @cached_property
    def _forecaster(self) -> BestFit:
        return BestFit(window=self.window, cap=self.cap, linear_log=self.linear_log)

    @property
    def _share_for_sizing(self) -> float:
        return self.reserved * (self.weight if self.literal_margin else 1 - self.weight)

    def _usable(self, snapshot: Snapshot) -> Mapping[str, float]:
        return usable(snapshot, self.reserved)


def usable(snapshot: Snapshot, reserved: float) -> dict[str, float]:
    """Equations 7 and 8: the share of a core that an operator's replicas can use, the least of theirs.

    A replica has what it reserved, or uses if that is more, and an equal part of what its node has left: its cores, less what
    is used by whomever and what others reserved and do not use. Never more than one core, and never less than it uses. (The
    paper's equation 7 refers to itself.) A node of which any of that is unknown tells nothing, and no node means a whole core.

    One core, 0.6 of it used, 0.5 by A and 0.1 by B, who reserved 0.3 each. A: 0.5 + (1 − 0.6 − 0.2) / 2 = 0.6; B: 0.3 + (1 −
    0.6 − 0) / 2 = 0.5.
    """
    tenants: dict[str, list[float | None]] = {}
    for operator in snapshot.operators:
        for replica in operator.replicas:
            tenants.setdefault(replica.node, []).append(replica.utilisation)
    left = {node.name: _left(node, tenants[node.name], reserved) for node in snapshot.nodes if node.name in tenants}
    found: dict[str, float] = {}
    for operator in snapshot.operators:
        shares = []
        for replica in operator.replicas:
            spare, used = left.get(replica.node), replica.utilisation
            if spare is not None and used is not None:
                own = reserved if reserved > used else used
                free = spare + own - used  # its own unused reservation is free for it
                share = own + free / len(tenants[replica.node])
                shares.append(share if share > used else used)
        if shares:
            found[operator.name] = min(1.0, max(min(shares), _LEAST_SHARE))
    return found


def _left(node: NodeSnapshot, uses: list[float | None], reserved: float) -> float | None:
    """Cores that nobody uses or has reserved; below 0 where more is reserved than there is."""
    known = [use for use in uses if use is not None]
    if node.used is None or len(known) < len(uses):
        return None
    return node.cores - node.used - sum([reserved - use for use in known if use < reserved])
