"""The declarations of stateful operators, for tasks (``StateLayout``) and for the checkpoint's document."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from springtide.errors import CheckpointError
from springtide.model import schema as schemas
from springtide.model.schema import described
from springtide.model.state import Stateful
from springtide.model.topology import Operator, Topology
from springtide.processors.processor import Processor
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.hashing import state_seeds
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.per_key import PerKey
from springtide.spark.state.segment import STATE, Damage
from springtide.spark.state.stepping import StateLayout
from springtide.spark.state.store import below, check_writable, is_uri, store_of


def layouts_in(checkpoint: Checkpoint, topology: Topology, location: str | None = None) -> dict[str, StateLayout]:
    """The layouts of all stateful operators. Refuses declarations that do not fit the checkpoint, and unwritable locations.

    ``location``: the URI for the state; None for its present location, or for the checkpoint."""
    if not topology.stateful:
        return {}
    root = checkpoint.state_root()
    if location is None and is_uri(root):  # a given location was checked before
        check_writable(root)
    secret = checkpoint.keep_state(_checked(checkpoint, topology, root), location)
    root = checkpoint.state_root()
    layouts = {o.name: layout_of(topology, o, root, secret) for o in topology.stateful}
    for layout in layouts.values():
        store_of(layout.folder).prepare()
    return layouts


def _checked(checkpoint: Checkpoint, topology: Topology, root: str) -> Mapping[str, Mapping[str, Any]]:
    """The declarations, after a check that the checkpoint's state has the same ones or is migrated."""
    before, declared = (checkpoint.recall("state") or {"declared": {}})["declared"], declarations(topology)
    for operator in topology.stateful:
        known, now = before.get(operator.name), declared[operator.name]
        if known is None or known == now or known["shards"] != now["shards"]:  # another number of shards is refused elsewhere
            continue
        layout = layout_of(topology, operator, root, "")
        _check_written(checkpoint, layout, _computed(known).get(_named(now)), now.get("computes"))
        if layout.migrate is not None:
            now["migrated"] = True  # until a start without a migration finds no state of an earlier declaration
            earlier = {named: of for named, of in _computed(known).items() if named != _named(now)}
            now["earlier"] = [{"variables": json.loads(named), "computes": of} for named, of in earlier.items()]
    return declared


def _computed(known: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """The computations of all declarations so far, by variables. A migration changes the variables, so they are unique."""
    declared = [known, *known.get("earlier", ())]
    return {_named(entry): entry["computes"] for entry in declared if "computes" in entry}


def _named(declared: Mapping[str, Any]) -> str:
    return json.dumps(declared["variables"])


def _check_written(
    checkpoint: Checkpoint, layout: StateLayout, was: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> None:  # fmt: skip
    """Refuse state of another declaration unless it is migrated: tasks would fail on it, or misinterpret it. ``was``,
    ``now``: the computations of these variables, if known. Reads only the ends of files."""
    was, now = was or {}, now or {}
    changed = [name for name in was if name in now and was[name] != now[name]]
    if layout.migrate is not None and not changed:
        return
    stored = checkpoint.catalogs()
    runs = Catalog.from_json(stored[layout.operator]).runs if layout.operator in stored else ()
    for name in (run.files[0].name for run in runs):  # all files of a run have the same declaration
        with suppress(Damage):  # the task that reads it reports the damage, or replaces the file
            (segment,) = store_of(layout.folder).segments([name])
            if segment.schema.equals(layout.schema) and changed:
                raise CheckpointError(
                    f"operator {layout.operator!r} computes {_listed(now, changed)}; in checkpoint {checkpoint.root} it has"
                    f" state of {_listed(was, changed)}. Change it back, or give a new checkpoint"
                )
            if layout.migrate is None and not segment.schema.equals(layout.schema):
                raise CheckpointError(
                    f"operator {layout.operator!r} declares {_variables(layout.schema)}; in checkpoint {checkpoint.root} it has"
                    f" state of {_variables(segment.schema)}. Change it back, give stateful(migrate=function) while there is"
                    " such state, or give a new checkpoint"
                )


def _listed(computes: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {computes[name]}" for name in names)


def _variables(schema: pa.Schema) -> str:
    named = (field for field in schema if field.name.startswith(STATE))
    return ", ".join(f"{field.name.removeprefix(STATE)}: {field.type}" for field in named) or "no variables"


def layout_of(topology: Topology, operator: Operator, root: str, secret: str) -> StateLayout:
    """``root``: the folder or URI of the state. ``secret``: of the checkpoint, so that a sender of records cannot choose
    keys of one shard or with the same hashes."""
    spec = operator.state
    assert spec is not None
    return StateLayout(
        operator.name, function_of(topology, operator), operator.key, topology.input_schema(operator), spec.shards,
        state_seeds(secret, operator.name), below(root, folder_of(operator.name)),
        None if spec.ttl_s is None else round(spec.ttl_s * 1e6), spec.time, spec.closes, spec.migrate,
    )  # fmt: skip


def folder_of(operator: str) -> str:
    """A folder name for an operator; unique to it."""
    plain = re.sub(r"[^\w.-]", "_", operator)
    return plain if plain == operator else f"{plain}-{hashlib.blake2b(operator.encode(), digest_size=4).hexdigest()}"


def function_of(topology: Topology, operator: Operator) -> Stateful:
    assert operator.state is not None and operator.schema is not None
    function = operator.state.function
    if not isinstance(function, Processor):
        ready: Stateful = function
        return ready
    offered = topology.input_schema(operator)
    record = topology[operator.inputs[0]].record or schemas.record_class(offered)
    return PerKey(function, record, schemas.readers(record, offered), operator.schema, operator.record)


def declaration(topology: Topology, operator: Operator) -> dict[str, Any]:
    """An operator's declaration in the checkpoint. Variables can be migrated, the number of shards cannot change. It includes
    what a ready operator computes, because the states of a sum and of a maximum look the same."""
    assert operator.state is not None
    computes = getattr(operator.state.function, "describes", None)
    return {
        "shards": operator.state.shards,
        "variables": described(function_of(topology, operator).variables),
        **({"computes": dict(computes)} if isinstance(computes, Mapping) else {}),
    }


def declarations(topology: Topology) -> dict[str, dict[str, Any]]:
    return {operator.name: declaration(topology, operator) for operator in topology.stateful}
