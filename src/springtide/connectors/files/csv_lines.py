"""CSV: by Arrow, and where a line does not parse, by halves of a block."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from springtide.connectors.files.lines import Block, lines_of
from springtide.connectors.files.options import CsvOptions
from springtide.connectors.files.parsing import Parsed, Parser, bare, column_of, complete, nothing
from springtide.errors import RunError


class CsvParser(Parser):
    """CSV, a record a line. With a header columns are found by their names, otherwise by their places."""

    def __init__(self, schema: pa.Schema, options: CsvOptions, names: Sequence[str]) -> None:
        super().__init__(schema)
        self._reading = {"column_names": list(names), "use_threads": False}
        doubled = options.escape in (None, options.quote)
        self._parsing = pacsv.ParseOptions(
            delimiter=options.delimiter, quote_char=options.quote or False, double_quote=doubled,
            escape_char=False if doubled else options.escape, newlines_in_values=False,
        )  # fmt: skip
        wanted = [field for field in schema if field.name in names]
        self._converting = pacsv.ConvertOptions(
            column_types={field.name: _native_csv(field.type) for field in wanted}, null_values=list(options.nulls),
            strings_can_be_null=True, quoted_strings_can_be_null=False, include_columns=[field.name for field in wanted],
            true_values=["true", "True", "TRUE"], false_values=["false", "False", "FALSE"],
        )  # fmt: skip

    def parse(self, block: Block) -> Parsed:
        rows = block.content.count(b"\n")
        try:
            return Parsed(self._by_arrow(block.content, rows), np.arange(rows))
        except (pa.ArrowException, ValueError):
            lines = lines_of(block)
            return self._halves(lines)

    def _by_arrow(self, content: bytes, rows: int) -> pa.RecordBatch:
        reading = pacsv.ReadOptions(**self._reading, block_size=max(1024, len(content) + 1))
        table = pacsv.read_csv(pa.BufferReader(content), reading, self._parsing, self._converting).combine_chunks()
        if table.num_rows != rows:
            raise ValueError("a line has no record, or several")
        columns = {name: _timed(column_of(table, name), self.schema.field(name).type) for name in table.column_names}
        return complete(columns, self.schema, rows)

    def _halves(self, lines: list[tuple[int, bytes]]) -> Parsed:
        """Parse halves, down to the lines that do not parse: k of n are found with about k·log₂(n) attempts."""
        if not lines:
            return Parsed(nothing(self.schema), np.array([], dtype=np.int64))
        try:
            batch = self._by_arrow(b"".join(line + b"\n" for _, line in lines), len(lines))
            return Parsed(batch, np.array([place for place, _ in lines], dtype=np.int64))
        except (pa.ArrowException, ValueError) as error:
            if len(lines) == 1:
                return Parsed(nothing(self.schema), np.array([], dtype=np.int64), [(*lines[0], bare(error))])
        first, second = self._halves(lines[: len(lines) // 2]), self._halves(lines[len(lines) // 2 :])
        both = pa.Table.from_batches([first.batch, second.batch]).combine_chunks().to_batches()
        lines_ = np.concatenate([first.lines, second.lines])
        return Parsed(both[0] if both else nothing(self.schema), lines_, [*first.rejected, *second.rejected])


def header_of(line: bytes, options: CsvOptions) -> list[str]:
    """The names in the first line of a file."""
    found = list(
        csv.reader(
            io.StringIO(line.decode()),
            delimiter=options.delimiter,
            quotechar=options.quote or None,
            quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        )
    )
    return found[0] if found else []


def check_header(names: Sequence[str], schema: pa.Schema, file: str) -> None:
    missing = [field.name for field in schema if field.name not in names]
    if missing:
        raise RunError(
            f"{file}: its header has no column {missing[0]!r}; it has {', '.join(map(repr, names))}. Correct the file or"
            ' schema=, or give options={"header": "false"} if the first line is a record'
        )


def _native_csv(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads a column. It takes times without a zone only for columns without one, and vice versa."""
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _timed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(kind):
        return column
    try:
        return column.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    except pa.ArrowInvalid:
        moments = column.cast(pa.timestamp(kind.unit))
        return moments if kind.tz is None else pc.assume_timezone(moments, "UTC").cast(kind)
