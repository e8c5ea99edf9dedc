"""Counters of an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Counters of an operator, in an interval or in total."""

    rows_in: int = 0
    served: int = 0
    busy_s: float = 0.0
    response_s: float = 0.0
    lost: int = 0
    late: int = 0

    def add(self, other: Counts) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))
