"""EDF's baseline: everything is granted, except conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from springtide.model.request import Action, Request, Verdict
from springtide.policy.grant import GrantPlugin, State, View
from springtide.policy.grant.ranking import ranked, verdicts


@dataclass(frozen=True)
class All(GrantPlugin):
    """The baseline of the token bucket in the paper's section 9: only conflicts are refused."""

    name = "all"
    source = "EDF, section 7"
    summary = "grants everything that does not conflict with something of a higher rank"

    def decide(self, state: State, requests: Sequence[Request], view: View) -> tuple[State, tuple[Verdict, ...]]:
        return state, verdicts(ranked(requests), _granted)


def _granted(action: Action) -> tuple[Action | None, str]:
    return action, "no conflict"
