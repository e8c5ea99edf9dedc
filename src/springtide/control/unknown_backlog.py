"""What a run may decide while the number of waiting records is unknown.

An unknown backlog must not look like an empty one: a job whose latency grew to 340 s on 70,000 waiting records was scaled in
from 6 slots to 2. So no operator is scaled in while the latency is above the target, and every reason says what was not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from springtide.model.request import Request, Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import Once

UNKNOWN = "backlog unknown"


class UnknownBacklog:
    """Reviews the requests of a policy. It remembers the last latency, because no batch may end in an interval."""

    def __init__(self) -> None:
        self._latency_s: float | None = None
        self._refused = Once()  # operators

    def review(self, snapshot: Snapshot, requests: Sequence[Request]) -> tuple[tuple[Request, ...], list[Verdict]]:
        """The requests that may pass, with their reasons, and the new refusals."""
        if snapshot.latency is not None:
            self._latency_s = snapshot.latency.mean / 1000
        unmeasured = snapshot.rate is None and self._latency_s is None
        if snapshot.backlog is not None or unmeasured:
            self._refused = Once()
            return tuple(requests), []
        latency_s, target_s = self._latency_s or 0.0, snapshot.target_s or math.inf
        passed = [request for request in requests if latency_s <= target_s or not _scales_in(request, snapshot)]
        refused = [request for request in requests if request not in passed]
        self._refused.end_others({request.operator for request in refused})
        reason = f"{UNKNOWN}, and the latency of {latency_s:.3g} s is above the target of {target_s:g} s"
        verdicts = [
            Verdict(request, None, reason, "unknown-backlog", snapshot[request.operator].degree)
            for request in refused
            if self._refused.begins(request.operator)
        ]
        return tuple(map(_explained, passed)), verdicts


def _scales_in(request: Request, snapshot: Snapshot) -> bool:
    return request.operator in snapshot.by_name and request.degree < snapshot[request.operator].degree


def _explained(request: Request) -> Request:
    return request if UNKNOWN in request.reason else replace(request, reason=f"{request.reason}; {UNKNOWN}")
