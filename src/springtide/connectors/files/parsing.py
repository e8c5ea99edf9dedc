"""Parses blocks of lines into batches. A line that does not parse is rejected; the others go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.connectors.files.lines import Block
from springtide.model.columns import check_nulls


class Parsed(NamedTuple):
    """Records, the place of each line in its block, and the lines that do not parse, each with its place and its error."""

    batch: pa.RecordBatch
    lines: npt.NDArray[np.int64]
    rejected: Sequence[tuple[int, bytes, Exception]] = ()


class Parser(ABC):
    """A format of lines."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def parse(self, block: Block) -> Parsed: ...

    def _one_by_one(
        self, lines: Sequence[tuple[int, Any]], raw: Mapping[int, bytes], make: Callable[[Any], pa.RecordBatch]
    ) -> Parsed:
        """The batches of single records, as far as ``make`` takes them."""
        good, places, rejected = [], [], []
        for place, line in lines:
            try:
                made = make(line)
            except Exception as error:  # noqa: BLE001  a record of any content may be here
                rejected.append((place, raw[place], bare(error)))
            else:
                good.append(made)
                places.append(place)
        table = pa.Table.from_batches(good, schema=self.schema).combine_chunks()
        batch = table.to_batches()[0] if table.num_rows else nothing(self.schema)
        return Parsed(batch, np.array(places, dtype=np.int64), rejected)


def nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def bare(error: Exception) -> Exception:
    """The error without our own frames, which say nothing about the line."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def complete(columns: Mapping[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch of the schema from columns of its types, with nulls for missing ones; ValueError for a null that may not be."""
    arrays = [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema]
    for array, field in zip(arrays, schema, strict=True):
        check_nulls(field.name, array, field)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column_of(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
