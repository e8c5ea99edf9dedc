"""Parses blocks of lines into batches. A line that does not parse is rejected; the others go on."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from springtide.connectors.files.lines import Block, lines_of
from springtide.connectors.files.options import CsvOptions
from springtide.errors import RunError
from springtide.model.columns import check_nulls, to_batch


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
        batch = table.to_batches()[0] if table.num_rows else _none(self.schema)
        return Parsed(batch, np.array(places, dtype=np.int64), rejected)


def _none(schema: pa.Schema) -> pa.RecordBatch:
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


# JSON


class JsonParser(Parser):
    """JSON lines. Arrow parses plain fields. It crashes on a line ``null`` (Arrow's issue 47409), and misplaces nulls in lists
    (issue 51305), so that lines which do not begin with a brace and nested fields are left to Python, as are broken lines."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        kinds = {field.name: _native_json(field.type) for field in schema}
        self._native = None
        if all(kind is not None for kind in kinds.values()):
            self._native = pajson.ParseOptions(
                explicit_schema=pa.schema(list(kinds.items())), unexpected_field_behavior="ignore", newlines_in_values=False
            )
        self._converters = {field.name: _converter(field.type) for field in schema}
        self._exact = any(pa.types.is_decimal(field.type) or pa.types.is_nested(field.type) for field in schema)

    def parse(self, block: Block) -> Parsed:
        rows = block.content.count(b"\n")
        objects = block.content.startswith(b"{") and block.content.count(b"\n{") == rows - 1
        if self._native is not None and objects:
            try:
                return Parsed(self._by_arrow(block.content, rows), np.arange(rows))
            except (pa.ArrowException, ValueError):
                pass
        return self._by_python(block)

    def _by_arrow(self, content: bytes, rows: int) -> pa.RecordBatch:
        reading = pajson.ReadOptions(use_threads=False, block_size=len(content) + 1)
        table = pajson.read_json(pa.BufferReader(content), reading, self._native).combine_chunks()
        if table.num_rows != rows:
            raise ValueError("a line has no record, or several")
        table.validate(full=True)  # Arrow does not check that text is UTF-8
        columns = {name: _column(table, name).cast(self.schema.field(name).type) for name in self.schema.names}
        return complete(columns, self.schema, rows)

    def _by_python(self, block: Block) -> Parsed:
        values, rejected = [], []
        lines = lines_of(block)
        for place, line in lines:
            try:
                values.append((place, self._values(line)))
            except Exception as error:  # noqa: BLE001  a record of any content may be here
                rejected.append((place, line, bare(error)))
        try:
            batch = to_batch([record for _, record in values], self.schema)
        except Exception:  # noqa: BLE001
            parsed = self._one_by_one(values, dict(lines), lambda record: to_batch([record], self.schema))
            return parsed._replace(rejected=sorted([*rejected, *parsed.rejected], key=lambda each: each[0]))
        return Parsed(batch, np.array([place for place, _ in values], dtype=np.int64), rejected)

    def _values(self, line: bytes) -> dict[str, Any]:
        found = json.loads(line.decode(), parse_float=decimal.Decimal if self._exact else None, parse_constant=_no_constant)
        if not isinstance(found, dict):
            raise TypeError(f"the line holds {type(found).__name__}, and not an object")
        return {name: convert(found.get(name)) for name, convert in self._converters.items()}


def _no_constant(text: str) -> float:
    return float(text)


def _native_json(kind: pa.DataType) -> pa.DataType | None:
    """The type as which Arrow reads a field; None if it should not."""
    if pa.types.is_date(kind):
        return pa.string()
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_timestamp)
    return kind if any(is_kind(kind) for is_kind in plain) else None


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function from the value of a JSON field to that of a record."""
    inner = _not_null_converter(kind)
    return lambda value: None if value is None else inner(value)


def _not_null_converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda value: {name: convert(value.get(name)) for name, convert in fields.items()}
    if pa.types.is_map(kind):
        key, item = _key(kind.key_type), _converter(kind.item_type)
        return lambda value: [(key(name), item(one)) for name, one in value.items()]
    if pa.types.is_list(kind):
        element = _converter(kind.value_type)
        return lambda value: [element(one) for one in _a(list, value)]
    if pa.types.is_timestamp(kind):
        return lambda value: _moment(value, kind.tz)
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat
    if pa.types.is_binary(kind):
        return lambda value: base64.b64decode(value, validate=True)
    if pa.types.is_decimal(kind):
        return lambda value: decimal.Decimal(value) if not isinstance(value, bool) else _a(str, value)
    if pa.types.is_floating(kind):
        return lambda value: float(value) if not isinstance(value, bool | str) else _a(float, value)
    if pa.types.is_string(kind):
        return lambda value: _a(str, value)
    return lambda value: value


def _key(kind: pa.DataType) -> Callable[[str], Any]:
    """JSON has only texts as keys."""
    return int if pa.types.is_integer(kind) else _converter(kind)


def _a(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r:.200}")
    return value


def _moment(text: str, zone: str | None) -> datetime.datetime:
    """A time; one without a zone is in UTC."""
    at = datetime.datetime.fromisoformat(_a(str, text))
    at = at.replace(tzinfo=datetime.UTC) if at.tzinfo is None else at.astimezone(datetime.UTC)
    return at if zone is not None else at.replace(tzinfo=None)


# CSV


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
        columns = {name: _timed(_column(table, name), self.schema.field(name).type) for name in table.column_names}
        return complete(columns, self.schema, rows)

    def _halves(self, lines: list[tuple[int, bytes]]) -> Parsed:
        """Parse halves, down to the lines that do not parse: k of n are found with about k·log₂(n) attempts."""
        if not lines:
            return Parsed(_none(self.schema), np.array([], dtype=np.int64))
        try:
            batch = self._by_arrow(b"".join(line + b"\n" for _, line in lines), len(lines))
            return Parsed(batch, np.array([place for place, _ in lines], dtype=np.int64))
        except (pa.ArrowException, ValueError) as error:
            if len(lines) == 1:
                return Parsed(_none(self.schema), np.array([], dtype=np.int64), [(*lines[0], bare(error))])
        first, second = self._halves(lines[: len(lines) // 2]), self._halves(lines[len(lines) // 2 :])
        both = pa.Table.from_batches([first.batch, second.batch]).combine_chunks().to_batches()
        lines_ = np.concatenate([first.lines, second.lines])
        return Parsed(both[0] if both else _none(self.schema), lines_, [*first.rejected, *second.rejected])


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


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
