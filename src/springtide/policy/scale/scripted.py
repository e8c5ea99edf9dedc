"""Degrees by time: for demonstrations, tests of reconfiguration, and known loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from springtide.errors import OptionError
from springtide.model.duration import seconds
from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.by_operator import check_names
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes

ALL = "*"
"""The name of every operator without its own line."""

Steps = tuple[tuple[float, int], ...]
"""(second, degree): the degree from that second on."""


@dataclass(frozen=True)
class Scripted(ScalePlugin):
    """Plays a script of degrees.

    ``script``: ``operator second:degree second:degree …``, with ``;`` between operators; ``*`` is every operator without its
    own line. Before its first step, and without a line, an operator's degree does not change. ``repeat``: the script starts
    again after this many seconds; 0 plays it once and stays at its end.

    >>> play = Scripted("enrich 0:1 10:3 20:6; * 0:1 20:2", repeat=30)
    >>> [play.wanted("enrich", at) for at in (0, 9.9, 10, 29, 31)]
    [1, 1, 3, 6, 1]
    >>> play.wanted("classify", 25)
    2
    """

    name = "scripted"
    source = "Springtide"
    summary = "degrees by time, from a script"

    script: str = parameter("* 0:1", help="such as: enrich 0:1 10:3 20:6; * 0:1 (second:degree; * is all others)")
    repeat: float = parameter(0.0, "s", 0, help="start again after this time; 0 plays the script once")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._steps  # an invalid script fails here, not in the first interval

    @cached_property
    def _steps(self) -> Mapping[str, Steps]:
        found: dict[str, Steps] = {}
        for line in filter(None, (line.strip() for line in self.script.split(";"))):
            operator, *steps = line.split()
            if operator in found:
                raise OptionError(f"'scripted': the script names {operator!r} twice; write all its steps in one place")
            found[operator] = _steps(operator, steps, self.repeat)
        if not found:
            raise OptionError(f"'scripted': the script {self.script!r} is empty; write such as 'enrich 0:1 10:3; * 0:1'")
        return found

    def _step(self, operator: str, at: float) -> tuple[float, int] | None:
        """The step in force ``at`` seconds after the start: since when, and which degree."""
        time = at % self.repeat if self.repeat and math.isfinite(at) else at
        steps = self._steps.get(operator, self._steps.get(ALL, ()))
        return max((step for step in steps if step[0] <= time), default=None)

    def wanted(self, operator: str, at: float) -> int | None:
        """The degree ``at`` seconds after the start; None without a step."""
        step = self._step(operator, at)
        return None if step is None else step[1]

    def check(self, operators: Sequence[str]) -> None:
        """Raise OptionError when the script names an operator that does not exist."""
        check_names("'scripted': the script", self._steps, [*operators, ALL])

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        wanted = {}
        for operator in snapshot.operators:
            step = self._step(operator.name, snapshot.at)
            if step is not None:
                since, degree = step
                says = f"at {snapshot.at:g} s the script says {degree} since {since:g} s"
                wanted[operator.name] = degree, f"{says}, it has {operator.degree}"
        return state, changes(snapshot, wanted)


def _steps(operator: str, words: Sequence[str], repeat: float) -> Steps:
    """The steps of one operator, in the order of time; OptionError says which word is wrong."""
    if not words:
        raise OptionError(f"'scripted': {operator!r} has no steps; write second:degree, such as '{operator} 0:1 10:3'")
    steps: list[tuple[float, int]] = []
    for number, word in enumerate(words, start=1):
        where = f"'scripted': {operator!r}, step {number}: {word!r}"
        second, degree = _step(word, where)
        if steps and second <= steps[-1][0]:
            raise OptionError(f"{where} is not later than {steps[-1][0]:g} s, the step before it")
        if repeat and second >= repeat:
            raise OptionError(f"{where} is never reached: the script starts again after {repeat:g} s")
        steps.append((second, degree))
    return tuple(steps)


def _step(word: str, where: str) -> tuple[float, int]:
    second, _, degree = word.partition(":")
    try:
        time = seconds(second)
    except OptionError:
        time = math.nan
    if math.isnan(time) or not degree.isdecimal() or int(degree) < 1:
        raise OptionError(f"{where} is not second:degree, with a second of 0 or more and a degree of 1 or more")
    return time, int(degree)
