"""A chunk of records on its way through one task, as Python objects or as an Arrow batch, whichever is wanted."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.model.columns import column

Misfit = Callable[[Any, Exception], None]
"""Told of each record that does not fit the schema, with the fault."""


@dataclasses.dataclass(frozen=True)
class Refused:
    """Stands for a row that its record class would not take, as when ``__post_init__`` checks what a file brought."""

    row: Mapping[str, Any]
    error: BaseException


class Chunk:
    """Records of one schema. Made from objects or from a batch; the other form is made once, when it is asked for.

    ``origins``: of which of the records that arrived at the task each row was made; None where nobody measures.
    """

    def __init__(
        self, schema: pa.Schema, *, records: list[Any] | None = None, batch: pa.RecordBatch | None = None,
        misfit: Misfit | None = None, origins: npt.NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.origins = origins
        self._records = records
        self._batch = batch
        self._misfit = misfit

    def __len__(self) -> int:
        return len(self._records) if self._records is not None else int(self.batch().num_rows)

    def records(self, cls: type, known: Mapping[str, Callable[[Any], Any]]) -> list[Any]:
        """The records as instances of a dataclass, which may want fewer fields than there are, or ``Refused``. ``known`` are
        the readers of its fields."""
        if self._records is not None and (not self._records or isinstance(self._records[0], cls)):
            return self._records
        batch = self.batch()
        wanted = [field for field in dataclasses.fields(cls) if field.init]
        readers = [known.get(field.name) for field in wanted]
        columns = [batch.column(batch.schema.get_field_index(field.name)) for field in wanted]
        make: Callable[..., Any] = cls if not any(field.kw_only for field in wanted) else _by_keyword(cls, wanted)
        try:
            read = [_values(one, reader) for one, reader in zip(columns, readers, strict=True)]
            return [make(*values) for values in zip(*read, strict=True)]
        except BaseException:  # noqa: BLE001  a class is a user's code; find out which rows it refuses
            return [_read(make, readers, row) for row in batch.select([field.name for field in wanted]).to_pylist()]

    def batch(self) -> pa.RecordBatch:
        """The records as an Arrow batch. Those that do not fit the schema are told of and left out."""
        if self._batch is None:
            assert self._records is not None
            try:
                self._batch = to_batch(self._records, self.schema)
            except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError):
                self._keep_fitting(self._records)
                self._batch = to_batch(self._records, self.schema)
        return self._batch

    def where(self, kept: list[bool]) -> Chunk:
        """The records for which ``kept`` is true, whole, also when a filter looked at a few of their fields only."""
        origins = None if self.origins is None else self.origins[np.array(kept, dtype=np.bool_)]
        if self._records is not None:
            chosen = [record for record, keep in zip(self._records, kept, strict=True) if keep]
            return Chunk(self.schema, records=chosen, misfit=self._misfit, origins=origins)
        return Chunk(self.schema, batch=self.batch().filter(pa.array(kept, pa.bool_())), origins=origins)

    def _keep_fitting(self, records: Sequence[Any]) -> None:
        fitting = [self._fits(record) for record in records]
        self._records = [record for record, fits in zip(records, fitting, strict=True) if fits]
        if self.origins is not None:
            self.origins = self.origins[np.array(fitting, dtype=np.bool_)]

    def _fits(self, record: Any) -> bool:
        try:
            to_batch([record], self.schema)
        except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError) as fault:
            if self._misfit is None:
                raise
            self._misfit(record, fault)
            return False
        return True


def to_batch(records: Sequence[Any], schema: pa.Schema, strict: bool = False) -> pa.RecordBatch:
    """Dataclass instances or mappings as an Arrow batch of exactly this schema. ``strict``: as a column's values may be."""
    columns = [column(_values_of(records, field.name), field, strict) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _by_keyword(cls: type, wanted: Sequence[dataclasses.Field[Any]]) -> Callable[..., Any]:
    names = [field.name for field in wanted]
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


def _read(make: Callable[..., Any], readers: Sequence[Callable[[Any], Any] | None], row: Mapping[str, Any]) -> Any:
    try:
        values = zip(row.values(), readers, strict=True)
        return make(*(value if read is None or value is None else read(value) for value, read in values))
    except BaseException as error:  # noqa: BLE001  whatever the class raises is the row's fate
        return Refused(row, error)


def _values_of(records: Sequence[Any], name: str) -> list[Any]:
    """One field of all records, which mostly are of one class."""
    kinds = set(map(type, records))
    reads = {kind: (operator.itemgetter if issubclass(kind, Mapping) else operator.attrgetter)(name) for kind in kinds}
    read = reads[kinds.pop()] if len(kinds) == 1 else lambda record: reads[type(record)](record)
    return list(map(read, records))


def _values(stored: pa.Array, read: Callable[[Any], Any] | None) -> list[Any]:
    values: list[Any] = stored.to_pylist()
    return values if read is None else [None if value is None else read(value) for value in values]
