"""Reads and writes rows of state as Parquet, JSON lines or CSV, by the file's suffix.

A file is written under a temporary name and then renamed. Files are processed block by block and may be larger than memory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from springtide.errors import OptionError, nearest
from springtide.model.columns import check_nulls
from springtide.spark.state.values import Misfit, decoder, encoder, is_bytes, is_text

BLOCK = 10_000
"""Limits the rows that are Python objects at once, to some MB."""
Parts = Iterable[pa.RecordBatch]
_is = pa.types


def write(path: Path, schema: pa.Schema, parts: Parts) -> int:
    """Write all rows to a new file, or none; returns their number."""
    form = _form(path)
    if form is _CSV:
        _check_flat(path, schema)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        rows = form[0](beside, schema, parts)
        os.replace(beside, path)
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written: {error.strerror or error}; choose another place") from None
    except pa.ArrowNotImplementedError as error:
        raise OptionError(f"{str(path)!r} cannot be written: {error}; give a .parquet file") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return rows


def read(path: Path, wanted: pa.Schema, optional: Collection[str], ignored: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with exactly the ``wanted`` columns. Missing ``optional`` columns are null, ``ignored`` ones dropped.

    An OptionError names the column that does not fit, its value or type, and the wanted type.
    """
    form = _form(path)
    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r}")
    try:
        for rows in form[1](path, wanted, _Names(wanted, optional, ignored)):
            for field in wanted:
                check_nulls(field.name, rows.column(field.name), field)
            yield rows
    except (pa.ArrowException, ValueError, OSError) as error:
        raise OptionError(f"{path}: {error}") from None


def metadata(path: Path) -> dict[bytes, bytes]:
    """The metadata of a file, which only Parquet supports."""
    if path.suffix != ".parquet":
        return {}
    try:
        return dict(pa.parquet.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"{path}: {error}") from None


class _Names:
    """Checks the columns of a file."""

    def __init__(self, wanted: pa.Schema, optional: Collection[str], ignored: Collection[str]) -> None:
        self._wanted, self._known = wanted, {*wanted.names, *ignored}
        self._needed = [name for name in wanted.names if name not in optional]

    def check(self, names: Sequence[str], where: str = "") -> None:
        for name in names:
            if name not in self._known:
                raise ValueError(f"{where}column {name!r} came, which is not of the operator's state; "
                                 f"{nearest(name, self._known)}")  # fmt: skip
        if len(set(names)) < len(names):
            raise ValueError(f"{where}a column is there twice: {', '.join(names)}")
        for name in self._needed:
            if name not in names:
                raise ValueError(f"{where}column {name!r} is missing, wanted {self._wanted.field(name).type}; there are:"
                                 f" {', '.join(names) or 'none'}")  # fmt: skip


def _batch(wanted: pa.Schema, columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    every = [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(every, schema=wanted)


@contextlib.contextmanager
def _column(name: str, kind: pa.DataType) -> Iterator[None]:
    """Adds the column and the wanted type to an error."""
    try:
        yield
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"column {name!r}: {error}" + ("" if isinstance(error, Misfit) else f"; wanted {kind}")) from None


# Parquet


def _write_parquet(path: Path, schema: pa.Schema, parts: Parts) -> int:
    rows = 0
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_batch(part)
            rows += part.num_rows
    return rows


def _read_parquet(path: Path, wanted: pa.Schema, names: _Names) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        came = file.schema_arrow
        names.check(came.names)
        for field in wanted:
            if field.name in came.names and not _alike(came.field(field.name).type, field.type):
                raise ValueError(f"column {field.name!r} is {came.field(field.name).type}, wanted {field.type}")
        for part in file.iter_batches(batch_size=BLOCK):
            columns = {f.name: _cast(part.column(f.name), f) for f in wanted if f.name in came.names}
            yield _batch(wanted, columns, part.num_rows)


def _alike(came: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may fit the other, unless they are too large; programs differ in the types that they write."""
    if came == wanted or _is.is_null(came):
        return True
    pairs = (_is.is_integer, _is.is_decimal, is_text, is_bytes)
    if any(is_kind(came) and is_kind(wanted) for is_kind in pairs):
        return True
    if _is.is_floating(wanted):
        return bool(_is.is_floating(came) or _is.is_integer(came))
    if _is.is_timestamp(wanted):
        return bool(_is.is_timestamp(came)) and (came.tz is None) == (wanted.tz is None)
    if _is.is_map(wanted):
        return bool(_is.is_map(came)) and _alike(came.key_type, wanted.key_type) and _alike(came.item_type, wanted.item_type)
    if _is.is_list(wanted):
        return bool(_is.is_list(came) or _is.is_large_list(came)) and _alike(came.value_type, wanted.value_type)
    if _is.is_struct(wanted) and _is.is_struct(came):
        parts = {field.name: field.type for field in came}
        return parts.keys() == {field.name for field in wanted} and all(_alike(parts[f.name], f.type) for f in wanted)
    return False


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    with _column(field.name, field.type):
        if column.type == field.type or not _is.is_nested(field.type):
            return column.cast(field.type)
        return pa.array(column.to_pylist(), field.type)  # Arrow cannot cast between all such structs


# JSON lines


def _write_json(path: Path, schema: pa.Schema, parts: Parts) -> int:
    coders = {field.name: encoder(field.type) for field in schema}
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for part in parts:
            for begin in range(0, part.num_rows, BLOCK):
                for row in part.slice(begin, BLOCK).to_pylist():
                    line = {name: code(row[name]) for name, code in coders.items()}
                    file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
            rows += part.num_rows
    return rows


def _read_json(path: Path, wanted: pa.Schema, names: _Names) -> Iterator[pa.RecordBatch]:
    coders = {field.name: decoder(field.type) for field in wanted}
    with path.open(encoding="utf-8") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        while block := list(itertools.islice(lines, BLOCK)):
            values: dict[str, list[Any]] = {name: [] for name in coders}
            for number, line in block:
                row = _object(line, f"line {number}: ")
                names.check(list(row), f"line {number}: ")
                for name, code in coders.items():
                    try:
                        values[name].append(code(row.get(name)))
                    except Misfit as error:
                        raise ValueError(f"line {number}: column {name!r}: {error}") from None
            columns = {}
            for field in wanted:
                with _column(field.name, field.type):
                    columns[field.name] = pa.array(values[field.name], field.type)
            yield _batch(wanted, columns, len(block))


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}not JSON ({error}); write one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}{type(row).__name__} came, wanted an object with the columns")
    return row


# CSV


def _check_flat(path: Path, schema: pa.Schema) -> None:
    for field in schema:
        if _is.is_nested(field.type):
            raise OptionError(f"{str(path)!r}: CSV cannot hold column {field.name!r} of type {field.type}; give a .parquet or"
                              " .json file")  # fmt: skip


def _write_csv(path: Path, schema: pa.Schema, parts: Parts) -> int:
    rows = 0
    flat = pa.schema([pa.field(f.name, pa.string() if is_bytes(f.type) else f.type) for f in schema])
    with pa.csv.CSVWriter(path, flat) as writer:
        for part in parts:
            columns = [_base64(column) if is_bytes(column.type) else column for column in part.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=flat))
            rows += part.num_rows
    return rows


def _base64(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()], pa.string())


def _read_csv(path: Path, wanted: pa.Schema, names: _Names) -> Iterator[pa.RecordBatch]:
    _check_flat(path, wanted)
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file), [])
    names.check(header)
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
        for part in reader:
            columns = {f.name: _from_text(part.column(f.name), f) for f in wanted if f.name in header}
            yield _batch(wanted, columns, part.num_rows)


def _from_text(column: pa.Array, field: pa.Field) -> pa.Array:
    with _column(field.name, field.type):
        if not is_bytes(field.type):
            return column.cast(field.type)
        try:
            raw = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
        except binascii.Error as error:
            raise ValueError(f"no base64 ({error})") from None
        return pa.array(raw, field.type)


Form = tuple[Callable[[Path, pa.Schema, Parts], int], Callable[[Path, pa.Schema, _Names], Iterator[pa.RecordBatch]]]
_CSV: Form = (_write_csv, _read_csv)
FORMS: dict[str, Form] = {".parquet": (_write_parquet, _read_parquet), ".json": (_write_json, _read_json), ".csv": _CSV}


def _form(path: Path) -> Form:
    if path.suffix not in FORMS:
        raise OptionError(f"{str(path)!r}: in which format? Let its name end in one of {', '.join(FORMS)}")
    return FORMS[path.suffix]
