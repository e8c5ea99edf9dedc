"""The application's manager of executors grants or refuses the fleet's requests.

It runs in the driver, where executors are requested and released. Operators' requests are judged in the control process, so
the two have separate states: a token bucket for executors has its own tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from springtide.model.request import Request, Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import Once
from springtide.policy.grant import GrantPolicy, State, View

log = logging.getLogger("springtide.control")


@dataclass
class ExecutorGrants:
    """``see`` the measurements, then ``judge``: in every round, also without requests."""

    grant: GrantPolicy
    _state: State = field(init=False)
    _view: View = field(init=False)
    _fresh: bool = False  # whether the response time is that of the last interval
    _failing: Once = field(default_factory=Once)

    def __post_init__(self) -> None:
        self._state, self._view = self.grant.initial(), View(0.0, None, None, 0)

    def see(self, now: float, snapshot: Snapshot) -> None:
        """An interval without the end of a batch has the response time of the last interval, unless executors changed."""
        response_ms = math.nan if snapshot.latency is None else snapshot.latency.mean
        self._fresh = math.isfinite(response_ms)
        self._view = replace(
            self._view,
            now=now,
            response_ms=response_ms if self._fresh else self._view.response_ms,
            target_ms=1000 * snapshot.target_s if snapshot.target_s else None,
            replicas=sum(operator.degree for operator in snapshot.operators),
        )

    def judge(self, requests: Sequence[Request], executors: int) -> tuple[Verdict, ...]:
        """A verdict on each request; a failing granting policy grants nothing, and its failure is logged once."""
        if executors != self._view.executors:  # the response time is that of other executors
            self._view = replace(self._view, executors=executors, response_ms=self._view.response_ms if self._fresh else None)
        try:
            state, found = self.grant.decide(self._state, requests, self._view)
            if len(found) != len(requests):
                raise ValueError(f"{len(found)} verdicts on {len(requests)} requests; it owes each one")
        except Exception:  # a granting policy may raise anything; it must not reach the data flow
            if self._failing.begins():
                log.exception("grant %s failed; the executors stay", self.grant.name)
            return tuple(Verdict(request, None, f"{self.grant.name} failed") for request in requests)
        self._failing.end()
        self._state = state
        return found
