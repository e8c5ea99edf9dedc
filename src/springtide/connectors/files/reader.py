"""The tasks' part: reads files, or parts of them, into Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from springtide.connectors.files.csv_lines import CsvParser, check_header, header_of
from springtide.connectors.files.enumerator import GO_ON
from springtide.connectors.files.json_lines import JsonParser
from springtide.connectors.files.lines import Block, TooLong, blocks, opened, skipped
from springtide.connectors.files.listing import Folder, in_path
from springtide.connectors.files.options import Options
from springtide.connectors.files.parsing import Parser, bare
from springtide.errors import RunError
from springtide.model.columns import check_nulls
from springtide.model.schema import microseconds
from springtide.model.source import Range, Reader, Records, Rejected

BATCH_ROWS = 16_384
"""Records of a Parquet file to have in memory at once."""


class Part(NamedTuple):
    """A file of a range, or the row groups or bytes of it in ``cut``, with the number of records if that is known."""

    path: str
    mtime: int
    size: int
    cut: list[int] | None
    rows: int | None


class Lost(Exception):
    """A file cannot be read as it was listed."""


class FilesReader(Reader):
    """Reads files as they were listed: a file that has changed since is lost, since a replay would read other records."""

    def __init__(
        self, folder: Folder, format: str, options: Options, schema: pa.Schema, created: str | None, lenient: bool
    ) -> None:
        self._folder, self._format, self._options, self._schema = folder, format, options, schema
        self._created, self._lenient = created, lenient

    def read(self, part: Range) -> Iterator[Records]:
        files = [Part(*each) for each in part["files"]]
        for file in files:
            yield from self._file(file)

    def _file(self, part: Part) -> Iterator[Records]:
        """The records of a file, and what of it is lost."""
        read = 0
        try:
            self._check_unchanged(part)
            for records in self._parquet(part) if self._format == "parquet" else self._lines(part):
                read += len(records) + len(records.rejected)
                yield records
            self._check_unchanged(part)
        except FileNotFoundError:
            yield self._lost(part, read, "vanished before it was read")
        except Lost as lost:
            yield self._lost(part, read, str(lost))

    def _lost(self, part: Part, read: int, fault: str) -> Records:
        if not self._lenient:
            raise RunError(
                f"{self._folder.shown(part.path)} {fault}; nothing of the batch was committed. Put the file back as it was,"
                f" {GO_ON}"
            )
        return Records([], lost=max(1, (part.rows or 0) - read), origin=part.path)

    def _check_unchanged(self, part: Part) -> None:
        now = self._folder.look(part.path)
        if now is None:
            raise FileNotFoundError(part.path)
        if (now.size, now.mtime) != (part.size, part.mtime):
            change = f"it had {part.size:,} bytes, and has {now.size:,}" if now.size != part.size else "its time is another"
            raise Lost(f"changed after it was listed: {change}. Write files elsewhere, and move them here when they are whole")

    # Formats

    def _parquet(self, part: Part) -> Iterator[Records]:
        try:
            with closing(pq.ParquetFile(self._folder.files.open_input_file(self._folder.path(part.path)))) as file:
                known = in_path(part.path)
                offered = file.schema_arrow
                names = [name for name in self._schema.names if name in offered.names]
                self._check_columns(part, offered, known)
                groups = list(range(file.num_row_groups) if part.cut is None else range(*part.cut))
                number = sum(file.metadata.row_group(index).num_rows for index in range(groups[0])) if groups else 0
                for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=names):
                    yield from self._fitted(part, batch, known, number)
                    number += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            self._check_unchanged(part)
            raise Lost(f"is no whole Parquet file ({' '.join(str(error).split())[:200]})") from error

    def _check_columns(self, part: Part, offered: pa.Schema, known: Mapping[str, Any]) -> None:
        for field in self._schema:
            if field.name in offered.names or field.name in known or field.nullable:
                continue
            raise RunError(
                f"{self._folder.shown(part.path)} has no column {field.name!r}, which schema= has; it has"
                f" {', '.join(map(repr, offered.names))}. Correct the file or schema=, or let the column be None there"
            )

    def _fitted(self, part: Part, batch: pa.RecordBatch, known: Mapping[str, Any], number: int) -> Iterator[Records]:
        """The records in the schema of the source; those with a null that may not be are rejected."""
        columns = {}
        for field in self._schema:
            try:
                if field.name in batch.schema.names:
                    columns[field.name] = batch.column(field.name).cast(field.type)
                else:
                    columns[field.name] = self._constant(known.get(field.name), field.type, batch.num_rows)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise RunError(
                    f"{self._folder.shown(part.path)}: column {field.name!r} cannot be read as {field.type}: {error}. Correct"
                    " the file or schema="
                ) from error
        fits = np.ones(batch.num_rows, dtype=bool)
        errors: dict[int, Exception] = {}
        for field in self._schema:
            try:
                check_nulls(field.name, columns[field.name], field)
            except ValueError:
                for row in np.flatnonzero(fits):
                    try:
                        check_nulls(field.name, columns[field.name].slice(int(row), 1), field)
                    except ValueError as error:
                        fits[row], errors[int(row)] = False, bare(error)
        whole = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], names=self._schema.names)
        rejected = [
            Rejected({"file": part.path, "row": number + row}, str(whole.slice(row, 1).to_pylist()[0]), error)
            for row, error in sorted(errors.items())
        ]
        whole = whole.filter(pa.array(fits)) if errors else whole
        typed = pa.RecordBatch.from_arrays(whole.columns, schema=self._schema)
        yield self._records(part, typed, number + np.flatnonzero(fits), rejected)

    def _constant(self, text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
        if text is None:
            return pa.nulls(rows, kind)
        return pa.array([text] * rows).cast(kind)

    def _lines(self, part: Part) -> Iterator[Records]:
        first, last = part.cut or (0, None)
        path, known = self._folder.path(part.path), in_path(part.path)
        own = pa.schema([field for field in self._schema if field.name not in known])
        parser: Parser | None = JsonParser(own) if self._format == "json" else None
        try:
            with opened(self._folder.files, path, first) as stream:
                text, start = skipped(stream, first) if first else (stream, 0)
                for block in blocks(text, self._options.encoding, start, last):
                    if parser is None:
                        parser, block = self._csv(part, own, block)
                    if block.content:
                        yield self._parsed(part, parser, block, known)
        except TooLong as error:
            raise RunError(f"{self._folder.shown(part.path)}: {error}") from error
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, FileNotFoundError):
                raise
            self._check_unchanged(part)
            raise Lost(f"cannot be read to its end ({' '.join(str(error).split())[:200]})") from error

    def _csv(self, part: Part, schema: pa.Schema, block: Block) -> tuple[Parser, Block]:
        """The parser of a CSV file by its first block, and the rest of that."""
        options = self._options.csv
        if not options.header:
            return CsvParser(schema, options, schema.names), block
        cut = block.content.find(b"\n") + 1
        names = header_of(block.content[:cut].rstrip(b"\r\n"), options)
        check_header(names, schema, self._folder.shown(part.path))
        return CsvParser(schema, options, names), Block(block.content[cut:], block.first + 1, block.start + cut)

    def _parsed(self, part: Part, parser: Parser, block: Block, known: Mapping[str, Any]) -> Records:
        parsed = parser.parse(block)
        batch = parsed.batch
        if any(name in known for name in self._schema.names):
            columns = [
                batch.column(field.name) if field.name in batch.schema.names
                else self._constant(known[field.name], field.type, batch.num_rows)
                for field in self._schema
            ]  # fmt: skip
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        rejected = [Rejected(self._line(part, block, line), raw, error) for line, raw, error in parsed.rejected]
        within = bool(part.cut and part.cut[0])  # the lines before are not counted
        return self._records(part, batch, None if within else block.first + parsed.lines, rejected)

    def _line(self, part: Part, block: Block, line: int) -> dict[str, Any]:
        """Where a line is. In the middle of a file the lines before are not counted."""
        if not (part.cut and part.cut[0]):
            return {"file": part.path, "line": block.first + line}
        before = block.content.split(b"\n", line)[:line]
        return {"file": part.path, "byte": block.start + sum(len(each) + 1 for each in before)}

    def _records(
        self, part: Part, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64] | None, rejected: list[Rejected]
    ) -> Records:
        return Records(batch, self._times(part, batch), rejected, origin=part.path, numbers=numbers)

    def _times(self, part: Part, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The creation times of records: their own, else the file's, which is never before theirs."""
        if self._created is None:
            return np.full(batch.num_rows, part.mtime, dtype=np.int64)
        times = microseconds(batch.column(self._created)).fill_null(part.mtime)
        found: npt.NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
        return found
