"""AUTOSCALE+: AUTOSCALE with the best-fitting forecast, and with the CPU that replicas can really use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from springtide.errors import OptionError
from springtide.model.snapshot import NodeSnapshot, Snapshot
from springtide.policy.forecast.best_fit import BestFit
from springtide.policy.registry import parameter
from springtide.policy.scale.autoscale import Autoscale

_LEAST_SHARE = 0.01  # of a core: even on a full node a replica gets some time


@dataclass(frozen=True)
class AutoscalePlus(Autoscale):
    """DABS-Storm's policy (section 4). It differs from AUTOSCALE in:

    - EstimR uses the best of linear, logarithmic and exponential regression.
    - The decision to act uses Capacity = Δ/latency × usable CPU (equation 9), which includes the unused CPU of the nodes.
    - The new degree is sized by ResCapacity = Δ/latency × reserved CPU × margin (equation 13): replicas may move to other
      nodes, and only reserved CPU is guaranteed.

    The margin is 1 − λ, the slight underestimate that the text mentions. ``literal_margin`` uses λ itself, as printed in
    equation 13: with λ = 0.3, three times as many replicas as needed.

    Example: 1,000 records/s of 5 ms with 6,000 waiting need 5.5 replicas (see AUTOSCALE), or 6.1 if their nodes provide 0.9 of
    a core. So 6 are too few, and sizing by 1 · (1 − 0.3) of a core gives ⌈5.5 / 0.7⌉ = 8.
    """

    name = "autoscale+"
    source = "DABS-Storm (Kotto Kombi et al.), section 4"
    summary = "the best of three forecasts through the graph, against the CPU that can be used"

    reserved: float = parameter(1.0, "cores", 0.01, 1, help="the reserved CPU of each replica")
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
    """Equations 7 and 8: the share of a core that an operator's replicas can use; the least of them counts.

    A replica has its reservation, or its use if that is more, and an equal part of its node's free CPU: the cores without all
    used CPU and without unused reservations of others. The share is at most a core, and at least the replica's use. (The
    paper's equation 7 refers to itself.) A node with unknown values is ignored, and a replica without a node has a whole core.

    Example: 0.6 of a core is used, 0.5 by A and 0.1 by B, which reserved 0.3 each. A gets 0.5 + (1 − 0.6 − 0.2) / 2 = 0.6, and
    B 0.3 + (1 − 0.6 − 0) / 2 = 0.5.
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
    """The cores that are neither used nor reserved; below 0 if more is reserved than exists."""
    known = [use for use in uses if use is not None]
    if node.used is None or len(known) < len(uses):
        return None
    return node.cores - node.used - sum([reserved - use for use in known if use < reserved])
