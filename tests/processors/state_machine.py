"""A driver and its tasks in miniature, without Spark: what is committed is the catalog, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from springtide.model.topology import Topology
from springtide.policy.group.shards import shards_of
from springtide.policy.shard import spread
from springtide.spark.state import segment
from springtide.spark.state.catalog import Catalog, File
from springtide.spark.state.compact import merge
from springtide.spark.state.declared import layout_of
from springtide.spark.state.stepping import GroupOutcome, StateLayout, Stepping, Version
from springtide.spark.state.store import store_of

SECOND = 1_000_000


class Machine:
    """One stateful operator."""

    def __init__(self, layout: StateLayout) -> None:
        self.layout, self.catalog, self.batch, self.attempts, self.now = layout, Catalog(hashing=layout.hashing), 0, 0, SECOND
        store_of(layout.folder).prepare()
        self.expiring: int | None = None
        self.before_call: Callable[[], None] = lambda: None
        self.late: list[dict[str, Any]] = []
        self.failed: list[tuple[dict[str, Any], BaseException]] = []

    @classmethod
    def of(cls, topology: Topology, folder: Path) -> Machine:
        """The only stateful operator of a topology."""
        (operator,) = topology.stateful
        return cls(layout_of(topology, operator, str(folder), "secret"))

    def arriving(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pylist(rows, schema=self.layout.input)
        one, two = self.layout.identities(batch)
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(one), pa.array(two)], schema=self.layout.arriving)

    def attempt(
        self, rows: list[dict[str, Any]], owner: Any = None, width: int = 1, watermark: int | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Run all tasks of the batch; nothing is committed. Receipts, and what came out."""
        owner = spread(self.layout.shards, width) if owner is None else owner
        batch = self.arriving(rows)
        tasks = owner[shards_of(batch.column(segment.HASH).to_numpy(), self.layout.shards)]
        receipts: list[Any] = []
        output: list[Any] = []
        self.late, self.failed = [], []
        for task in range(width):
            self.attempts += 1
            name = f"{self.batch:08d}-000001-{task}-{self.attempts}.state"
            version = Version(self.files, self.now, watermark, self.expiring)
            stepping = Stepping(self.layout, version, owner == task, name, task, self.before_call)
            for outcome in stepping.run(batch.take(pa.array(np.flatnonzero(tasks == task)))):
                output += self._taken(outcome)
            self.late += [] if stepping.late is None else stepping.late.select(self.layout.input.names).to_pylist()
            receipts.append(stepping.receipt)
        return receipts, output

    def _taken(self, outcome: GroupOutcome) -> list[Any]:
        self.failed += [(row, error) for rows, error in outcome.failed for row in rows.to_pylist()]
        return [] if outcome.output is None else outcome.output.to_pylist()

    def run(self, rows: list[dict[str, Any]], watermark: int | None = None, width: int = 2) -> list[Any]:
        """A batch that is committed; what came out of it."""
        receipts, output = self.attempt(rows, None, width, watermark)
        self.commit(receipts)
        return output

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.name for run in self.catalog.runs for file in run.files)

    def commit(self, receipts: list[Any]) -> None:
        self.catalog = Catalog.from_json(self.catalog.after(self.batch, receipts).to_json())
        self.batch += 1
        self.now += SECOND

    def merge(self, count: int) -> None:
        runs = self.catalog.runs[:count]
        if not runs:
            return
        self.attempts += 1
        target = f"m{self.attempts}.state"
        names = [file.name for run in runs for file in run.files]
        merged = merge(self.layout, names, target, runs[-1] == self.catalog.runs[-1], self.now)
        files = () if merged["file"] is None else (File(**merged["file"]),)
        self.catalog = self.catalog.merged(runs, files, merged["expired"])

    def rows(self) -> list[dict[str, Any]]:
        """All that is remembered, by reading every file as a merge does."""
        before = self.catalog
        self.merge(len(before.runs))
        whole = self.catalog
        self.catalog = before
        found = []
        for file in (file for run in whole.runs for file in run.files):
            part = segment.Segment(f"{self.layout.folder}/{file.name}")
            found += [row for number in range(len(part.chunks)) for row in part.read(number).to_pylist()]
        return found
