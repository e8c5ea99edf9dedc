"""A chunk of records in a task, as Python objects or as an Arrow batch, converted on demand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.model.columns import to_batch

Misfit = Callable[[Any, Exception], None]
"""Called with each record that does not fit the schema, and the error."""


@dataclasses.dataclass(frozen=True)
class Refused:
    """A row that its record class refused, for example in ``__post_init__``."""

    row: Mapping[str, Any]
    error: BaseException


class Chunk:
    """Records of one schema, made from objects or from a batch. The other form is made on demand, once.

    ``origins``: for each row, the index of the arrived record that it was made of; None if costs are not measured.
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
        """The records as instances of a dataclass, which may have fewer fields than the schema, or as ``Refused``. ``known``:
        the readers of its fields."""
        if self._records is not None and (not self._records or isinstance(self._records[0], cls)):
            return self._records
        batch = self.batch()
        wanted = [field for field in dataclasses.fields(cls) if field.init]
        readers = [known.get(field.name) for field in wanted]
        columns = [batch.column(batch.schema.get_field_index(field.name)) for field in wanted]
        make: Callable[..., Any] = cls if not any(field.kw_only for field in wanted) else _by_keyword(cls, wanted)
        try:
            read = [_values(stored, reader) for stored, reader in zip(columns, readers, strict=True)]
            return [make(*values) for values in zip(*read, strict=True)]
        except BaseException:  # noqa: BLE001  the class is a user's code; find the rows that it refuses
            return [_read(make, readers, row) for row in batch.select([field.name for field in wanted]).to_pylist()]

    def batch(self) -> pa.RecordBatch:
        """The records as an Arrow batch, without those that do not fit the schema, which ``misfit`` gets."""
        if self._batch is None:
            assert self._records is not None
            try:
                self._batch = to_batch(self._records, self.schema)
            except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError):
                self._keep_fitting(self._records)
                self._batch = to_batch(self._records, self.schema)
        return self._batch

    def where(self, passed: list[bool]) -> Chunk:
        """The records for which ``passed`` is true, with all fields, even if the filter reads only a few of them."""
        origins = None if self.origins is None else self.origins[np.array(passed, dtype=np.bool_)]
        if self._records is not None:
            chosen = list(itertools.compress(self._records, passed))
            return Chunk(self.schema, records=chosen, misfit=self._misfit, origins=origins)
        return Chunk(self.schema, batch=self.batch().filter(pa.array(passed, pa.bool_())), origins=origins)

    def _keep_fitting(self, records: Sequence[Any]) -> None:
        fitting = [self._fits(record) for record in records]
        self._records = list(itertools.compress(records, fitting))
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


def _by_keyword(cls: type, wanted: Sequence[dataclasses.Field[Any]]) -> Callable[..., Any]:
    names = [field.name for field in wanted]
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


def _read(make: Callable[..., Any], readers: Sequence[Callable[[Any], Any] | None], row: Mapping[str, Any]) -> Any:
    try:
        values = zip(row.values(), readers, strict=True)
        return make(*(value if read is None or value is None else read(value) for value, read in values))
    except BaseException as error:  # noqa: BLE001  any error of the class fails its row alone
        return Refused(row, error)


def _values(stored: pa.Array, read: Callable[[Any], Any] | None) -> list[Any]:
    values: list[Any] = stored.to_pylist()
    return values if read is None else [None if value is None else read(value) for value in values]
