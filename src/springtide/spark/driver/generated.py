"""Generated streams on the driver: registers the data source of a stream, whose tasks make the records."""

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

    ``start`` is the document that says when the schedule started: see ``Start``. ``control`` is the file that
    ``SourceControl.write`` writes while the query runs; the rate is put into a file beside it.
    """
    ship_loaded_modules()
    source = data_source(spec, schema)
    spark.dataSource.register(source)
    told = Path(control).absolute()
    options = {"start": str(Path(start).absolute()), "control": str(told), "rate": str(_save(spec.rate, told))}
    return spark.readStream.format(source.name()).options(**options).load()


def data_source(spec: GenerateSource, schema: pa.Schema) -> type[GenerateDataSource]:
    """A data source for one generated stream, under a name that no other has.

    Spark pickles the class by value when it is registered, and the user's function with it. The rate stays
    out: a function sampled for a day has 15 MB of steps, and every task would be sent them.
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
    """Put the rate beside the control file, under a name made of its content: streams may share a folder."""
    steps = np.array([[*rate.starts, rate.end], [*rate.values, 0.0]])
    digest = hashlib.blake2b(steps.tobytes(), digest_size=8).hexdigest()
    file = control.with_name(f"{control.stem}-rate-{digest}.f64")
    replace_file(file, steps.tobytes())
    return file
