"""Reads the state in a checkpoint, without the query and without Spark, also during a run.

Reads the state after the last committed batch, whose manifest names the files. Files in a folder are all opened at the start,
so that a concurrent merge may remove them; files at a URI are not protected. As in a run, the files that a damaged file was
merged from are read instead of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import CheckpointError, OptionError, nearest
from springtide.model.state import moment
from springtide.policy.group.keys import key_hashes
from springtide.policy.group.shards import shards_of
from springtide.processors.aggregating import CLOSE
from springtide.processors.processor import Clock
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.hashing import hashing_mark, state_seeds
from springtide.spark.shared.remedies import ANEW, EITHER, PUT_BACK, ways_out
from springtide.spark.state.catalog import Catalog, SegmentRun
from springtide.spark.state.compact import groups, newest_within
from springtide.spark.state.declared import folder_of
from springtide.spark.state.lookup import Identities, find
from springtide.spark.state.per_key import NEXT
from springtide.spark.state.segment import GONE, HASH, KEY, OWN, STATE, TOUCHED, Damage, LookupChunk, Segment
from springtide.spark.state.store import below, is_uri, store_of

log = logging.getLogger("springtide.spark")

Read = TypeVar("Read")
DUE = {Clock.EVENT: (NEXT[Clock.EVENT], CLOSE), Clock.PROCESSING: (NEXT[Clock.PROCESSING],)}
"""The variables with the time of a key's next timer."""


@dataclass(frozen=True)
class StoredState:
    """The state of one operator in a checkpoint. ``batch``: the last committed one, None before the first."""

    operator: str
    shards: int
    key: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]  # each with its type
    catalog: Catalog
    batch: int | None
    place: str  # a folder, or a URI
    seeds: tuple[int, int]


def stored_states(checkpoint: Path) -> dict[str, StoredState]:
    stored = Checkpoint(checkpoint)
    fingerprint, declared, manifest = stored.recall("topology"), stored.recall("state"), stored.last_manifest()
    if fingerprint is None:
        raise OptionError(f"{str(checkpoint)!r} is no checkpoint of Springtide; give one, or the folder of a run")
    if declared is None:
        raise OptionError(f"checkpoint {str(checkpoint)!r} has no state: topology {fingerprint['name']!r} has no stateful"
                          " operator, or was never started")  # fmt: skip
    catalogs, root, secret = stored.catalogs(), stored.state_root(), stored.state_secret(declared) or ""
    return {
        name: StoredState(
            name, one["shards"], tuple(fingerprint["operators"][name]["key"]),
            tuple((variable, kind) for variable, kind, _ in one["variables"]),
            Catalog.from_json(catalogs[name]) if name in catalogs else Catalog(),
            None if manifest is None else manifest["batch"], below(root, folder_of(name)),
            state_seeds(secret, name),
        )
        for name, one in declared["declared"].items()
    }  # fmt: skip


def stored_state(checkpoint: Path, operator: str) -> StoredState:
    found = stored_states(checkpoint)
    if operator not in found:
        raise OptionError(f"no stateful operator {operator!r} in checkpoint {str(checkpoint)!r}: {nearest(operator, found)}")
    return found[operator]


class Pinned(Segment):
    """A segment with an open file, which can be read even after the file is removed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self._file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise Damage(path, "it is gone") from None

    def read(self, number: int) -> pa.RecordBatch:
        chunk = self.chunks[number]
        body = pa.py_buffer(os.pread(self._file, chunk.length, chunk.offset))
        self.check(number, body)
        return pa.ipc.read_record_batch(body, self.schema)

    def close(self) -> None:
        os.close(self._file)


class Alarm(NamedTuple):
    """The number of keys with a timer, and the time of the first one, in microseconds since 1970."""

    keys: int
    first: int


class OpenRun(NamedTuple):
    """A run, open for reading."""

    run: SegmentRun
    segments: Sequence[Segment]


@dataclass(frozen=True, eq=False)
class Reading:
    """The state of one operator after one batch, open for reading. ``parts``: newest first."""

    stored: StoredState
    parts: list[OpenRun]
    stack: ExitStack

    @property
    def segments(self) -> list[Segment]:
        """Newest first."""
        return [segment for part in self.parts for segment in part.segments]

    @property
    def schema(self) -> pa.Schema:
        """The columns of all segments, whose declarations may differ, in the order of the newest."""
        return self._schema(lambda name: True)

    def _schema(self, is_read: Callable[[str], bool]) -> pa.Schema:
        fields: dict[str, pa.Field] = {}
        for segment in self.segments:
            for field in filter(lambda field: is_read(field.name), segment.schema):
                known = fields.setdefault(field.name, field)
                if known.type != field.type:
                    raise CheckpointError(
                        f"operator {self.stored.operator!r}: {field.name.removeprefix(STATE)!r} is {known.type} now, and"
                        f" {field.type} in {segment.path}, which was not migrated yet; let the run go on until it has been"
                        " merged, or read single keys with --key"
                    )
        return pa.schema(list(fields.values()) or OWN)

    def rows(self, variables: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of every key that is not deleted, by groups of shards: state may be larger than memory.
        ``variables``: read only these; the types of others may then differ between segments."""
        schema = self._schema(lambda name: variables is None or not name.startswith(STATE) or name in variables)

        def fitted(part: pa.RecordBatch) -> pa.RecordBatch:
            known = part if variables is None else part.select([name for name in part.schema.names if name in schema.names])
            return _widened(known, schema)

        for first, last in groups(self.segments, self.stored.shards):
            shards = first, last, self.stored.shards
            rows = self._whole(lambda: newest_within(self.segments, *shards, fitted))  # noqa: B023  called at once
            living = None if rows is None else rows.filter(pc.invert(rows.column(GONE)))
            if living is not None and living.num_rows:
                yield living

    def _whole(self, read: Callable[[], Read]) -> Read:
        """Read; again from the files that a file was merged from if that is damaged."""
        while True:
            try:
                return read()
            except Damage as damage:
                found = (i for i, part in enumerate(self.parts) if damage.path in {segment.path for segment in part.segments})
                place = next(found, None)
                if place is None:
                    raise
                self.parts[place : place + 1] = _earlier(self.stored, self.parts[place].run, damage, self.stack)

    def key_schema(self) -> pa.Schema:
        """The schema of the key as stored; no columns if nothing is stored."""
        names = self.stored.key if self.segments else ()
        return pa.schema([pa.field(name, self.segments[0].schema.field(KEY + name).type) for name in names])

    def row(self, key: pa.RecordBatch) -> pa.RecordBatch | None:
        """The newest row of one key as stored; None if the key has no state."""
        if self.segments and self.stored.catalog.hashing != hashing_mark(*self.stored.seeds):
            raise CheckpointError(
                f"operator {self.stored.operator!r}: its keys were hashed by another version of Springtide, or with another"
                " secret, and none can be looked up. Run the topology once with this checkpoint, which rewrites its state, or"
                " read all of it with `springtide state export`"
            )
        one, two = (key_hashes(key, self.stored.key, seed) for seed in self.stored.seeds)
        (shard,) = shards_of(one, self.stored.shards).tolist()
        wanted = Identities(one, two, key.select(list(self.stored.key)))
        return self._whole(lambda: self._found(wanted, shard))

    def _found(self, wanted: Identities, shard: int) -> pa.RecordBatch | None:
        for segment in self.segments:
            for number in segment.within(shard, shard):
                rows = segment.read(number)
                for place in find(LookupChunk.into(rows), wanted)[1].tolist():
                    return None if rows.column(GONE)[place].as_py() else rows.slice(place, 1)
        return None

    def shard(self, row: pa.RecordBatch) -> int:
        """The shard of the first row."""
        return int(shards_of(row.column(HASH).to_numpy(), self.stored.shards)[0])

    def alarms(self, since: int | None = None) -> dict[str, Alarm]:
        """The keys with timers, by the variable with the time of the next timer. Reads all state that has timers.
        ``since``, in microseconds: omit keys that were last written before."""
        there = {name for segment in self.segments for name in segment.schema.names}
        wanted = [name for names in DUE.values() for name in names if STATE + name in there]
        found: dict[str, Alarm] = {}
        for rows in self.rows([STATE + name for name in wanted]) if wanted else ():
            recent = rows if since is None else rows.filter(pc.greater_equal(rows.column(TOUCHED), since))
            for name in wanted:
                times = recent.column(STATE + name).drop_null()
                if len(times):
                    earliest, before = int(np.min(times.to_numpy())), found.get(name)
                    first = earliest if before is None else min(before.first, earliest)
                    found[name] = Alarm(len(times) + (before.keys if before is not None else 0), first)
        return found

    def timers(self) -> dict[str, dict[str, Any]]:
        """The number of keys with a timer, and the time of the first, by clock. Reads all state that has timers."""
        alarms = self.alarms()
        by_clock = {clock: [alarms[name] for name in names if name in alarms] for clock, names in DUE.items()}
        return {
            str(clock): {
                "keys": sum(alarm.keys for alarm in found),
                "first": moment(min(alarm.first for alarm in found)).isoformat() if found else None,
            }
            for clock, found in by_clock.items()
        }


def _widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add nulls for variables that were not declared when the rows were written."""
    if rows.schema.equals(schema):
        return rows
    kinds = {field.name: field.type for field in schema}
    strange = [field.name.removeprefix(STATE) for field in rows.schema if kinds.get(field.name) != field.type]
    if strange:
        raise CheckpointError(
            f"{', '.join(strange)}: declared otherwise in the files that are read instead of a damaged one; let a run migrate"
            " them, or read single keys with --key"
        )
    blank = {field.name: pa.nulls(rows.num_rows, field.type) for field in schema if field.name not in rows.schema.names}
    columns = [blank[name] if name in blank else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextlib.contextmanager
def reading(checkpoint: Path, operator: str) -> Iterator[Reading]:
    """The current state of an operator. If a merge removed a file before it was opened, a newer manifest is read."""
    stored = stored_state(checkpoint, operator)
    with ExitStack() as stack:
        while True:
            try:
                parts = _opened(stored, stack)
            except Damage:
                stack.close()
                newer = stored_state(checkpoint, operator)
                if newer != stored:
                    stored = newer
                    continue
                parts = _mended(stored, stack)
            break
        yield Reading(stored, parts, stack)


def _opened(stored: StoredState, stack: ExitStack) -> list[OpenRun]:
    """Open all runs; ``stack`` closes them."""
    names = [file.name for run in stored.catalog.runs for file in run.files]
    if is_uri(stored.place):
        store_of(stored.place).tidy(names)
    segments = iter(_segments(stored, names, stack))
    return [OpenRun(run, [next(segments) for _ in run.files]) for run in stored.catalog.runs]


def _mended(stored: StoredState, stack: ExitStack) -> list[OpenRun]:
    """Open run by run, with the earlier runs of a damaged one."""
    parts: list[OpenRun] = []
    for run in stored.catalog.runs:
        try:
            parts += _parts(stored, [run], stack)
        except Damage as damage:
            parts += _earlier(stored, run, damage, stack)
    return parts


def _earlier(stored: StoredState, run: SegmentRun, damage: Damage, stack: ExitStack) -> list[OpenRun]:
    """The runs that a damaged run was merged from; raises CheckpointError if they are missing or damaged."""
    if not run.before:
        raise CheckpointError(f"{damage}. {ways_out(PUT_BACK, ANEW)}") from None
    try:
        parts = _parts(stored, run.before, stack)
    except Damage as other:
        raise CheckpointError(f"{damage}; of the files that it was merged from, {other}. {ways_out(EITHER, ANEW)}") from None
    log.warning("%s; the files that it was merged from are read instead", damage)
    return parts


def _parts(stored: StoredState, runs: Sequence[SegmentRun], stack: ExitStack) -> list[OpenRun]:
    return [OpenRun(run, _segments(stored, [file.name for file in run.files], stack)) for run in runs]


def _segments(stored: StoredState, names: Sequence[str], stack: ExitStack) -> Sequence[Segment]:
    if is_uri(stored.place):  # files there cannot be pinned: a removed one is reported as missing
        return store_of(stored.place).segments(names)
    opened = []
    for name in names:
        opened.append(Pinned(f"{stored.place}/{name}"))
        stack.callback(opened[-1].close)
    return opened
