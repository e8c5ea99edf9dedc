"""Common parts of guards: changed requests, and time counted by intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.grant import SLACK_S as SLACK_S  # guards take it from here

ROUNDING = 1e-9
"""Tolerates rounding errors in a share of a degree: 0.14 · 50 is 7.000000000000001."""


def amended(request: Request, degree: int, why: str) -> Request:
    """The request for another degree; its reason says which degree was requested, and why it is not granted.

    >>> amended(Request("enrich", 9, "input 900/s, 100/s per replica: 9"), 4, "at most 4").reason
    'input 900/s, 100/s per replica: 9; it gets 4, not 9: at most 4'
    """
    reason = f"{request.reason}; it gets {degree}, not {request.degree}: {why}"
    return Request(request.operator, degree, reason, request.score, request.action, request.manager)


def clock(state: Mapping[str, Any], snapshot: Snapshot) -> float:
    """``state["clock"]`` after this interval: the sum of all intervals, in seconds.

    The snapshot's time begins again with every run, and a guard whose state outlives a restart would wait for it.
    """
    passed = snapshot.interval_s if math.isfinite(snapshot.interval_s) else 0.0
    return float(state["clock"]) + max(0.0, passed)
