"""An executor: a process of the cluster that runs tasks, as observed at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Executor:
    """``busy_s``: the total time of its tasks since it started; the difference of two observations is its load.

    ``used_bytes`` of ``memory_bytes`` are in use; None if the cluster does not report them. ``leaving``: it is being released,
    and takes no more tasks. ``starting``: it runs, but is not ready for records yet.
    """

    name: str
    host: str
    cores: int
    tasks: int = 0
    busy_s: float = 0.0
    used_bytes: int | None = None
    memory_bytes: int | None = None
    leaving: bool = False
    starting: bool = False
