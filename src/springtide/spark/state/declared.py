"""What the stateful operators of a topology declare, as their tasks need it, and as a checkpoint remembers it."""

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
from springtide.spark.state.stepping import Kept
from springtide.spark.state.store import below, check_writable, is_uri, place_of


def kept_in(checkpoint: Checkpoint, topology: Topology, location: str | None = None) -> dict[str, Kept]:
    """What the tasks of stateful operators know of them, if the checkpoint has nothing against it, and state can be written.

    ``location``: the URI where state shall lie, None for where it lies, or for the checkpoint."""
    if not topology.stateful:
        return {}
    root = checkpoint.state_root()
    if location is None and is_uri(root):  # one that is given was tried before the checkpoint was touched
        check_writable(root)
    secret = checkpoint.keep_state(_checked(checkpoint, topology, root), location)
    root = checkpoint.state_root()
    kept = {o.name: kept_of(topology, o, root, secret) for o in topology.stateful}
    for one in kept.values():
        place_of(one.folder).prepare()
    return kept


def _checked(checkpoint: Checkpoint, topology: Topology, root: str) -> Mapping[str, Mapping[str, Any]]:
    """What operators declare, if the checkpoint has no state that others have declared, or it is migrated."""
    before, declared = (checkpoint.recall("state") or {"declared": {}})["declared"], declarations(topology)
    for operator in topology.stateful:
        known, now = before.get(operator.name), declared[operator.name]
        if known is None or known == now or known["shards"] != now["shards"]:  # other shards are refused as such
            continue
        kept = kept_of(topology, operator, root, "")
        _check_written(checkpoint, kept, _computed(known).get(_named(now)), now.get("computes"))
        if kept.migrate is not None:
            now["migrated"] = True  # there may be state of an earlier declaration, until a start without a migration finds none
            earlier = {named: of for named, of in _computed(known).items() if named != _named(now)}
            now["earlier"] = [{"variables": json.loads(named), "computes": of} for named, of in earlier.items()]
    return declared


def _computed(known: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """What state of the variables that were declared so far is of. A migration is of other variables, so that those of one
    kind are of one thing."""
    every = [known, *known.get("earlier", ())]
    return {_named(one): one["computes"] for one in every if "computes" in one}


def _named(declared: Mapping[str, Any]) -> str:
    return json.dumps(declared["variables"])


def _check_written(
    checkpoint: Checkpoint, kept: Kept, was: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> None:  # fmt: skip
    """Refuse state that another declaration has written, unless it is migrated: tasks would fail on it, or take it for what it
    is not. ``was``, ``now``: what state of these variables is of, if that is known. Only the ends of files are read."""
    was, now = was or {}, now or {}
    changed = [name for name in was if name in now and was[name] != now[name]]
    if kept.migrate is not None and not changed:
        return
    stored = checkpoint.catalogs()
    runs = Catalog.from_json(stored[kept.operator]).runs if kept.operator in stored else ()
    for name in (run.files[0].name for run in runs):  # one declaration has written all files of a run
        with suppress(Damage):  # a task that needs it finds and names it, and it may be mended
            (segment,) = place_of(kept.folder).segments([name])
            if segment.schema.equals(kept.schema) and changed:
                raise CheckpointError(
                    f"operator {kept.operator!r} computes {_told(now, changed)}; in checkpoint {checkpoint.root} it has state"
                    f" of {_told(was, changed)}. Change it back, or give a new checkpoint"
                )
            if kept.migrate is None and not segment.schema.equals(kept.schema):
                raise CheckpointError(
                    f"operator {kept.operator!r} declares {_variables(kept.schema)}; in checkpoint {checkpoint.root} it has"
                    f" state of {_variables(segment.schema)}. Change it back, give stateful(migrate=function) while there is"
                    " such state, or give a new checkpoint"
                )


def _told(computes: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {computes[name]}" for name in names)


def _variables(schema: pa.Schema) -> str:
    named = (field for field in schema if field.name.startswith(STATE))
    return ", ".join(f"{field.name.removeprefix(STATE)}: {field.type}" for field in named) or "no variables"


def kept_of(topology: Topology, operator: Operator, root: str, secret: str) -> Kept:
    """``root``: the folder, or the URI, where state lies. ``secret``: of the checkpoint, that nobody who sends records can
    choose keys of one shard, or of one identity."""
    spec = operator.state
    assert spec is not None
    return Kept(
        operator.name, function_of(topology, operator), operator.key, topology.input_schema(operator), spec.shards,
        state_seeds(secret, operator.name), below(root, folder_of(operator.name)),
        None if spec.ttl_s is None else round(spec.ttl_s * 1e6), spec.time, spec.closes, spec.migrate,
    )  # fmt: skip


def folder_of(operator: str) -> str:
    """A folder's name for any operator's: two names never share one."""
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
    """What a checkpoint holds an operator to: a change of the variables can be migrated, one of the shards cannot. What a ready
    operator computes is part of it: states of a sum and of a maximum look the same."""
    assert operator.state is not None
    computes = getattr(operator.state.function, "describes", None)
    return {
        "shards": operator.state.shards,
        "variables": described(function_of(topology, operator).variables),
        **({"computes": dict(computes)} if isinstance(computes, Mapping) else {}),
    }


def declarations(topology: Topology) -> dict[str, dict[str, Any]]:
    return {operator.name: declaration(topology, operator) for operator in topology.stateful}
