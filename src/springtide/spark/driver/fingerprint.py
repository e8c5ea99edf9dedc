"""What a checkpoint holds its topology to."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from springtide.model.schema import described
from springtide.model.topology import Kind, Topology


def fingerprint(topology: Topology) -> dict[str, Any]:
    """What a checkpoint holds its topology to. Policy, bounds, grouping and parallelism may change."""
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
    """By which a manifest tells whether a topology is the one that the checkpoint was made for."""
    return zlib.crc32(json.dumps(fingerprint, sort_keys=True).encode())


def compare(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words."""
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
    return [name for name, one in operators.items() if one["kind"] == Kind.SOURCE]
