"""JSON lines: plain fields by Arrow, others by Python."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from springtide.connectors.files.lines import Block, lines_of
from springtide.connectors.files.parsing import Parsed, Parser, bare, column_of, complete
from springtide.model.columns import to_batch


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
        columns = {name: column_of(table, name).cast(self.schema.field(name).type) for name in self.schema.names}
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
        found = json.loads(line.decode(), parse_float=decimal.Decimal if self._exact else None)
        if not isinstance(found, dict):
            raise TypeError(f"the line holds {type(found).__name__}, and not an object")
        return {name: convert(found.get(name)) for name, convert in self._converters.items()}


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
