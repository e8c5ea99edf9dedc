"""Passes staged output to the sinks: at-least-once sinks get it before the commit, as a replay may repeat it; files are
published after the commit. Every file is checked against its receipt first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from springtide.errors import CheckpointError
from springtide.model.endpoints import ConsoleSink, FilesSink, ForeachSink, MemorySink, TableSink
from springtide.model.topology import Topology
from springtide.spark.driver import staged
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.published import Publications
from springtide.spark.driver.rolled_sinks import RolledSinks
from springtide.spark.driver.staged import Output, StagedFileError
from springtide.spark.driver.starting import hands_on
from springtide.spark.driver.undo import take_back
from springtide.spark.shared.program import Staging
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out

Outputs = Sequence[Output]

AS_BEFORE = "start once with the sinks' paths as they were"


class Sinks:
    """The sinks of one topology, on the driver. ``places``: the staging folder of each, "" for dead letters."""

    def __init__(
        self,
        topology: Topology,
        dead_letters: FilesSink,
        places: Mapping[str, Staging],
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """``over``: whether the run has to end, so that it waits no longer for a sink that cannot be reached."""
        self._topology = topology
        self._dead_letters = dead_letters
        self._places = places
        files = {operator.name: operator.sink for operator in topology.sinks if isinstance(operator.sink, FilesSink)}
        self.rolled = RolledSinks(files, places, self.located)
        self.publications = Publications(topology, over)
        self.memory: dict[str, dict[int, list[pa.Table]]] = {}  # by name and batch: a repeated batch replaces itself

    def prepare(self, session: SparkSession, checkpoint: Checkpoint) -> None:
        """Make the folders, publish committed files that are still hidden, and remove other files of earlier epochs."""
        self._refuse_tables_of_others(session, checkpoint)
        for operator in self._topology.sinks:
            if isinstance(operator.sink, FilesSink):
                Path(operator.sink.path).mkdir(parents=True, exist_ok=True)
        Path(self._dead_letters.path).mkdir(parents=True, exist_ok=True)
        self.publications.prepare(checkpoint)
        self._settle(checkpoint)
        waiting = self.rolled.settle(checkpoint)
        for place in self._places.values():
            staged.sweep(place, checkpoint.epoch, waiting)

    def _settle(self, checkpoint: Checkpoint) -> None:
        """Publish hidden files of the last committed batch, or have the batch computed again. Earlier batches were published
        before their successor began. Files of a batch whose commit Spark has logged may have been moved by readers."""
        manifest = checkpoint.last_manifest()
        if manifest is None:
            return
        batch = int(manifest["batch"])
        finished, receipts = checkpoint.is_finished(batch), manifest.get("receipts")
        if finished and staged.have_paths(receipts):  # not needed any more, and the folders may have been moved since
            return
        try:
            outputs = self.located(batch, receipts)
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.manifests.file(batch)}: {error}. It was changed from outside, or a sink's path was; nothing was"
                f" moved. {ways_out(PUT_BACK, AS_BEFORE, ANEW)}"
            ) from None
        if finished:
            return
        try:
            self.publish(batch, outputs)
        except StagedFileError as damage:
            take_back(checkpoint, batch, str(damage), [output.target for output in outputs if output.target is not None])

    def located(self, batch: int, receipts: Any) -> list[Output]:
        """The staged files of a batch, from its receipts as JSON. ValueError for a receipt that no task can have sent."""
        if not isinstance(receipts, list) or not all(isinstance(receipt, dict) for receipt in receipts):
            raise ValueError("a receipt is missing, or is no object")
        targets = {operator.name: operator.sink for operator in self._topology.sinks} | {"": self._dead_letters}
        outputs = []
        for receipt in receipts:
            name = receipt.get("sink")
            if not isinstance(name, str) or name not in self._places:
                raise ValueError(f"a receipt is of sink {name!r}, and the sinks are {', '.join(map(repr, self._places))}")
            sink = targets[name]
            try:
                target = sink.path if isinstance(sink, FilesSink) else None
                outputs.append(staged.located(receipt, self._places[name], target, batch))
            except ValueError as error:
                raise ValueError(f"a receipt of sink {name!r} cannot be right: {error}") from None
        return outputs

    def _refuse_tables_of_others(self, session: SparkSession, checkpoint: Checkpoint) -> None:
        """Every checkpoint numbers its batches from 0, so that two checkpoints would overwrite each other's batches."""
        tables = [o.sink for o in self._topology.sinks if isinstance(o.sink, TableSink)]
        fenced = {sink.name: sink.batch_column for sink in tables if sink.batch_column is not None}
        begun = checkpoint.begun() >= 0
        remembered = checkpoint.recall("tables") or {"fenced": list(fenced)}  # older checkpoints have no such document
        own = remembered["fenced"] if begun else []
        for name, column in fenced.items():
            if not session.catalog.tableExists(name):
                continue
            partitions = [found.name for found in session.catalog.listColumns(name) if found.isPartition]
            if column.lower() not in map(str.lower, partitions):  # a batch would overwrite the whole table
                raise CheckpointError(
                    f"table {name!r} is partitioned by {', '.join(partitions) or 'nothing'}, not by batch_column={column!r};"
                    " drop it, if it is empty, and it is made anew, or name another table"
                )
            if name not in own and not session.table(name).isEmpty():
                raise CheckpointError(
                    f"table {name!r} holds batches of another checkpoint, which this one would overwrite; resume from that"
                    " checkpoint, name the table as before, or name another one"
                )
        if tables:
            checkpoint.remember("tables", {"fenced": sorted({*own, *fenced})})

    @property
    def hand_on(self) -> bool:
        return hands_on(self._topology)

    def deliver(self, session: SparkSession, batch: int, outputs: Outputs) -> None:
        """Pass a batch to the at-least-once sinks. A crash before the commit that follows repeats the delivery."""
        for batches in self.memory.values():
            batches.pop(batch, None)
        for operator in self._topology.sinks:
            own = [output for output in outputs if output.receipt.sink == operator.name]
            schema = self._topology.input_schema(operator)
            if isinstance(operator.sink, MemorySink):
                tables = [pa.parquet.read_table(output.staged) for output in own]
                self.memory.setdefault(operator.sink.name, {}).setdefault(batch, []).extend(tables)
            elif isinstance(operator.sink, ForeachSink):
                operator.sink.function(_frame(session, own, schema), batch)
            elif isinstance(operator.sink, TableSink):
                _write_table(_frame(session, own, schema), operator.sink, batch)
            elif isinstance(operator.sink, ConsoleSink):
                _show(own, operator.sink, operator.name, batch)

    def received(self, name: str) -> pa.Table | None:
        """The records of the memory sinks of a name in this run, ordered by batch; None if there are none."""
        parts = [table for _, tables in sorted(self.memory[name].items()) for table in tables]
        return pa.concat_tables(parts) if parts else None

    def publish(self, batch: int, outputs: Outputs) -> None:
        """Make a committed batch visible, and remove files that only the driver had to read. Idempotent.

        All files are checked before the first file is moved.
        """
        self.publications.check(batch, outputs)
        staged.publish_all(outputs)
        for output in outputs:
            if output.target is None and output.receipt.sink not in self.publications:
                output.staged.unlink(missing_ok=True)
        self.publications.publish(batch, outputs)


def _frame(session: SparkSession, outputs: Outputs, schema: pa.Schema) -> DataFrame:
    structure = from_arrow_schema(schema)
    if not outputs:
        return session.createDataFrame([], structure)
    return session.read.schema(structure).parquet(*(output.staged.as_uri() for output in outputs))


def _write_table(frame: DataFrame, sink: TableSink, batch: int) -> None:
    if sink.batch_column is None:
        frame.write.format(sink.format).mode("append").saveAsTable(sink.name)
        return
    marked = frame.withColumn(sink.batch_column, F.lit(batch).cast("bigint"))
    if not frame.sparkSession.catalog.tableExists(sink.name):
        marked.limit(0).write.format(sink.format).partitionBy(sink.batch_column).saveAsTable(sink.name)
    # a setting of the session: insertInto ignores the option, and would overwrite the partitions of other batches
    frame.sparkSession.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    in_order = frame.sparkSession.table(sink.name).columns  # insertInto matches columns by position
    marked.select(*in_order).write.mode("overwrite").insertInto(sink.name)


def _show(outputs: Outputs, sink: ConsoleSink, name: str, batch: int) -> None:
    rows: list[dict[str, Any]] = []
    for output in outputs:
        if len(rows) < sink.rows:
            rows += pa.parquet.read_table(output.staged).slice(0, sink.rows - len(rows)).to_pylist()
    total = sum(output.receipt.rows for output in outputs)
    lines = [f"[{name}] batch {batch}: {total} records", *(f"  {row}" for row in rows)]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201  this sink prints
