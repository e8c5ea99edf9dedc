"""EDF's threshold policy: adds a replica above a utilisation, and removes one if the others can do its work.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
5.1. Each operator is judged separately, and a request's score is the relative distance of its utilisation U from the limit:

    scale out   U > U_out                     score (U − U_out) / (1 − U_out)
    scale in    U·n/(n − 1) < c·U_out         score (c·U_out − U·n/(n − 1)) / (c·U_out)

The paper has the utilisation of a replica in the first line and the sum over all n in the second. Here U is the same number in
both: the mean of the replicas, or their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from springtide.errors import OptionError, nearest
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes

WHICH = ("mean", "max")


@dataclass(frozen=True)
class Threshold(ScalePlugin):
    """A replica at a time. After a scale-in U stays below c·U_out, so that no scale-out follows at the same load."""

    name = "threshold"
    source = "EDF, section 5.1"
    summary = "one replica more above a utilisation, one less when the others can do without it"

    utilisation: float = parameter(0.7, minimum=0, maximum=1, help="U_out: above it a replica is added; the paper: 0.3 to 0.7")
    fraction: float = parameter(
        0.75, minimum=0, maximum=1, help="c: a replica is removed if the others stay below this share of U_out"
    )
    which: str = parameter("mean", help="the utilisation: the mean of the replicas, or their max if each is known")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.which not in WHICH:
            raise OptionError(f"'threshold': which={self.which!r} is not allowed; {nearest(self.which, WHICH)}")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        wanted, scores = {}, {}
        for operator in snapshot.operators:
            found = self._step(operator)
            if found is not None:
                step, scores[operator.name], reason = found
                wanted[operator.name] = operator.degree + step, reason
        return state, tuple(replace(request, score=scores[request.operator]) for request in changes(snapshot, wanted))

    def _step(self, operator: OperatorSnapshot) -> tuple[int, float, str] | None:
        """The step, its score and its reason; None for no step."""
        used, n = self._used(operator), operator.degree
        if used is None:
            return None
        if used > self.utilisation:  # so U_out < 1
            score = (used - self.utilisation) / (1 - self.utilisation)
            return 1, score, f"{used:.0%} busy, above {self.utilisation:.0%}: {n + 1}"
        enough = self.fraction * self.utilisation
        if n > 1 and used * n / (n - 1) < enough:
            score = (enough - used * n / (n - 1)) / enough
            return -1, score, f"{used:.0%} busy, {used * n / (n - 1):.0%} with one less, below {enough:.1%}: {n - 1}"
        return None

    def _used(self, operator: OperatorSnapshot) -> float | None:
        """U, at most 1. If any replica's utilisation is unknown, U is the mean."""
        each = [replica.utilisation for replica in operator.replicas]
        known = [share for share in each if share is not None]
        used = max(known) if self.which == "max" and known and len(known) == len(each) else operator.utilisation
        return None if used is None else min(1.0, used)
