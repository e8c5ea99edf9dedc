"""Registers the data source of a generated stream, whose tasks make the records."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from springtide.model.endpoints import GenerateSource
from springtide.model.rate import Rate
from springtide.spark.driver.modules import ship_loaded_modules
from springtide.spark.task.generate import NAME, GenerateDataSource, replace_file


def stream(
    spark: SparkSession, spec: GenerateSource, schema: pa.Schema, start: str | os.PathLike[str], control: str | os.PathLike[str]
) -> DataFrame:
    """The generated stream: the columns of ``schema``, then ``CREATED``, the creation time in µs since 1970.

    ``start`` is the document with the schedule's start: see ``Start``. ``control`` is the file that ``SourceControl.write``
    writes while the query runs; the rate is written to a file beside it.
    """
    ship_loaded_modules()
    source = data_source(spec, schema)
    spark.dataSource.register(source)
    file = Path(control).absolute()
    options = {"start": str(Path(start).absolute()), "control": str(file), "rate": str(_save(spec.rate, file))}
    return spark.readStream.format(source.name()).options(**options).load()


def data_source(spec: GenerateSource, schema: pa.Schema) -> type[GenerateDataSource]:
    """A data source for one generated stream, under a unique name.

    Spark pickles the class by value when it is registered, and the user's function with it. The rate is not part of it: a
    function sampled for a day has 15 MB of steps, which every task would receive.
    """
    unique = f"{NAME}-{uuid.uuid4().hex[:12]}"

    class Bound(GenerateDataSource):
        make = (spec.make,)
        seed = spec.seed
        limit = spec.limit
        columns = schema

        @classmethod
        def name(cls) -> str:
            return unique

    return Bound


def _save(rate: Rate, control: Path) -> Path:
    """Write the rate beside the control file. The file's name is a digest of the content, as streams may share a folder."""
    steps = np.array([[*rate.starts, rate.end], [*rate.values, 0.0]])
    digest = hashlib.blake2b(steps.tobytes(), digest_size=8).hexdigest()
    file = control.with_name(f"{control.stem}-rate-{digest}.f64")
    replace_file(file, steps.tobytes())
    return file
