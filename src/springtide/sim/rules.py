"""The cluster of a model and its rules: machines, back-pressure, and the cost of reconfigurations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from springtide.errors import OptionError, nearest


@dataclass(frozen=True)
class Node:
    """A machine. Replicas share its ``cores`` if they are more; ``mbit_s`` is the speed of its interface."""

    cores: float = math.inf
    mbit_s: float = math.inf


@dataclass(frozen=True)
class Cluster:
    """Machines, and the delay between them: one number, or a matrix. ``record_bytes`` is the size of a record."""

    nodes: tuple[Node, ...]
    delay_s: float | tuple[tuple[float, ...], ...] = 0.0
    record_bytes: int = 128


@dataclass(frozen=True)
class BackPressure:
    """Sources hold records back from when a queue exceeds ``high`` until none exceeds ``low``.

    Queues are checked every ``every_s``, like Storm's flags. The sources release records no faster than the queues have room.
    """

    high: int
    low: int
    every_s: float = 0.05

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high and self.every_s > 0):
            raise OptionError(f"{self} is not allowed; 0 ≤ low ≤ high, and every_s is above 0")


@dataclass(frozen=True)
class Reconfiguration:
    """The cost of a change of degrees: nothing, a pause with buffering, or a restart that drops the queues.

    ``seconds``: the time without service. ``whole``: at every operator, not only those that change.
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
