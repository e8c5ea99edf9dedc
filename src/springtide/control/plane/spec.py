"""The specification of a policy, in values that can be sent to another process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.yes_no import yes_or_no
from springtide.policy.chosen import STATE, Chosen, chosen, named
from springtide.policy.scale import ScalePolicy

PERIODS = {"operators": "operator_period_s", "application": "application_period_s", "settle": "settle_s"}
"""The periods of operators' and nodes' managers, and of the application's (every interval by default), and how long
measurements are ignored after a change (not at all)."""

BOUND = "bound."
"""Prefix of an operator's name, for its own response-time bound."""

WORDS = (*PERIODS, "migration", "migrate-above", f"{BOUND}OPERATOR")
"""The options of ``managers``. ``migrate-above``: the share of a node in use above which replicas or executors move away."""


@dataclass(frozen=True)
class Spec:
    """A policy by its name, its settings and its guards; the operators that it may name; the seed of its random source.

    ``grant``: hierarchical control, in which each operator has a manager with a policy of its own, and this policy, such as
    ``token-bucket:period=60s``, says which of their requests are granted. ``managers``: their times and bounds, see ``WORDS``.
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
        """Whether another process can make it, which lacks objects, and the definitions of the driver's own script.

        >>> [Spec("tide").movable, Spec("__main__:Mine").movable, Spec("static", {"degree": object()}).movable]
        [True, False, False]
        """
        if any(name.startswith("__main__:") for name in (self.policy, *self.guards, self.grant or "")):
            return False
        try:
            json.dumps(self.to_json())
        except TypeError:
            return False
        return True

    def to_json(self) -> dict[str, Any]:
        """Without the file of the policy's state: the state itself is sent, as the file may be gone at a restart."""
        return {**asdict(self), "settings": {name: value for name, value in self.settings.items() if name != STATE}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Spec:
        lists = {name: tuple(document[name]) for name in ("guards", "operators")}
        return cls(**{**document, **lists})


def make(spec: Spec) -> Chosen:
    """The policy behind its guards, and its saved state; OptionError for whatever does not fit.

    >>> make(Spec("static", {"degree": "4"}, ("bounds:most=2",))).policy.name
    'static'
    """
    return chosen(spec.policy, spec.settings, spec.guards, spec.operators, hierarchical(spec.grant, spec.managers))


def hierarchical(grant: str | None, managers: str = "") -> Callable[[ScalePolicy], ScalePolicy] | None:
    """A function that puts a policy under managers; None without a granting policy.

    >>> from springtide.policy.scale.threshold import Threshold
    >>> managed = hierarchical("token-bucket:period=60s", "settle=30s, migration=1")
    >>> managed and managed(Threshold()).name
    'threshold, granted by token-bucket'
    """
    if grant is None:
        if managers:
            raise OptionError(f"managers={managers!r} needs hierarchical control; choose grant= too, such as 'all'")
        return None
    granting, options = named("grant", grant), _options(managers)
    return lambda policy: Hierarchy(policy, granting, **options)


def _options(text: str) -> dict[str, Any]:
    """``managers`` as arguments of ``Hierarchy``. A migration threshold switches migration on."""
    found: dict[str, Any] = {"bounds_ms": {}}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, _, value = (side.strip() for side in part.partition("="))
        if word in PERIODS:
            found[PERIODS[word]] = seconds(value, f"managers {word}")
        elif word == "migration":
            found["migration"] = _switched(value)
        elif word == "migrate-above":
            found["migrate_above"] = _share(value)
            found.setdefault("migration", True)
        elif word.startswith(BOUND):
            found["bounds_ms"][word.removeprefix(BOUND)] = 1000 * seconds(value, f"managers {word}")
        else:
            raise OptionError(f"managers={text!r}: {nearest(word, WORDS)}; write such as operators=10s, settle=30s")
    return found


def _switched(value: str) -> bool:
    switched = yes_or_no(value)
    if switched is None:
        raise OptionError(f"managers migration={value} is not allowed; write migration=on or migration=off")
    return switched


def _share(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise OptionError(f"managers migrate-above={value} is not a number; give a share from 0 to 1, such as 0.8") from None
