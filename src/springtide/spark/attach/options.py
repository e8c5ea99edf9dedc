"""How a query is to be scaled: from arguments, and from ``spark.springtide.*`` for what they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from springtide.control.plane.spec import Spec, make
from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.yes_no import yes_or_no
from springtide.policy.chosen import Chosen, refuse_simulated
from springtide.policy.scale.tide.replay import BATCH_LATENCY

PREFIX = "spark.springtide."
POLICY = "policy."
"""How the name of a policy's parameter begins, after the prefix."""
NAMES = ("policy", "target", "min-executors", "max-executors", "interval", "dry-run", "guards")
TRIGGER = "trigger"
"""The target that batches take no longer than the trigger interval."""
DEFAULT_TARGET_S = 5.0
"""Where neither a target nor a trigger interval is set: batches of Spark's alone take from 0.2 to 2 s."""


@dataclass(frozen=True)
class Options:
    """What was asked for. None: nothing was said, so what the query and its application have decides."""

    policy: str = "tide"
    settings: Mapping[str, object] | None = None
    min_executors: int = 1
    max_executors: int | None = None
    target: str | float | None = None
    interval_s: float = 1.0
    dry_run: bool = False
    guards: tuple[str, ...] = ()


def read(conf: Mapping[str, str], given: Mapping[str, Any]) -> Options:
    """Options from Spark's settings, above which go the arguments that are not None.

    >>> read({"spark.springtide.policy": "ds2", "spark.springtide.policy.margin": "0.2"}, {"max_executors": 4}).settings
    {'margin': '0.2'}
    """
    own = {name.removeprefix(PREFIX): value for name, value in conf.items() if name.startswith(PREFIX)}
    for name in own:
        if name not in NAMES and not name.startswith(POLICY):
            raise OptionError(f"{PREFIX}{name} is no setting; {nearest(name, [*NAMES, POLICY + 'NAME'])}")
    of_policy = {name.removeprefix(POLICY): value for name, value in own.items() if name.startswith(POLICY)}
    told: dict[str, Any] = {
        name.replace("-", "_"): value for name, value in own.items() if name in NAMES and name not in ("guards", "dry-run")
    }
    if "guards" in own:
        told["guards"] = tuple(guard.strip() for guard in own["guards"].split(";") if guard.strip())
    if "dry-run" in own:
        told["dry_run"] = _flag(own["dry-run"])
    told |= {name: value for name, value in given.items() if value is not None and name != "settings"}
    same = given.get("policy") in (None, own.get("policy", Options.policy))  # another policy has other parameters
    settings = {**(of_policy if same else {}), **(given.get("settings") or {})}
    interval_s = seconds(told.pop("interval", Options.interval_s), "interval")
    if interval_s <= 0:
        raise OptionError(f"interval={interval_s:g} s is not allowed; it is above 0")
    least = _whole("min_executors", told.pop("min_executors", 1))
    most = told.pop("max_executors", None)
    return Options(
        settings=settings, interval_s=interval_s, min_executors=least,
        max_executors=None if most is None else _whole("max_executors", most), **{**told, "guards": _guards(told)},
    )  # fmt: skip


def scaler(options: Options, operator: str) -> Chosen:
    """The policy behind its guards; refused when only the simulator can ask it."""
    refuse_simulated(options.policy)
    return make(spec(options, operator))


def spec(options: Options, operator: str) -> Spec:
    """What the policy and its guards are made from, here or in a process of their own."""
    return Spec(options.policy, options.settings or {}, options.guards, (operator,))


def target_s(target: str | float | None, trigger_s: float) -> float:
    """The latency that is wanted. A batch that takes as long as the trigger interval has records wait one and a half."""
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


def _guards(told: Mapping[str, Any]) -> tuple[str, ...]:
    guards: Sequence[str] | str = told.get("guards", ())
    return (guards,) if isinstance(guards, str) else tuple(guards)


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
