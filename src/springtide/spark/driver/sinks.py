"""How staged output becomes a sink's: delivered before the manifest where a replay may repeat it, published after it
where nothing but the manifest decides. Every file is checked against its receipt first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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
from springtide.spark.driver.staged import Output, StagedFileError
from springtide.spark.driver.starting import hands_on
from springtide.spark.driver.undo import take_back
from springtide.spark.shared.durable import sync_folder
from springtide.spark.shared.program import Staging
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out

Outputs = Sequence[Output]

AS_BEFORE = "start once with the sinks' paths as they were"


class Sinks:
    """The sinks of one topology, on the driver. ``places``: where each stages its files, "" for dead letters."""

    def __init__(self, topology: Topology, dead_letters: FilesSink, places: Mapping[str, Staging]) -> None:
        self._topology = topology
        self._dead_letters = dead_letters
        self._places = places
        self.memory: dict[str, dict[int, list[pa.Table]]] = {}  # by name and batch: one that is run again replaces itself

    def prepare(self, session: SparkSession, checkpoint: Checkpoint) -> None:
        """Make the folders, publish what was committed and is still hidden, and sweep away what else earlier epochs staged."""
        self._refuse_tables_of_others(session, checkpoint)
        for operator in self._topology.sinks:
            if isinstance(operator.sink, FilesSink):
                Path(operator.sink.path).mkdir(parents=True, exist_ok=True)
        Path(self._dead_letters.path).mkdir(parents=True, exist_ok=True)
        self._settle(checkpoint)
        for place in self._places.values():
            staged.sweep(place, checkpoint.epoch)

    def _settle(self, checkpoint: Checkpoint) -> None:
        """Publish what the last batch committed and left hidden, or have the batch computed again. Every earlier batch was
        published before the next one began; and what Spark has logged as committed is the readers', who may have moved it."""
        manifest = checkpoint.last_manifest()
        if manifest is None:
            return
        batch = int(manifest["batch"])
        finished, receipts = checkpoint.is_finished(batch), manifest.get("receipts")
        if finished and staged.have_paths(receipts):  # of no use any more, and the folders may have been moved since
            return
        try:
            outputs = self.located(batch, receipts)
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.manifest_file(batch)}: {error}. It was changed from outside, or a sink's path was; nothing was"
                f" moved. {ways_out(PUT_BACK, AS_BEFORE, ANEW)}"
            ) from None
        if finished:
            return
        try:
            self.publish(outputs)
        except StagedFileError as damage:
            take_back(checkpoint, batch, str(damage), [one.target for one in outputs if one.target is not None])

    def located(self, batch: int, receipts: Any) -> list[Output]:
        """The staged files of a batch, from its receipts as JSON. ValueError for what no task of this topology can send."""
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
        """Batches are numbered from 0 by every checkpoint: one would overwrite what another one wrote."""
        tables = [o.sink for o in self._topology.sinks if isinstance(o.sink, TableSink)]
        fenced = {sink.name: sink.batch_column for sink in tables if sink.batch_column is not None}
        begun = checkpoint.begun() >= 0
        remembered = checkpoint.recall("tables") or {"fenced": list(fenced)}  # older ones did not remember them
        own = remembered["fenced"] if begun else []
        for name, column in fenced.items():
            if not session.catalog.tableExists(name):
                continue
            parted = [one.name for one in session.catalog.listColumns(name) if one.isPartition]
            if column.lower() not in [one.lower() for one in parted]:  # a batch would overwrite all of it
                raise CheckpointError(
                    f"table {name!r} is partitioned by {', '.join(parted) or 'nothing'}, not by batch_column={column!r}; drop"
                    " it, if it is empty, and it is made anew, or name another table"
                )
            if name not in own and not session.table(name).isEmpty():
                raise CheckpointError(
                    f"table {name!r} holds batches of another checkpoint, which this one would overwrite; go on from that"
                    " checkpoint, name the table as before, or name another one"
                )
        if tables:
            checkpoint.remember("tables", {"fenced": sorted({*own, *fenced})})

    @property
    def hand_on(self) -> bool:
        """Whether a sink gives batches to somebody who keeps them by their number, before they are committed."""
        return hands_on(self._topology)

    def deliver(self, session: SparkSession, batch: int, outputs: Outputs) -> None:
        """Hand a batch to the sinks that take it as a whole. Runs before the manifest: a crash in between repeats it."""
        for batches in self.memory.values():
            batches.pop(batch, None)
        for operator in self._topology.sinks:
            own = [one for one in outputs if one.receipt.sink == operator.name]
            schema = self._topology.input_schema(operator)
            if isinstance(operator.sink, MemorySink):
                tables = [pa.parquet.read_table(one.staged) for one in own]
                self.memory.setdefault(operator.sink.name, {}).setdefault(batch, []).extend(tables)
            elif isinstance(operator.sink, ForeachSink):
                operator.sink.function(_frame(session, own, schema), batch)
            elif isinstance(operator.sink, TableSink):
                _write_table(_frame(session, own, schema), operator.sink, batch)
            elif isinstance(operator.sink, ConsoleSink):
                _show(own, operator.sink, operator.name, batch)

    def received(self, name: str) -> pa.Table | None:
        """All that memory sinks of a name got in this run, in the order of the batches; None for nothing."""
        parts = [table for _, tables in sorted(self.memory[name].items()) for table in tables]
        return pa.concat_tables(parts) if parts else None

    def publish(self, outputs: Outputs) -> None:
        """Make a committed batch visible, and drop what only the driver had to read. Doing it again changes nothing.

        All files are checked before the first one is moved.
        """
        hidden = [one for one in outputs if one.target is not None and staged.is_hidden(one)]
        for one in hidden:
            staged.publish(one)
        for one in outputs:
            if one.target is None:
                one.staged.unlink(missing_ok=True)
        for folder in {one.target.parent for one in outputs if one.target is not None}:
            sync_folder(folder)


def _frame(session: SparkSession, outputs: Outputs, schema: pa.Schema) -> DataFrame:
    structure = from_arrow_schema(schema)
    if not outputs:
        return session.createDataFrame([], structure)
    paths = [one.staged.as_uri() for one in outputs]
    return session.read.schema(structure).parquet(*paths)


def _write_table(frame: DataFrame, sink: TableSink, batch: int) -> None:
    if sink.batch_column is None:
        frame.write.format(sink.format).mode("append").saveAsTable(sink.name)
        return
    marked = frame.withColumn(sink.batch_column, F.lit(batch).cast("bigint"))
    if not frame.sparkSession.catalog.tableExists(sink.name):
        marked.limit(0).write.format(sink.format).partitionBy(sink.batch_column).saveAsTable(sink.name)
    # as a setting of the session: insertInto drops it as an option, and would overwrite the other batches' partitions too
    frame.sparkSession.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    in_order = frame.sparkSession.table(sink.name).columns  # insertInto goes by position
    marked.select(*in_order).write.mode("overwrite").insertInto(sink.name)


def _show(outputs: Outputs, sink: ConsoleSink, name: str, batch: int) -> None:
    rows: list[dict[str, Any]] = []
    for one in outputs:
        if len(rows) < sink.rows:
            rows += pa.parquet.read_table(one.staged).slice(0, sink.rows - len(rows)).to_pylist()
    total = sum(one.receipt.rows for one in outputs)
    lines = [f"[{name}] batch {batch}: {total} records", *(f"  {row}" for row in rows)]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201  this sink is for printing
