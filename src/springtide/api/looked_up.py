"""The checks of ``stream.lookup``."""

from __future__ import annotations

import pyarrow as pa

from springtide.errors import OptionError, TopologyError, nearest
from springtide.model import schema as schemas
from springtide.model.lookup import Lookup
from springtide.processors.lookup import LookupJoin

MISSING = ("none", "dead-letter")


def joined(
    table: object, records: pa.Schema, into: object, missing: str, ttl_s: float, cache: int, patience_s: float
) -> LookupJoin:  # fmt: skip
    """The operator. Errors say what does not fit: the key, the fields of ``into``, or an option."""
    if not isinstance(table, Lookup):
        raise TopologyError(
            f"lookup({table!r:.200}): that is not a lookup; give springtide.lookup.postgres(…), or a Lookup of your own"
        )
    if missing not in MISSING:
        raise OptionError(f"lookup: missing={missing!r}; {nearest(str(missing), MISSING)}")
    if not isinstance(cache, int) or isinstance(cache, bool) or cache < 1:
        raise OptionError(f"lookup: cache={cache!r} is not allowed; give a number of rows, or ttl=0 to cache nothing")
    for name in table.key:
        if name not in records.names:
            raise TopologyError(f"lookup: key {name!r} is no field of the records; {nearest(name, records.names)}")
    schema, _ = schemas.as_schema(into, "lookup: into")
    own = frozenset(schema.names) & frozenset(records.names)
    _check_fields(schema, records, own, missing)
    return LookupJoin(table, schema, own, missing == "dead-letter", ttl_s, cache, patience_s)


def _check_fields(schema: pa.Schema, records: pa.Schema, own: frozenset[str], missing: str) -> None:
    faults = schemas.misfits(records, pa.schema([field for field in schema if field.name in own]))
    if faults:
        raise TopologyError(f"lookup: into= has fields of the records, but differs from them: {'; '.join(faults)}")
    looked_up = [field for field in schema if field.name not in own]
    if not looked_up:
        raise TopologyError(f"lookup: into= has only fields of the records ({', '.join(schema.names)}); add those to look up")
    strict = [field.name for field in looked_up if not field.nullable]
    if strict and missing == "none":
        raise TopologyError(
            f"lookup: {strict[0]!r} is None where no row is found; declare it with '| None', or take missing='dead-letter'"
        )
