"""The cluster under a model, and the rules that hold in it: machines, back-pressure, what a reconfiguration costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from springtide.errors import OptionError, nearest


@dataclass(frozen=True)
class Node:
    """A machine: replicas beyond its ``cores`` share them; ``mbit_s`` is what its interface sends at most."""

    cores: float = math.inf
    mbit_s: float = math.inf


@dataclass(frozen=True)
class Cluster:
    """Machines, and the time from one to another: the same everywhere, or by pairs. ``record_bytes`` is a record's size."""

    nodes: tuple[Node, ...]
    delay_s: float | tuple[tuple[float, ...], ...] = 0.0
    record_bytes: int = 128


@dataclass(frozen=True)
class BackPressure:
    """The sources hold records back from when a queue is longer than ``high`` until none is longer than ``low``.

    Queues are looked at every ``every_s``, as Storm's flags take their time; what was held back is let go no faster than
    the queues have room for.
    """

    high: int
    low: int
    every_s: float = 0.05

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high and self.every_s > 0):
            raise OptionError(f"{self} is not allowed; 0 ≤ low ≤ high, and every_s is above 0")


@dataclass(frozen=True)
class Reconfiguration:
    """What a change of degrees costs: nothing, a pause with buffering, or a restart that drops what waits in queues.

    ``seconds``: for how long no record starts. ``whole``: at every operator, not only at those that change.
    """

    kind: Literal["none", "pause", "restart"] = "none"
    seconds: float = 0.0
    whole: bool = False

    def __post_init__(self) -> None:
        kinds = ("none", "pause", "restart")
        if self.kind not in kinds:
            raise OptionError(f"reconfiguration {self.kind!r} does not exist; {nearest(self.kind, kinds)}")
        if not 0 <= self.seconds < math.inf:
            raise OptionError(f"a reconfiguration of {self.seconds} s is not allowed; it takes 0 s or more")
        if self.kind == "none" and self.seconds:
            raise OptionError(
                f"a pause of {self.seconds:g} s has no effect with reconfiguration 'none'; choose pause or restart"
            )
