"""The options of an attachment: from arguments, else from ``spark.springtide.*``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from springtide.control.plane.spec import Spec
from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.yes_no import yes_or_no
from springtide.options import Duration, positive_s, spec
from springtide.policy.scale.tide.replay import BATCH_LATENCY

PREFIX = "spark.springtide."
POLICY = "policy."
"""Prefix of a policy's parameters, after ``PREFIX``."""
NAMES = ("policy", "target", "min-executors", "max-executors", "interval", "dry-run", "guards")
DEFAULT_POLICY = "tide"
TRIGGER = "trigger"
"""The value of ``target`` for batches that take no longer than the trigger interval."""
DEFAULT_TARGET_S = 5.0
"""The target if neither a target nor a trigger interval is set: Spark's own batches take from 0.2 to 2 s."""


@dataclass(frozen=True)
class AttachOptions:
    """The options of an attachment. ``target``, ``max_executors``: None if the query and its application determine them."""

    policy: Spec = field(default_factory=spec)
    target: Duration | None = None
    interval_s: float = 1.0
    min_executors: int = 1
    max_executors: int | None = None
    dry_run: bool = False

    def of_query(self, name: str) -> Spec:
        """The policy's specification; the query is the only operator that it may name."""
        return replace(self.policy, operators=(name,))


def read(conf: Mapping[str, str], given: Mapping[str, Any]) -> AttachOptions:
    """Options from Spark's settings; arguments that are not None override them.

    >>> read({"spark.springtide.policy": "ds2", "spark.springtide.policy.margin": "0.2"}, {"max_executors": 4}).policy.settings
    {'margin': '0.2'}
    """
    own = {name.removeprefix(PREFIX): value for name, value in conf.items() if name.startswith(PREFIX)}
    for name in own:
        if name not in NAMES and not name.startswith(POLICY):
            raise OptionError(f"{PREFIX}{name} is no setting; {nearest(name, [*NAMES, POLICY + 'NAME'])}")
    of_policy = {name.removeprefix(POLICY): value for name, value in own.items() if name.startswith(POLICY)}
    settled: dict[str, Any] = {name.replace("-", "_"): value for name, value in own.items() if name in NAMES}
    if "guards" in settled:
        settled["guards"] = tuple(guard.strip() for guard in own["guards"].split(";") if guard.strip())
    if "dry_run" in settled:
        settled["dry_run"] = _flag(own["dry-run"])
    asked = settled | {name: value for name, value in given.items() if value is not None}
    same = given.get("policy") in (None, own.get("policy", DEFAULT_POLICY))  # another policy has other parameters
    settings = {**(of_policy if same else {}), **(given.get("settings") or {})}
    guards, most = asked.get("guards", ()), asked.get("max_executors")
    return AttachOptions(
        policy=spec(asked.get("policy", DEFAULT_POLICY), settings, (guards,) if isinstance(guards, str) else guards),
        target=asked.get("target"),
        interval_s=positive_s(asked.get("interval", AttachOptions.interval_s), "interval"),
        min_executors=_whole("min_executors", asked.get("min_executors", AttachOptions.min_executors)),
        max_executors=None if most is None else _whole("max_executors", most),
        dry_run=asked.get("dry_run", False),
    )


def target_s(target: Duration | None, trigger_s: float) -> float:
    """The latency target. If batches take as long as the trigger interval, records wait one and a half intervals."""
    if target is None:
        return BATCH_LATENCY * trigger_s if trigger_s > 0 else DEFAULT_TARGET_S
    if target == TRIGGER:
        if trigger_s <= 0:
            raise OptionError(
                "target='trigger' needs a query with a trigger interval, and this one starts a batch as soon as it can;"
                " give a latency, such as target='2s', or the query .trigger(processingTime='2 seconds')"
            )
        return BATCH_LATENCY * trigger_s
    wanted = seconds(target, "target")
    if wanted <= 0:
        raise OptionError(f"target={target!r} is not allowed; it is above 0, or 'trigger'")
    return wanted


def _whole(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise OptionError(f"{name}={value!r} is not allowed; it is a whole number, at least 1")
    return number


def _flag(text: str) -> bool:
    found = yes_or_no(text)
    if found is None:
        raise OptionError(f"{PREFIX}dry-run={text!r} is neither true nor false")
    return found
