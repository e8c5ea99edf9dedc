"""EDF's token bucket: changes cost tokens, which come while the response time calls for a change.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
7. Every T_τ one token comes: an H token when the response time is above τ_H, an L token when it is below τ_L, none in between.
An H token pays for what adds or moves something, an L token for what takes something away. The bucket holds C_τ tokens of one
kind; a token of the other kind removes them.

With a target of 250 ms, τ_L = 125 ms and τ_H = 225 ms:

    after    response    bucket
     60 s      300 ms    H           one scale-out or migration is granted
    120 s      300 ms    H
    180 s      300 ms    H           it is full
    240 s      180 ms    H           no token comes
    300 s      100 ms    L           H is removed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from springtide.errors import OptionError
from springtide.model.request import Action, Request, Verdict
from springtide.policy.grant import SLACK_S, GrantPlugin, State, View
from springtide.policy.grant.ranking import ranked, verdicts
from springtide.policy.registry import parameter

HIGH, LOW = "H", "L"
PAID_BY = {
    "scale-out": HIGH, "migrate": HIGH, "move-executor": HIGH, "add-executors": HIGH, "scale-in": LOW, "remove-executor": LOW,
}  # fmt: skip
"""The token for each kind of change. The paper has no executors; they count like replicas."""


@dataclass(frozen=True)
class TokenBucket(GrantPlugin):
    """Grants a change per token. Only granted changes cost one.

    The state has ``kind`` and ``tokens``, the content of the bucket, and ``since``, when the last period began.
    """

    name = "token-bucket"
    source = "EDF, section 7"
    summary = "a change costs a token, and tokens come while the response time calls for changes"

    period: float = parameter(60.0, "s", 0.001, help="T_τ: the time between two tokens")
    capacity: int = parameter(1, "tokens", 1, help="C_τ: the most tokens in the bucket, all of one kind")
    low: float = parameter(0.5, minimum=0, help="τ_L as a share of the target: below it an L token comes, for a scale-in")
    high: float = parameter(
        0.9, minimum=0, help="τ_H as a share of the target: above it an H token comes, for a scale-out or a migration"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise OptionError(f"'token-bucket': low={self.low:g} is above high={self.high:g}; give low ≤ high")

    def initial(self) -> State:
        return {"kind": "", "tokens": 0, "since": 0.0}

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        filled = self._filled(state, view)
        tokens, kind, due_s = int(filled["tokens"]), str(filled["kind"]), filled["since"] + self.period - view.now
        spent = 0

        def pays(action: Action) -> tuple[Action | None, str]:
            nonlocal spent
            wanted = PAID_BY[action.kind]
            if wanted == kind and spent < tokens:
                spent += 1
                return action, f"{wanted} token {spent} of {tokens}"
            if wanted == kind and spent:
                return None, f"no {wanted} token left: {spent} spent on what ranks higher, the next is due in {due_s:.0f} s"
            return None, f"no {wanted} token: {self._why(wanted, view, due_s)}"

        found = verdicts(ranked(requests), pays)
        left = tokens - spent
        return {"kind": kind if left else "", "tokens": left, "since": filled["since"]}, found

    def _filled(self, state: State, view: View) -> State:
        """The bucket with the new tokens: one for each period that is over, by the present response time."""
        periods = max(0, math.floor((view.now - state["since"] + SLACK_S) / self.period))
        since = state["since"] + periods * self.period
        coming = self._coming(view)
        if not periods or coming is None:
            return {**state, "since": since}
        before = state["tokens"] if state["kind"] == coming else 0
        return {"kind": coming, "tokens": min(self.capacity, before + periods), "since": since}

    def _coming(self, view: View) -> str | None:
        """Which token comes; None where the response time or the target is unknown."""
        if view.response_ms is None or view.target_ms is None:
            return None
        if view.response_ms > self.high * view.target_ms:
            return HIGH
        return LOW if view.response_ms < self.low * view.target_ms else None

    def _why(self, wanted: str, view: View, due_s: float) -> str:
        """Why there is no token of that kind."""
        if view.target_ms is None:
            return "the run has no target"
        if view.response_ms is None:
            return "the response time is not known"
        if self._coming(view) == wanted:
            return f"the next is due in {due_s:.0f} s, one comes every {self.period:g} s"
        bound = (self.high if wanted == HIGH else self.low) * view.target_ms
        if view.response_ms == bound:
            return f"{view.response_ms:,.0f} ms is not {'above' if wanted == HIGH else 'below'} {bound:,.0f} ms"
        return f"{view.response_ms:,.0f} ms is {'below' if wanted == HIGH else 'above'} {bound:,.0f} ms"
