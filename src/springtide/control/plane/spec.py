"""What a policy is made from, in values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.policy.chosen import STATE, Chosen, chosen, named
from springtide.policy.scale import ScalePolicy

PERIODS = {
    "operators": "operator_period_s", "application": "application_period_s", "settle": "settle_s", "migration": "migration",
}  # fmt: skip
"""How often operators' and nodes' managers, and the application's, are asked (every interval unless told), how long what is
measured is held back after a change, and whether replicas move away from busy nodes."""


@dataclass(frozen=True)
class Spec:
    """A policy by its name, its settings and its guards; the operators that it may name; the seed of its random source.

    ``grant``: hierarchical control, in which each operator has a manager with a policy of its own, and this policy, such as
    ``token-bucket:period=60s``, says which of their requests are granted. ``managers``: their times, see ``PERIODS``.
    """

    policy: str
    settings: Mapping[str, object] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    seed: int = 0
    grant: str | None = None
    managers: str = ""

    @property
    def movable(self) -> bool:
        """Whether another process can make it: what the driver's own script defines is not there."""
        return not self.policy.startswith("__main__:")

    def to_json(self) -> dict[str, Any]:
        """Without the file of what was learned: that is sent as it is, and the file may be gone at a restart."""
        return {**asdict(self), "settings": {name: value for name, value in self.settings.items() if name != STATE}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Spec:
        lists = {name: tuple(document[name]) for name in ("guards", "operators")}
        return cls(**{**document, **lists})


def make(spec: Spec) -> Chosen:
    """The policy behind its guards, and what it learned before; OptionError for whatever does not fit.

    >>> make(Spec("static", {"degree": "4"}, ("bounds:most=2",))).policy.name
    'static'
    """
    return chosen(spec.policy, spec.settings, spec.guards, spec.operators, hierarchical(spec.grant, spec.managers))


def hierarchical(grant: str | None, managers: str = "") -> Callable[[ScalePolicy], ScalePolicy] | None:
    """What puts a policy into the hands of managers; None without a granting policy.

    >>> from springtide.policy.scale.threshold import Threshold
    >>> managed = hierarchical("token-bucket:period=60s", "settle=30s, migration=1")
    >>> managed and managed(Threshold()).name
    'threshold, granted by token-bucket'
    """
    if grant is None:
        if managers:
            raise OptionError(f"managers={managers!r} are those of hierarchical control; choose grant= too, such as 'all'")
        return None
    granting, periods = named("grant", grant), _periods(managers)
    return lambda policy: Hierarchy(policy, granting, **periods)


def _periods(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"operator_period_s": 0.0, "application_period_s": 0.0, "settle_s": 0.0}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, _, value = (side.strip() for side in part.partition("="))
        if word not in PERIODS:
            raise OptionError(f"managers={text!r}: {nearest(word, PERIODS)}; write such as operators=10s, settle=30s")
        found[PERIODS[word]] = (
            value in ("1", "true", "on", "yes") if word == "migration" else seconds(value, f"managers {word}")
        )
    return found
