"""A chunk of records on its way through one task, as Python objects or as an Arrow batch, whichever is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from springtide.model.schema import field_readers

Misfit = Callable[[Any, Exception], None]
"""Told of each record that does not fit the schema, with the fault."""


class Chunk:
    """Records of one schema. Made from objects or from a batch; the other form is made once, when it is asked for."""

    def __init__(
        self, schema: pa.Schema, *, records: list[Any] | None = None, batch: pa.RecordBatch | None = None,
        misfit: Misfit | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self._records = records
        self._batch = batch
        self._misfit = misfit

    def __len__(self) -> int:
        return len(self._records) if self._records is not None else int(self.batch().num_rows)

    def records(self, cls: type) -> list[Any]:
        """The records as instances of a dataclass, which may want fewer fields than there are."""
        if self._records is not None and (not self._records or isinstance(self._records[0], cls)):
            return self._records
        batch = self.batch()
        wanted = [field.name for field in dataclasses.fields(cls)]
        readers = field_readers(cls)
        columns = [_values(batch.column(batch.schema.get_field_index(name)), readers.get(name)) for name in wanted]
        return [cls(*values) for values in zip(*columns, strict=True)]

    def batch(self) -> pa.RecordBatch:
        """The records as an Arrow batch. Those that do not fit the schema are told of and left out."""
        if self._batch is None:
            assert self._records is not None
            try:
                self._batch = to_batch(self._records, self.schema)
            except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError):
                self._records = list(self._fitting(self._records))
                self._batch = to_batch(self._records, self.schema)
        return self._batch

    def where(self, kept: list[bool]) -> Chunk:
        """The records for which ``kept`` is true, whole, also when a filter looked at a few of their fields only."""
        if self._records is not None:
            chosen = [record for record, keep in zip(self._records, kept, strict=True) if keep]
            return Chunk(self.schema, records=chosen, misfit=self._misfit)
        return Chunk(self.schema, batch=self.batch().filter(pa.array(kept, pa.bool_())))

    def _fitting(self, records: Sequence[Any]) -> Iterable[Any]:
        for record in records:
            try:
                to_batch([record], self.schema)
            except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError) as fault:
                if self._misfit is None:
                    raise
                self._misfit(record, fault)
            else:
                yield record


def to_batch(records: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Dataclass instances or mappings as an Arrow batch of exactly this schema."""
    columns = []
    for field in schema:
        values = [_plain(_field(record, field.name)) for record in records]
        if pa.types.is_integer(field.type) and any(isinstance(value, float) for value in values):
            raise TypeError(f"field {field.name!r} is {field.type}, got a float")  # Arrow would cut the fraction off
        column = pa.array(values, type=field.type)
        if not field.nullable and column.null_count:
            raise ValueError(f"field {field.name!r} is None, but {field.type} not null is declared")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _field(record: Any, name: str) -> Any:
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _plain(value: Any) -> Any:
    """A value without dataclasses, which Arrow does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _values(column: pa.Array, read: Callable[[Any], Any] | None) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values if read is None else [None if value is None else read(value) for value in values]
