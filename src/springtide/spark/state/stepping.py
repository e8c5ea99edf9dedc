"""One task's part of a batch for a stateful operator: records in, new state and output out.

Looks up the keys of the records and the keys with due timers, calls the operator's function with them, and writes the changes
to one segment, one group of shards that fits in memory at a time.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from springtide.errors import RunError, SpringtideError
from springtide.model.columns import to_batch
from springtide.model.schema import as_python, microseconds
from springtide.model.state import Group, Stateful, Step
from springtide.policy.group.keys import key_hashes
from springtide.policy.group.shards import shards_of
from springtide.spark.shared.hashing import hashing_mark
from springtide.spark.state import lookup
from springtide.spark.state.catalog import File
from springtide.spark.state.lookup import Identities
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.state.segment import GONE, HASH, HASH2, KEY, OWN, STATE, TOUCHED, Segment, Writer
from springtide.spark.state.store import store_of

GROUP_BYTES = 64 << 20
"""Limits the state in memory: a task works on groups of shards of at most about this size."""
GROUP_SHARE = 1 / 16
"""Limits a group to this share of a Python worker's memory, which also holds the Python objects and the output."""


@dataclass(frozen=True)
class StateLayout:
    """How the state of an operator is laid out: its columns, shards, hashes and folder. Constant during a run."""

    operator: str
    function: Stateful
    key: tuple[str, ...]
    input: pa.Schema
    shards: int
    seeds: tuple[int, int]
    folder: str  # or a URI
    ttl_us: int | None = None
    time: str | None = None
    closes: bool = False
    migrate: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def arriving(self) -> pa.Schema:
        """The schema of the records that the operator receives: with the identity of their key."""
        return pa.schema([*self.input, pa.field(HASH, pa.uint64()), pa.field(HASH2, pa.uint64())])

    @cached_property
    def hashing(self) -> str:
        """Identifies how the keys are hashed."""
        return hashing_mark(*self.seeds)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of a segment's rows: the key's identity, the key, and the variables."""
        variables = [pa.field(STATE + field.name, field.type) for field in self.function.variables]
        return pa.schema([*OWN, *self.key_schema, *variables])

    @cached_property
    def key_schema(self) -> pa.Schema:
        return pa.schema([pa.field(KEY + name, self.input.field(name).type) for name in self.key])

    @cached_property
    def timers(self) -> tuple[str | None, str | None]:
        named = self.function.event_timer, self.function.clock_timer
        return tuple(None if name is None else STATE + name for name in named)  # type: ignore[return-value]

    def identities(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        one, two = self.seeds
        return key_hashes(rows, self.key, one), key_hashes(rows, self.key, two)

    def keys(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The keys of records in the schema of segments."""
        return pa.RecordBatch.from_arrays([records.column(name) for name in self.key], schema=self.key_schema)

    def fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Migrate rows of an older declaration by the user's function. Timers, whose columns begin with _, stay unchanged:
        they are internal."""
        if rows.schema.equals(self.schema):
            return rows
        if self.migrate is None:
            raise RunError(f"operator {self.operator!r}: its state was declared otherwise, and no migration is given")
        variables = self.function.variables
        migrated: list[dict[str, Any]] = []
        for row, gone in zip(as_python(_part(rows, STATE)), rows.column(GONE).to_pylist(), strict=True):
            own = {name: row.pop(name) for name in list(row) if name.startswith("_")}
            migrated.append({} if gone else {**own, **self._migrated(row)})
        try:
            new = to_batch([{name: row.get(name) for name in variables.names} for row in migrated], variables)
        except Exception as error:  # any value of a user's function, any error of Arrow
            raise RunError(f"operator {self.operator!r}: what migrate returned does not fit: {_one_line(error)}") from error
        own = rows.select([name for name in self.schema.names if not name.startswith(STATE)])
        return pa.RecordBatch.from_arrays([*own.columns, *new.columns], schema=self.schema)

    def _migrated(self, old: dict[str, Any]) -> Mapping[str, Any]:
        """The variables of a key after the user's migration, which must return exactly the declared variables: an omitted
        one would be lost."""
        assert self.migrate is not None
        wanted = [name for name in self.function.variables.names if not name.startswith("_")]
        given = ", ".join(old) or "none"
        try:
            new = self.migrate(old)
        except Exception as error:
            raise RunError(f"operator {self.operator!r}: migrate failed on variables {given}: {_one_line(error)}") from error
        if not isinstance(new, Mapping) or set(new) != set(wanted):
            came = ", ".join(map(str, new)) or "none" if isinstance(new, Mapping) else f"a {type(new).__name__}"
            raise RunError(
                f"operator {self.operator!r}: migrate is to return a dict of all variables that are declared now,"
                f" {', '.join(wanted) or 'none'}, and no others; of {given} it made {came}"
            )
        return new


@dataclass(frozen=True)
class Version:
    """The state that a batch starts from, and the batch's time: the same when the batch is retried."""

    files: tuple[str, ...]  # newest first
    now: int
    watermark: int | None = None
    expiring: int | None = None  # a running merge drops keys whose TTL has passed at this time

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Version:
        return cls(tuple(document["files"]), document["now"], document["watermark"], document["expiring"])


@dataclass(frozen=True, eq=False)
class GroupOutcome:
    """The result for a group of keys: the output, and the failed records with their errors; the key if a timer failed and
    the key has no records."""

    output: pa.RecordBatch | None
    failed: Sequence[tuple[pa.RecordBatch, BaseException]]


class Stepping:
    """A stateful operator in one task of one batch."""

    def __init__(
        self, layout: StateLayout, version: Version, owned: npt.NDArray[np.bool_], name: str, task: int,
        before_call: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``owned``: by shard, whether this task owns it. ``name``: of the new file. ``before_call``: see ``Group``."""
        self._before_call = before_call
        self._layout, self._version, self._owned, self._name = layout, version, owned, name
        self._writer: Writer | None = None
        self.receipt = StateReceipt(layout.operator, task)
        begin = time.perf_counter()
        self._store = store_of(layout.folder)
        self._segments = self._store.segments(version.files)
        self.receipt.load_s += time.perf_counter() - begin
        self.late: pa.RecordBatch | None = None

    def run(self, records: pa.RecordBatch) -> Iterator[GroupOutcome]:
        """Process all groups and write the changes."""
        self._store.tidy(self._version.files)
        try:
            yield from self._steps(records)
        except BaseException:
            if self._writer is not None:
                self._writer.discard()
            raise
        vars(self.receipt).update(vars(self._store.traffic))

    def _steps(self, records: pa.RecordBatch) -> Iterator[GroupOutcome]:
        records = self._in_time(records)
        one, two = records.column(HASH).to_numpy(), records.column(HASH2).to_numpy()
        records = records.select(self._layout.input.names)
        of_shard = shards_of(one, self._layout.shards)
        self._check_owned(of_shard)
        waking = self._with_timers()
        waking_shards = shards_of(waking.one, self._layout.shards)
        for shards in self._groups(np.union1d(of_shard, waking_shards)):
            mine = np.flatnonzero((of_shard >= shards[0]) & (of_shard <= shards[-1]))
            called = waking.take(np.flatnonzero((waking_shards >= shards[0]) & (waking_shards <= shards[-1])))
            yield self._group(records.take(pa.array(mine)) if len(mine) < len(one) else records, one[mine], two[mine], called)
        begin = time.perf_counter()
        if self._writer is not None:
            written = self._writer.finish()
            self._store.publish(self._name)
            self.receipt.file = File(**written)
        self.receipt.commit_s += time.perf_counter() - begin

    def _in_time(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Split off the late records, which are counted and go to ``late``."""
        column, watermark = self._layout.time, self._version.watermark
        if column is None or watermark is None or not records.num_rows:
            return records
        times = microseconds(records.column(column))
        late = pc.fill_null((pc.less_equal if self._layout.closes else pc.less)(times, watermark), False)
        self.late = records.filter(late).select(self._layout.input.names)
        self.receipt.late = self.late.num_rows
        return records.filter(pc.invert(late)) if self.late.num_rows else records

    def _check_owned(self, shards: npt.NDArray[np.int64]) -> None:
        """Raise RunError for a misrouted record: it would change state that another task owns in this batch."""
        astray = ~self._owned[shards]
        if astray.any():
            shard = int(shards[astray][0])
            raise RunError(
                f"operator {self._layout.operator!r}: task {self.receipt.task} got a record of shard {shard}, which is another"
                " task's in this batch; nothing of the batch was committed"
            )

    def _with_timers(self) -> Identities:
        """The keys of this task that may have a due timer."""
        rows: list[pa.RecordBatch] = []
        limits = self._version.watermark, self._version.now
        for alarm, (column, limit) in enumerate(zip(self._layout.timers, limits, strict=True)):
            if column is not None and limit is not None:
                rows += lookup.due(self._segments, column, limit, bool(alarm), self._owned)
        every = lookup.distinct_in(pa.concat_batches(rows))[0] if rows else lookup.none(self._layout.key_schema)
        return every.take(np.flatnonzero(self._owned[shards_of(every.one, self._layout.shards)]))

    def _groups(self, shards: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """The shards with work, in groups whose state fits in memory."""
        if not len(shards):
            return
        self.receipt.piece_bytes = group_bytes()
        count = shards_at_once(self._segments, self._layout.shards, self.receipt.piece_bytes)
        for begin in range(0, len(shards), count):
            self.receipt.groups += 1
            yield shards[begin : begin + count]

    def _group(
        self, records: pa.RecordBatch, one: npt.NDArray[np.uint64], two: npt.NDArray[np.uint64], called: Identities
    ) -> GroupOutcome:
        keys = self._layout.keys(records)
        if len(called):
            keys = pa.concat_batches(
                [keys, called.keys]
            )  # records first: the function gets the key from the record, not from state
        every, _, of = lookup.distinct(np.concatenate([one, called.one]), np.concatenate([two, called.two]), keys)
        begin = time.perf_counter()
        rows, known = lookup.newest(self._segments, every, self._layout.schema, self._layout.fitted)
        self.receipt.load_s += time.perf_counter() - begin
        present, known = known, self._living(rows, known)
        with_records = np.zeros(len(every), dtype=np.bool_)
        with_records[of[: len(one)]] = True
        due = self._due(rows, known)
        active = with_records | due
        if not active.all():  # only an older row had the timer
            chosen = np.flatnonzero(active)
            renumbered = np.cumsum(active) - 1
            rows, known, due, every = rows.take(pa.array(chosen)), known[chosen], due[chosen], every.take(chosen)
            present, of = present[chosen], renumbered[of]
        if not len(every):
            return GroupOutcome(None, ())
        group = Group(
            every.keys.rename_columns(list(self._layout.key)), known, _remembered(rows, present & ~known), records,
            of[: len(one)], due, self._version.now, self._version.watermark, self._before_call,
        )  # fmt: skip
        begin = time.perf_counter()
        step = self._step(group)
        self._count(step, every, time.perf_counter() - begin, of[: len(one)])
        self._write(step, group, every, present, rows.column(TOUCHED))
        failed = []
        for key, error in step.failed:
            own = records.filter(pa.array(group.of == key))
            failed.append((own if own.num_rows else group.keys.slice(key, 1), error))
        return GroupOutcome(step.output, failed)

    def _step(self, group: Group) -> Step:
        try:
            return self._layout.function.step(group)
        except SpringtideError:
            raise
        except Exception as error:  # not of a single key; Spark's message would not name the operator
            raise RunError(f"operator {self._layout.operator!r} failed on its keys as a whole: {_one_line(error)}") from error

    def _living(self, rows: pa.RecordBatch, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The known keys whose TTL has not passed."""
        if self._layout.ttl_us is None:
            return known
        touched = rows.column(TOUCHED).fill_null(0).to_numpy(zero_copy_only=False)
        living: npt.NDArray[np.bool_] = known & (touched + self._layout.ttl_us >= self._version.now)
        return living

    def _due(self, rows: pa.RecordBatch, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        due = np.zeros(len(known), dtype=np.bool_)
        for column, limit in zip(self._layout.timers, (self._version.watermark, self._version.now), strict=True):
            if column is not None and limit is not None:
                due |= rows.column(column).fill_null(limit + 1).to_numpy(zero_copy_only=False) <= limit
        return due & known

    def _count(self, step: Step, every: Identities, took_s: float, of: npt.NDArray[np.int64]) -> None:
        """Add up each shard's time: as measured, or in proportion to its records."""
        shards = shards_of(every.one, self._layout.shards)
        if step.seconds is not None:
            cost = step.seconds
        else:
            rows = np.bincount(of, minlength=len(every)).astype(np.float64) + 1.0
            cost = rows * (took_s / float(rows.sum()))
        per_shard = np.bincount(shards, cost, minlength=self._layout.shards)
        for shard in np.flatnonzero(per_shard).tolist():
            self.receipt.seconds[shard] = round(self.receipt.seconds.get(shard, 0.0) + float(per_shard[shard]), 7)

    def _write(self, step: Step, group: Group, every: Identities, present: npt.NDArray[np.bool_], touched: pa.Array) -> None:
        """``present``: whether there is a row, expired or not. ``touched``: when it was written."""
        changed = step.changed & (present | ~step.gone)  # no tombstone for a key that was never stored
        if not changed.any():
            return
        begin = time.perf_counter()
        own = [every.one, every.two, step.gone, np.full(len(every), self._version.now)]
        columns = [pa.array(column, field.type) for column, field in zip(own, OWN, strict=True)]
        every_row = pa.RecordBatch.from_arrays([*columns, *group.keys.columns, *step.new.columns], schema=self._layout.schema)
        rows = every_row if changed.all() else every_row.take(pa.array(np.flatnonzero(changed)))
        if self._writer is None:
            self._writer = Writer(
                self._store.writing(self._name), self._layout.schema, self._layout.shards, self._layout.timers
            )
        self._writer.add(rows)
        self.receipt.added += int((changed & ~present & ~step.gone).sum())
        self.receipt.removed += int((changed & present & step.gone).sum())
        if self._layout.ttl_us is not None and self._version.expiring is not None:
            old = touched.fill_null(0).to_numpy(zero_copy_only=False) + self._layout.ttl_us < self._version.expiring
            self.receipt.revived += int((changed & present & old).sum())
        self.receipt.shards += np.unique(shards_of(every.one[changed], self._layout.shards)).tolist()
        self.receipt.commit_s += time.perf_counter() - begin


def shards_at_once(segments: Sequence[Segment], shards: int, most_bytes: int) -> int:
    """How many shards of average size fit in ``most_bytes``; at least one."""
    size = sum(segment.size for segment in segments) / shards
    return max(1, int(most_bytes // max(1.0, size)))


def group_bytes() -> int:
    """The size limit of a group. Spark limits a worker's memory by ``spark.executor.pyspark.memory``."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return GROUP_BYTES if limit == resource.RLIM_INFINITY else max(1 << 20, min(GROUP_BYTES, int(limit * GROUP_SHARE)))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _remembered(rows: pa.RecordBatch, expired: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The variables of all keys, with nulls for expired keys, whose rows are still stored."""
    old = _part(rows, STATE)
    return old.take(pa.array(np.arange(len(expired)), mask=expired)) if expired.any() else old


def _part(rows: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    """The columns whose names begin with ``prefix``, without that prefix."""
    named = [name for name in rows.schema.names if name.startswith(prefix)]
    return rows.select(named).rename_columns([name.removeprefix(prefix) for name in named])
