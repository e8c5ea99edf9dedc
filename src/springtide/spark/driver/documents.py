"""The named documents of a checkpoint: their shapes, and what a run does if one is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.durable import ANY, Shape

NUMBER = (int, float)
SEED = "seed"
"""The document with the imported state by operator, from which the first batch begins."""


@dataclass(frozen=True)
class ByOperator(Shape):
    """An entry for each operator with imported state; at least one."""

    entry: Shape = ANY

    def fault(self, document: Mapping[str, Any]) -> str | None:
        if not document:
            return "names no operator"
        for name, entry in document.items():
            fault = self.entry.fault(entry) if isinstance(entry, dict) else "is no object"
            if fault is not None:
                return f"is wrong about operator {name!r}, whose entry {fault}"
        return None


ORIGIN = Shape({"checkpoint": (str,), "batch": (int, type(None)), "sources": (dict, type(None))})


@dataclass(frozen=True)
class DocumentSpec:
    """``without``: the consequence if a run goes on without a damaged document; None if the document is needed."""

    shape: Shape
    without: str | None = None


DOCUMENTS = {
    "topology": DocumentSpec(Shape({"name": (str,), "operators": (dict,), "id": (str,)})),
    "state": DocumentSpec(Shape({"declared": (dict,)}, {"secret": (str,), "location": (str, type(None)), "topology": (dict,)})),
    "secret": DocumentSpec(Shape({"secret": (str,)}), "a new secret is made, and state is rewritten with it"),
    "epoch": DocumentSpec(
        Shape({"epoch": (int,)}), "the next epoch is above all that the last manifest, begun.json and staged folders name"
    ),
    "schedule": DocumentSpec(Shape({"started": NUMBER})),
    "origins": DocumentSpec(ANY),
    "ticks": DocumentSpec(Shape({"ticks": (bool,)})),
    SEED: DocumentSpec(ByOperator()),
    "imported": DocumentSpec(ByOperator(entry=ORIGIN)),
    "begun": DocumentSpec(
        Shape({"batch": (int,), "epoch": (int,), "offsets": (str,), "logs": (dict,), "settled": (dict,)}),
        "a batch that was begun and not committed begins anew, unless a sink has received it",
    ),
    "policy": DocumentSpec(Shape({"policy": (str,), "state": (dict,)}), "the policy learns anew"),
    "tables": DocumentSpec(
        Shape({"fenced": (list,)}), "the tables that the topology names are taken for this checkpoint's own"
    ),
    "floor": DocumentSpec(Shape({"floor_s": NUMBER}), "the least duration of a batch is measured anew"),
}
SETTLED = ("schedule", "origins", "ticks")
"""Documents that never change after the first start. Manifests repeat them, so that a lost document can be put back."""


def known(name: str) -> DocumentSpec:
    return DOCUMENTS.get(name, DocumentSpec(ANY))
