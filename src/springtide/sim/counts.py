"""What an operator did, in numbers that are added up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """What an operator did: in an interval, or in all."""

    rows_in: int = 0
    served: int = 0
    busy_s: float = 0.0
    response_s: float = 0.0
    lost: int = 0
    late: int = 0

    def add(self, other: Counts) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))
