"""Sources, from which the records of a stream come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from springtide.api.annotations import returned
from springtide.api.kafka import kafka as kafka
from springtide.api.stream import Stream
from springtide.api.stream import source as _stream
from springtide.connectors.files import options as files_options
from springtide.connectors.files.declared import FilesSource
from springtide.connectors.generate import GenerateSource
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model import location
from springtide.model import schema as schemas
from springtide.model.endpoints import DataFrameSource
from springtide.model.rate import as_rate
from springtide.model.source import Source

FORMATS = ("csv", "json", "parquet")
LOSSES = ("stop", "go on")


def generate(
    make: Callable[[Any], Any], *, rate: object, seed: int = 0, limit: int | None = None, max_records: int | None = None,
    schema: object = None, name: str = "source",
) -> Stream:  # fmt: skip
    """Seeded records at a rate: records/s, ``springtide.trace("day.csv")``, or a function of the seconds since the start.

    ``make`` gets a ``springtide.Draw`` with the record's ``index``, its ``created`` time and a ``random`` of its own, so
    that record i is the same in every run and after every restart. ``limit`` ends the stream after this number of records.
    ``max_records`` bounds a batch, whatever the plan allows.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise OptionError(f"limit={limit!r} is not allowed; give a whole number of records, 0 or more, or None for no limit")
    if max_records is not None and (not isinstance(max_records, int) or max_records < 1):
        raise OptionError(f"max_records={max_records!r} is not allowed; give a whole number of 1 or more, or None for no limit")
    spec = GenerateSource(make, as_rate(rate), seed, limit, max_records)
    return _stream(spec, name, *returned(make, schema))


def custom(declared: Source, *, schema: object, name: str = "source") -> Stream:
    """A source of your own, which implements ``springtide.model.source``. ``schema``: a frozen dataclass, an Arrow schema or a
    dict of types. CONTRIBUTING.md has a recipe."""
    if not isinstance(declared, Source):
        raise TopologyError(f"custom: {declared!r:.200} is no springtide.model.source.Source; derive its class from that")
    return _stream(declared, name, *schemas.as_schema(schema, "custom"))


def files(
    path: str | os.PathLike[str], *, format: str, schema: object, created: str | None = None,
    options: Mapping[str, str] | None = None, max_files: int | None = None, on_data_loss: str = "stop", name: str = "source",
) -> Stream:  # fmt: skip
    """New files of a folder and the folders below, at a path or a URI: CSV, JSON lines or Parquet, also compressed.

    ``options`` are Spark's: ``header``, ``sep``, ``quote``, ``escape``, ``nullValue``, ``encoding``,
    ``pathGlobFilter``. ``created`` names the column with a record's creation time; without it that is the time at which
    its file was modified. ``max_files`` bounds a batch, as does the plan's read limit. A file that changed or vanished before
    it was read ends the run, or counts as lost with ``on_data_loss="go on"``.
    """
    if format not in FORMATS:
        raise OptionError(f"files: format={format!r}; {nearest(format, FORMATS)}")
    place = os.fspath(path)
    if location.is_uri(place):
        place = location.checked(place, "files: path")
    elif not os.path.isdir(place):
        raise OptionError(f"files: there is no folder {place!r}; make it before the run, it may be empty")
    else:
        place = os.path.abspath(place)  # tasks may run elsewhere than the driver
    if max_files is not None and max_files < 1:
        raise OptionError(f"files: max_files={max_files} is not allowed; it is at least 1")
    if on_data_loss not in LOSSES:
        raise OptionError(f"files: on_data_loss={on_data_loss!r}; {nearest(str(on_data_loss), LOSSES)}")
    columns, record = schemas.as_schema(schema, "files")
    nested = [field.name for field in columns if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)]
    if format == "csv" and nested:
        raise OptionError(f"files: CSV has no column of type {columns.field(nested[0]).type}, as {nested[0]!r} is; use str")
    spec = FilesSource(place, format, files_options.parsed(format, options or {}), created, max_files, on_data_loss)
    return _timed(_stream(spec, name, columns, record), created)


def dataframe(frame: Any, *, schema: object, created: str | None = None, ordered: bool = False, name: str = "source") -> Stream:
    """Any streaming DataFrame, or a function that makes it from a SparkSession (needed for ``springtide run``).

    ``schema`` is that of the DataFrame. It lets Springtide check the topology before Spark starts; once Spark has started, it
    is compared with the DataFrame's. ``ordered`` promises that a partition that is read again has the same rows in the same
    order, as with Kafka, files and rate sources; without it Springtide orders the records by their content before it routes
    them.
    """
    spec = DataFrameSource(frame, created, ordered)
    return _timed(_stream(spec, name, *schemas.as_schema(schema, "dataframe")), created)


def _timed(stream: Stream, created: str | None) -> Stream:
    if created is not None:
        position = stream.schema.get_field_index(created)
        if position < 0 or not pa.types.is_timestamp(stream.schema.field(position).type):
            raise TopologyError(f"created={created!r} is not a timestamp column of {', '.join(stream.schema.names)}")
    return stream
