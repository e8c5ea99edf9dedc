"""The streaming DataFrame that a query reads: of one source, or of several side by side."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from springtide.errors import TopologyError
from springtide.model.endpoints import DataFrameSource
from springtide.model.schema import misfits
from springtide.model.source import Source
from springtide.model.topology import Operator, Topology
from springtide.spark.driver.streams import Streams
from springtide.spark.private import jvm


def stream(session: SparkSession, topology: Topology, streams: Streams, ticking: bool = False) -> DataFrame:
    """One DataFrame for all sources. With several, each row fills the struct column of its own source.

    ``ticking``: there is a batch at least once a second, without records if none arrive.
    """
    frames = [_frame(session, source, streams) for source in topology.sources]
    united = frames[0] if len(frames) == 1 else _side_by_side(frames)
    return united.unionByName(_ticks(session, united)) if ticking else united


def _ticks(session: SparkSession, like: DataFrame) -> DataFrame:
    """A stream without rows that has a new offset every second. Its task is the last of its stage, so no record moves."""
    seconds = session.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    empty = [F.lit(None).cast(field.dataType).alias(field.name) for field in like.schema]
    return seconds.filter(F.lit(False)).select(*empty)


def _side_by_side(frames: list[DataFrame]) -> DataFrame:
    united = None
    for position, frame in enumerate(frames):
        columns = [
            (F.struct("*") if other == position else F.lit(None).cast(frames[other].schema)).alias(f"s{other}")
            for other in range(len(frames))
        ]
        rows = frame.select(*columns)
        united = rows if united is None else united.unionByName(rows)
    assert united is not None
    return united


def _frame(session: SparkSession, operator: Operator, streams: Streams) -> DataFrame:
    spec = operator.source
    if isinstance(spec, Source):
        with jvm.drivers_python(session):
            return streams.frame(session, operator)
    assert isinstance(spec, DataFrameSource)
    return _users(session, operator, spec)


def _users(session: SparkSession, operator: Operator, spec: DataFrameSource) -> DataFrame:
    frame = spec.frame(session) if callable(spec.frame) else spec.frame
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise TopologyError(f"source {operator.name!r}: {frame!r} is not a streaming DataFrame; make it with spark.readStream")
    offered = to_arrow_schema(frame.schema, timezone="UTC")
    faults = [fault for fault in misfits(offered, operator.schema) if "may be null" not in fault]
    if faults:
        raise TopologyError(f"source {operator.name!r}: its DataFrame does not fit schema=: {'; '.join(faults)}")
    return frame.select(*columns(operator.schema))


def columns(schema: pa.Schema) -> list[Column]:
    """The columns of a schema. Their names may have dots and spaces."""
    return [F.col("`" + name.replace("`", "``") + "`") for name in schema.names]
