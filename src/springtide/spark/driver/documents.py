"""The named documents of a checkpoint: their shapes, and what a run does without one that is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.spark.shared.durable import ANY, Shape

NUMBER = (int, float)
SEED = "seed"
"""The document with the state that was imported, by operator, which the first batch begins with."""


@dataclass(frozen=True)
class ByOperator(Shape):
    """By operator, an entry about its imported state; at least one."""

    entry: Shape = ANY

    def fault(self, document: Mapping[str, Any]) -> str | None:
        if not document:
            return "names no operator"
        for name, one in document.items():
            fault = self.entry.fault(one) if isinstance(one, dict) else "is no object"
            if fault is not None:
                return f"is wrong about operator {name!r}, whose entry {fault}"
        return None


ORIGIN = Shape({"checkpoint": (str,), "batch": (int, type(None)), "sources": (dict, type(None))})


@dataclass(frozen=True)
class Known:
    """``without``: what follows if the document is damaged and the run goes on without it; None if it is needed."""

    shape: Shape
    without: str | None = None


DOCUMENTS = {
    "topology": Known(Shape({"name": (str,), "operators": (dict,), "id": (str,)})),
    "state": Known(Shape({"declared": (dict,)}, {"secret": (str,), "location": (str, type(None)), "topology": (dict,)})),
    "secret": Known(Shape({"secret": (str,)}), "a new secret is made, and state is rewritten with it"),
    "epoch": Known(
        Shape({"epoch": (int,)}), "the next epoch is above those that the last manifest, begun.json and staged folders name"
    ),
    "schedule": Known(Shape({"started": NUMBER})),
    "ticks": Known(Shape({"ticks": (bool,)})),
    SEED: Known(ByOperator()),
    "imported": Known(ByOperator(entry=ORIGIN)),
    "begun": Known(
        Shape({"batch": (int,), "epoch": (int,), "offsets": (str,), "logs": (dict,), "settled": (dict,)}),
        "a batch that was begun and not committed begins anew, unless a sink was handed it",
    ),
    "policy": Known(Shape({"policy": (str,), "state": (dict,)}), "the policy learns anew"),
    "tables": Known(Shape({"fenced": (list,)}), "the tables that the topology names are taken for this checkpoint's own"),
    "floor": Known(Shape({"floor_s": NUMBER}), "the least duration of a batch is measured anew"),
}
SETTLED = ("schedule", "ticks")
"""Documents that never change after the first start. Manifests repeat them, so that a lost one can be put back."""


def known(name: str) -> Known:
    return DOCUMENTS.get(name, Known(ANY))
