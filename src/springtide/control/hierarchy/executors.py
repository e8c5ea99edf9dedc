"""The application's manager, as far as executors go: it says which of the fleet's proposals are granted.

It is in the driver, where executors are asked for and let go. Operators' proposals are judged in the control process, so what
is remembered of both is apart: a token bucket for executors has tokens of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from springtide.model.request import Proposal, Verdict
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import GrantPolicy, State, View

log = logging.getLogger("springtide.control")


@dataclass
class ExecutorGrants:
    """``see`` what was measured, then ``judge``: in every round, also when nothing is proposed."""

    grant: GrantPolicy
    _state: State = field(init=False)
    _view: View = field(init=False)
    _fresh: bool = False  # whether the response time is that of the last interval
    _failing: bool = False

    def __post_init__(self) -> None:
        self._state, self._view = self.grant.initial(), View(0.0, None, None, 0)

    def see(self, now: float, snapshot: Snapshot) -> None:
        """The response time of an interval in which no batch ended is that of the one before, unless executors changed."""
        response_ms = math.nan if snapshot.latency is None else snapshot.latency.mean
        self._fresh = math.isfinite(response_ms)
        self._view = replace(
            self._view,
            now=now,
            response_ms=response_ms if self._fresh else self._view.response_ms,
            target_ms=1000 * snapshot.target_s if snapshot.target_s else None,
            replicas=sum(operator.degree for operator in snapshot.operators),
        )

    def judge(self, proposals: Sequence[Proposal], executors: int) -> tuple[Verdict, ...]:
        """One verdict on each; a granting policy that fails grants nothing, and is told of once."""
        if executors != self._view.executors:  # what was measured before tells nothing of these
            self._view = replace(self._view, executors=executors, response_ms=self._view.response_ms if self._fresh else None)
        try:
            state, found = self.grant.decide(self._state, proposals, self._view)
            if len(found) != len(proposals):
                raise ValueError(f"{len(found)} verdicts on {len(proposals)} proposals; it owes one on each")
        except Exception:  # a granting policy is anybody's code; whatever it raises must not reach the data flow
            if not self._failing:
                log.exception("grant %s failed; the executors stay", self.grant.name)
            self._failing = True
            return tuple(Verdict(proposal, None, f"{self.grant.name} failed") for proposal in proposals)
        self._state, self._failing = state, False
        return found
