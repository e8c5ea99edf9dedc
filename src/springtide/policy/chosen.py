"""The scaling policy of a run, made from names: the policy, its saved state, and its guards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springtide.errors import OptionError, nearest
from springtide.policy import registry, scale
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.trial import fault_of

STATE = "state"
"""The setting of every policy that names a file with a saved state."""


@dataclass(frozen=True)
class Chosen:
    """A policy behind its guards, and its saved state; None for the initial one."""

    policy: ScalePolicy
    state: State | None = None


def chosen(
    policy: str, settings: Mapping[str, object] | None, guards: Sequence[str], operators: Sequence[str],
    managed: Callable[[ScalePolicy], ScalePolicy] | None = None,
) -> Chosen:  # fmt: skip
    """Make a policy by its name. A guard is ``name`` or ``name:parameter=value,…``; guards review requests in this order.

    ``managed`` puts the policy under managers, behind the guards.

    >>> chosen("static", {"degree": 4}, ["bounds:most=2"], ["a"]).policy.name
    'static'
    """
    given = dict(settings or {})
    file = given.pop(STATE, None)
    made: ScalePolicy = registry.create("scale", policy, given)
    if managed is not None:
        if file is not None:
            raise OptionError(
                f"{STATE}={file!r}: each manager has its own state, which no file has; leave out {STATE} or grant"
            )
        made = managed(made)
    whole: ScalePolicy = Guarded(made, tuple(named("guard", guard) for guard in guards)) if guards else made
    scale.check(whole, operators)
    learned = None if file is None else read_state(str(file), policy)
    if learned is not None and (fault := fault_of(made, learned, operators)) is not None:
        raise OptionError(f"state={str(file)!r} is damaged: policy {policy!r} cannot decide with it ({fault}); train it again")
    if learned is not None and guards:
        learned = {"policy": learned, "guards": {}}
    return Chosen(whole, learned)


def refuse_simulated(policy: str) -> None:
    """OptionError for a policy that works in the simulator only."""
    if getattr(registry.find("scale", policy), "simulator_only", False):
        raise OptionError(
            f"policy {policy!r} knows the future, which only the simulator can tell; use it with `springtide simulate`"
        )


def named(kind: str, text: str) -> Any:
    """A plug-in from a text, ``name`` or ``name:parameter=value,…``; ``module:Class`` is a name too."""
    name, _, rest = text.partition(":")
    if name not in [cls.name for cls in registry.available(kind)] and "=" not in rest.partition(":")[0] and rest:
        own, _, rest = rest.partition(":")
        name = f"{name}:{own}"
    known = "|".join(re.escape(p.name) for p in registry.parameters(registry.find(kind, name)))
    parts = re.split(rf",\s*(?=(?:{known})\s*=)", rest)  # a value may contain commas
    pairs = [part.partition("=") for part in parts if part.strip()]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise OptionError(f"{kind} {text!r}: {wrong[0]!r} is not parameter=value; write such as cooldown:before_out=30s")
    return registry.create(kind, name, {key.strip(): value.strip() for key, _, value in pairs})


def write_state(file: Path, policy: str, state: State) -> None:
    """Save the state of a policy, for ``--set state=FILE``."""
    check_writable(file)
    try:
        text = json.dumps({"policy": policy, "state": state}, allow_nan=False)
    except (TypeError, ValueError) as fault:
        raise OptionError(f"the state of policy {policy!r} is not JSON ({fault}); use values that JSON can carry") from None
    file.write_text(text, encoding="utf-8")


def check_writable(file: Path) -> None:
    """OptionError, before anything is learned, for a file that cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        there = file.exists()
        with file.open("a", encoding="utf-8"):
            pass
        if not there:
            file.unlink()
    except OSError as fault:
        raise OptionError(f"{str(file)!r} cannot be written: {fault.strerror or fault}") from None


def read_state(file: str, policy: str) -> State:
    """Read a state from ``springtide train``."""
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        found, state = document["policy"], document["state"]
        if not isinstance(state, dict):
            raise TypeError("no state")
        json.dumps(state, allow_nan=False)  # Python's JSON reads NaN, and policies would decide on it
    except FileNotFoundError:
        raise OptionError(f"state={file!r}: there is no such file; `springtide train` writes one") from None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise OptionError(f"state={file!r} is not what `springtide train` writes: {fault!r}") from None
    if found != policy:
        raise OptionError(f"state={file!r} was learned by {found!r}, and the policy is {policy!r}; {nearest(policy, [found])}")
    return dict(state)
