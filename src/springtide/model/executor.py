"""A process of the cluster that runs tasks, as it is seen at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Executor:
    """``busy_s``: the time that its tasks have taken since it came, so that the difference of two looks is its load.

    ``used_bytes`` of ``memory_bytes`` are in use, where the cluster tells. ``leaving``: it was let go, and takes no more
    tasks. ``starting``: it is there, but not ready for records yet.
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
