"""The properties of a topology that may not change while it uses the same checkpoint."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from springtide.model.schema import described
from springtide.model.topology import Kind, Topology


def fingerprint(topology: Topology) -> dict[str, Any]:
    """The properties that may not change: names, graph, schemas, keys. Policy, bounds, grouping and parallelism may."""
    return {
        "name": topology.name,
        "operators": {
            o.name: {
                "kind": str(o.kind),
                "inputs": list(o.inputs),
                "schema": described(o.schema),
                "key": list(o.key),
                "endpoint": type(o.source or o.sink).__name__ if o.source or o.sink else "",
            }
            for o in topology
        },
    }


def checksum(fingerprint: Mapping[str, Any]) -> int:
    """Manifests store it, to recognise the topology for which the checkpoint was made."""
    return zlib.crc32(json.dumps(fingerprint, sort_keys=True).encode())


def compare(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The differences between two fingerprints, in words."""
    differences = []
    if stored["name"] != wanted["name"]:
        differences.append(f"it belongs to topology {stored['name']!r}")
    before, now = stored["operators"], wanted["operators"]
    differences += [f"operator {name!r} is gone" for name in before if name not in now]
    differences += [f"operator {name!r} is new" for name in now if name not in before]
    for name in before:
        for aspect in before[name]:
            if name in now and before[name][aspect] != now[name][aspect]:
                differences.append(f"{aspect} of {name!r} was {before[name][aspect]}, is {now[name][aspect]}")
    were, are = _sources(before), _sources(now)
    if were != are and sorted(were) == sorted(are):
        differences.append(f"the sources, whose offsets Spark keeps by place, were {', '.join(were)}, are {', '.join(are)}")
    return differences


def _sources(operators: Mapping[str, Any]) -> list[str]:
    return [name for name, operator in operators.items() if operator["kind"] == Kind.SOURCE]
