"""State as a checkpoint has it, read without the query and without Spark, also while a run goes on.

What is read is the state after the last committed batch: its manifest names the files. Those in a folder are held
open from the first on, so that a merge which removes them meanwhile takes nothing away; those at a URI cannot be.
Where a merged file is damaged, those that it was merged from are read, as a run would.
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
from springtide.spark.state.catalog import Catalog, Run
from springtide.spark.state.compact import Fit, groups, newest_within
from springtide.spark.state.declared import folder_of
from springtide.spark.state.lookup import Identities, find
from springtide.spark.state.per_key import NEXT
from springtide.spark.state.segment import GONE, HASH, KEY, OWN, STATE, TOUCHED, Damage, Looked, Segment
from springtide.spark.state.store import below, is_uri, place_of

log = logging.getLogger("springtide.spark")

Read = TypeVar("Read")
DUE = {Clock.EVENT: (NEXT[Clock.EVENT], CLOSE), Clock.PROCESSING: (NEXT[Clock.PROCESSING],)}
"""The variables that may have the time of a key's next timer."""


@dataclass(frozen=True)
class Held:
    """What a checkpoint knows of one stateful operator. ``batch``: the last that was committed, None before the first."""

    operator: str
    shards: int
    key: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]  # each with its type
    catalog: Catalog
    batch: int | None
    place: str  # a folder, or a URI
    seeds: tuple[int, int]


def held_in(checkpoint: Path) -> dict[str, Held]:
    """All stateful operators of a checkpoint."""
    stored = Checkpoint(checkpoint)
    fingerprint, declared, manifest = stored.recall("topology"), stored.recall("state"), stored.last_manifest()
    if fingerprint is None:
        raise OptionError(f"{str(checkpoint)!r} is no checkpoint of Springtide; give one, or the folder of a run")
    if declared is None:
        raise OptionError(f"checkpoint {str(checkpoint)!r} has no state: topology {fingerprint['name']!r} has no stateful"
                          " operator, or was never started")  # fmt: skip
    catalogs, root, secret = stored.catalogs(), stored.state_root(), stored.state_secret(declared) or ""
    return {
        name: Held(
            name, one["shards"], tuple(fingerprint["operators"][name]["key"]),
            tuple((variable, kind) for variable, kind, _ in one["variables"]),
            Catalog.from_json(catalogs[name]) if name in catalogs else Catalog(),
            None if manifest is None else manifest["batch"], below(root, folder_of(name)),
            state_seeds(secret, name),
        )
        for name, one in declared["declared"].items()
    }  # fmt: skip


def held_of(checkpoint: Path, operator: str) -> Held:
    found = held_in(checkpoint)
    if operator not in found:
        raise OptionError(f"no stateful operator {operator!r} in checkpoint {str(checkpoint)!r}: {nearest(operator, found)}")
    return found[operator]


class Pinned(Segment):
    """A segment that is held open: it can be read to its end though its file is removed meanwhile."""

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
    """Keys that have a timer, and when the first of them comes, in microseconds since 1970."""

    keys: int
    first: int


class Part(NamedTuple):
    """A run, open for reading."""

    run: Run
    segments: Sequence[Segment]


@dataclass(frozen=True, eq=False)
class Reading:
    """The state of one operator after one batch, open for reading. ``parts``: the newest first."""

    held: Held
    parts: list[Part]
    stack: ExitStack

    @property
    def segments(self) -> list[Segment]:
        """The newest first."""
        return [segment for part in self.parts for segment in part.segments]

    @property
    def schema(self) -> pa.Schema:
        """Of its rows: the columns of all segments, in the order of the newest, which may have been declared otherwise."""
        return self._schema(lambda name: True)

    def _schema(self, is_read: Callable[[str], bool]) -> pa.Schema:
        fields: dict[str, pa.Field] = {}
        for segment in self.segments:
            for field in filter(lambda field: is_read(field.name), segment.schema):
                known = fields.setdefault(field.name, field)
                if known.type != field.type:
                    raise CheckpointError(
                        f"operator {self.held.operator!r}: {field.name.removeprefix(STATE)!r} is {known.type} now, and"
                        f" {field.type} in {segment.path}, which was not migrated yet; let the run go on until it has been"
                        " merged, or read single keys with --key"
                    )
        return pa.schema(list(fields.values()) or OWN)

    def rows(self, variables: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of every key that is not gone, by groups of shards: state may be larger than memory. ``variables``:
        read no others, so that those may have been declared otherwise."""
        schema = self._schema(lambda name: variables is None or not name.startswith(STATE) or name in variables)

        def fitted(part: pa.RecordBatch) -> pa.RecordBatch:
            known = part if variables is None else part.select([name for name in part.schema.names if name in schema.names])
            return _widened(known, schema)

        for first, last in groups(self.segments, self.held.shards):
            rows = self._whole(lambda: self._newest(first, last, fitted))  # noqa: B023  which calls it at once
            living = None if rows is None else rows.filter(pc.invert(rows.column(GONE)))
            if living is not None and living.num_rows:
                yield living

    def _newest(self, first: int, last: int, fitted: Fit) -> pa.RecordBatch | None:
        return newest_within(self.segments, first, last, self.held.shards, fitted)

    def _whole(self, read: Callable[[], Read]) -> Read:
        """What is read; anew if a merged file is found to be damaged, from what it was merged from."""
        while True:
            try:
                return read()
            except Damage as damage:
                found = (i for i, part in enumerate(self.parts) if damage.path in {one.path for one in part.segments})
                place = next(found, None)
                if place is None:
                    raise
                self.parts[place : place + 1] = _earlier(self.held, self.parts[place].run, damage, self.stack)

    def key_schema(self) -> pa.Schema:
        """Of the key, as it was written; without columns if nothing was."""
        names = self.held.key if self.segments else ()
        return pa.schema([pa.field(name, self.segments[0].schema.field(KEY + name).type) for name in names])

    def row(self, key: pa.RecordBatch) -> pa.RecordBatch | None:
        """The newest row of one key, as it was written; None if nothing is remembered of it."""
        if self.segments and self.held.catalog.hashing != hashing_mark(*self.held.seeds):
            raise CheckpointError(
                f"operator {self.held.operator!r}: its keys were hashed by another version of Springtide, or with another"
                " secret, and none can be looked up. Run the topology once with this checkpoint, which rewrites its state, or"
                " read all of it with `springtide state export`"
            )
        one, two = (key_hashes(key, self.held.key, seed) for seed in self.held.seeds)
        (shard,) = shards_of(one, self.held.shards).tolist()
        wanted = Identities(one, two, key.select(list(self.held.key)))
        return self._whole(lambda: self._found(wanted, shard))

    def _found(self, wanted: Identities, shard: int) -> pa.RecordBatch | None:
        for segment in self.segments:
            for number in segment.within(shard, shard):
                rows = segment.read(number)
                for place in find(Looked.into(rows), wanted)[1].tolist():
                    return None if rows.column(GONE)[place].as_py() else rows.slice(place, 1)
        return None

    def shard(self, row: pa.RecordBatch) -> int:
        """In which shard the first of some rows is."""
        return int(shards_of(row.column(HASH).to_numpy(), self.held.shards)[0])

    def alarms(self, since: int | None = None) -> dict[str, Alarm]:
        """By variable that has the time of a key's next timer, how many keys have one, and when the first comes. All state
        with timers is read for it. ``since``, in microseconds: leave out keys that were not written to since then."""
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
        """By clock, how many keys have a timer, and when the first comes. All state with timers is read for it."""
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
    """With nulls for variables that were not declared when the rows were written."""
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
    """The state of an operator now. If a merge removed a file before it was opened, a newer manifest names others."""
    held = held_of(checkpoint, operator)
    with ExitStack() as stack:
        while True:
            try:
                parts = _opened(held, stack)
            except Damage:
                stack.close()
                newer = held_of(checkpoint, operator)
                if newer != held:
                    held = newer
                    continue
                parts = _mended(held, stack)
            break
        yield Reading(held, parts, stack)


def _opened(held: Held, stack: ExitStack) -> list[Part]:
    """All runs. What is held open is closed with the stack."""
    names = [file.name for run in held.catalog.runs for file in run.files]
    if is_uri(held.place):
        place_of(held.place).tidy(names)
    segments = iter(_segments(held, names, stack))
    return [Part(run, [next(segments) for _ in run.files]) for run in held.catalog.runs]


def _mended(held: Held, stack: ExitStack) -> list[Part]:
    """The same, where a file is damaged: run by run."""
    parts: list[Part] = []
    for run in held.catalog.runs:
        try:
            parts += _parts(held, [run], stack)
        except Damage as damage:
            parts += _earlier(held, run, damage, stack)
    return parts


def _earlier(held: Held, run: Run, damage: Damage, stack: ExitStack) -> list[Part]:
    """The runs that a damaged one was merged from; the damage itself if there are none, or not all are there."""
    if not run.before:
        raise CheckpointError(f"{damage}. {ways_out(PUT_BACK, ANEW)}") from None
    try:
        parts = _parts(held, run.before, stack)
    except Damage as other:
        raise CheckpointError(f"{damage}; of the files that it was merged from, {other}. {ways_out(EITHER, ANEW)}") from None
    log.warning("%s; the files that it was merged from are read instead", damage)
    return parts


def _parts(held: Held, runs: Sequence[Run], stack: ExitStack) -> list[Part]:
    return [Part(run, _segments(held, [file.name for file in run.files], stack)) for run in runs]


def _segments(held: Held, names: Sequence[str], stack: ExitStack) -> Sequence[Segment]:
    if is_uri(held.place):  # which cannot be held: what is removed meanwhile is named as gone
        return place_of(held.place).segments(names)
    opened = []
    for name in names:
        opened.append(Pinned(f"{held.place}/{name}"))
        stack.callback(opened[-1].close)
    return opened
