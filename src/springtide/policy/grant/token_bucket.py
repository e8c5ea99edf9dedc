"""EDF's token bucket: changes are paid for, and the application earns the means when its response time calls for a change.

Cardellini, Lo Presti, Nardelli, Russo Russo: Decentralized self-adaptation for elastic data stream processing (2018), section
7. Every T_τ one token comes: an H token when the response time is above τ_H, an L token when it is below τ_L, none in between.
An H token pays for what adds or moves something, an L token for what takes something away. The bucket holds C_τ tokens of one
kind; a token of the other kind throws them out.

With a target of 250 ms, τ_L = 125 ms and τ_H = 225 ms:

    after    response    bucket
     60 s      300 ms    H           one scale-out or migration is granted
    120 s      300 ms    H
    180 s      300 ms    H           it holds one
    240 s      180 ms    H           nothing comes, nothing goes
    300 s      100 ms    L           H is thrown out
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from springtide.errors import OptionError
from springtide.model.request import Action, Request, Verdict
from springtide.policy.grant import SLACK_S, State, View
from springtide.policy.grant.ranking import ranked, verdicts
from springtide.policy.registry import parameter, validate

HIGH, LOW = "H", "L"
PAID_BY = {
    "scale-out": HIGH, "migrate": HIGH, "move-executor": HIGH, "add-executors": HIGH, "scale-in": LOW, "remove-executor": LOW,
}  # fmt: skip
"""The paper knows no executors; one that is added, or moves, is like a replica that is, or does."""


@dataclass(frozen=True)
class TokenBucket:
    """As many changes as there are tokens, and no others. Only what is granted is paid for.

    The state has ``kind`` and ``tokens``, what is in the bucket, and ``since``, when the last period began.
    """

    kind: ClassVar[str] = "grant"
    name: ClassVar[str] = "token-bucket"
    source: ClassVar[str] = "EDF, section 7"
    summary: ClassVar[str] = "a change costs a token, and tokens come while the response time calls for changes"

    period: float = parameter(60.0, "s", 0.001, help="T_τ: so often a token may come")
    capacity: int = parameter(1, "tokens", 1, help="C_τ: the bucket holds so many, all of one kind")
    low: float = parameter(0.5, minimum=0, help="τ_L as a share of the target: below it an L token comes, for a scale-in")
    high: float = parameter(
        0.9, minimum=0, help="τ_H as a share of the target: above it an H token comes, for a scale-out or a migration"
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.low > self.high:
            raise OptionError(f"'token-bucket': low={self.low:g} is above high={self.high:g}; give low ≤ high")

    def initial(self) -> State:
        return {"kind": "", "tokens": 0, "since": 0.0}

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        filled = self._filled(state, view)
        tokens, held, due_s = int(filled["tokens"]), str(filled["kind"]), filled["since"] + self.period - view.now
        spent = 0

        def pays(action: Action) -> tuple[Action | None, str]:
            nonlocal spent
            wanted = PAID_BY[action.kind]
            if wanted == held and spent < tokens:
                spent += 1
                return action, f"{wanted} token {spent} of {tokens}"
            if wanted == held and spent:
                return None, f"no {wanted} token left: {spent} spent on what ranks higher, the next is due in {due_s:.0f} s"
            return None, f"no {wanted} token: {self._why(wanted, view, due_s)}"

        found = verdicts(ranked(requests), pays)
        left = tokens - spent
        return {"kind": held if left else "", "tokens": left, "since": filled["since"]}, found

    def _filled(self, state: State, view: View) -> State:
        """The bucket with what came since the last round: a token for each period that is over, by the response time of now."""
        periods = max(0, math.floor((view.now - state["since"] + SLACK_S) / self.period))
        since = state["since"] + periods * self.period
        coming = self._coming(view)
        if not periods or coming is None:
            return {**state, "since": since}
        kept = state["tokens"] if state["kind"] == coming else 0
        return {"kind": coming, "tokens": min(self.capacity, kept + periods), "since": since}

    def _coming(self, view: View) -> str | None:
        """Which token comes; none where the response time or the target is not known."""
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
