"""Merges segments of an operator's state in a Spark task, beside the tasks of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from springtide.spark.shared.shipping import Shipment
from springtide.spark.state.catalog import SUFFIX
from springtide.spark.state.compact import merge


@dataclass(frozen=True)
class Merge:
    """The function of the merge's task."""

    shipment: Shipment
    number: int
    names: tuple[str, ...]
    target: str
    oldest: bool
    now: int
    rests: bool

    def __call__(self, _: int) -> Mapping[str, Any]:
        layout = self.shipment.unpacked().nodes[self.number].layout
        attempt = TaskContext.get().taskAttemptId()  # no two attempts write the same file
        target = f"{self.target.removesuffix(SUFFIX)}-{attempt}{SUFFIX}"
        return merge(layout, self.names, target, self.oldest, self.now, self.rests)
