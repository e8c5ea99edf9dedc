"""The part of a plan that travels to the tasks of one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from springtide.policy.group import Route
from springtide.spark.shared.shipping import Shipment


@dataclass(frozen=True)
class StagePlan:
    """The part of a plan that the tasks of one stage need."""

    level: int
    ranges: Mapping[int, tuple[int, int]]  # operator → (first task, width) at its level
    next_size: int  # tasks of the next stage
    epoch: int
    shipped_routes: Shipment  # a mapping from operators to routes
    shed_before: float | None = None  # records of the sources that were created before this time are shed

    @property
    def routes(self) -> Mapping[int, Route]:
        routes: Mapping[int, Route] = self.shipped_routes.unpacked()
        return routes
