"""A join of two streams by key, within a time bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from springtide.model.schema import microseconds
from springtide.model.state import moment
from springtide.processors.processor import Processor, State, Timer, list_of
from springtide.processors.selecting import Failures
from springtide.processors.timed import Timed

LEFT, RIGHT, AT = "left", "right", "at"


@dataclass(frozen=True)
class JoinSide(Timed):
    """Converts the records of one side into the rows that both sides share: the key, the time, and a column for each side.

    As in SQL, null equals nothing: a record with a null in its key has no partner, and is left out.
    """

    key: tuple[str, ...]
    name: str
    schema: pa.Schema

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        records, untimed = super().split(records)
        for name in self.key:
            records = records.filter(records.column(name).is_valid()) if records.column(name).null_count else records
        times = microseconds(records.column(self.time))
        own = records.to_struct_array()
        columns = [records.column(name).cast(self.schema.field(name).type) for name in self.key]
        for name in (LEFT, RIGHT):
            kind = self.schema.field(name).type
            columns.append(own.cast(kind) if name == self.name else pa.nulls(records.num_rows, kind))
        return pa.RecordBatch.from_arrays([*columns, times], schema=self.schema), untimed


def united(key: tuple[str, ...], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The schema of the rows that both sides share."""
    keys = [pa.field(name, left.field(name).type) for name in key]
    return pa.schema([*keys, (LEFT, _optional(left)), (RIGHT, _optional(right)), (AT, pa.int64())])


def _optional(fields: Iterable[pa.Field]) -> pa.DataType:
    """A struct whose fields may be null at every depth, because the other side's column of a row is null."""
    kinds = [(field.name, _optional(field.type) if pa.types.is_struct(field.type) else field.type) for field in fields]
    return pa.struct(kinds)


def joining(
    within_us: int, left: pa.Schema, right: pa.Schema, combine: Callable[[Any, Any], Any],
    read_left: Callable[[Mapping[str, Any]], Any], read_right: Callable[[Mapping[str, Any]], Any],
) -> Processor:  # fmt: skip
    """Emits each pair of a left and a right record of a key that are at most ``within_us`` apart, when its later record comes.

    A record is stored until the watermark has passed its time by ``within_us``: any match after that is late.
    """
    left_row, right_row = (pa.struct([(AT, pa.int64()), ("row", pa.struct(list(schema)))]) for schema in (left, right))

    class Join(Processor):
        lefts = list_of(left_row)
        rights = list_of(right_row)

        def process(self, key: Any, records: list[Any], state: State) -> Iterator[Any]:
            for record in records:
                is_left = record.left is not None
                row, others = (record.left, state.rights) if is_left else (record.right, state.lefts)
                for other in others:
                    if abs(other[AT] - record.at) <= within_us:
                        pair = (row, other["row"]) if is_left else (other["row"], row)
                        yield combine(read_left(pair[0]), read_right(pair[1]))
                (state.lefts if is_left else state.rights).append({AT: record.at, "row": row})
                state.set_timer(moment(record.at + within_us + 1))

        def on_timer(self, key: Any, timer: Timer, state: State) -> Iterator[Any]:
            """Drop the records that no later record can match."""
            assert state.watermark is not None
            limit = timer.at
            state.lefts = [row for row in state.lefts if moment(row[AT] + within_us) >= limit]
            state.rights = [row for row in state.rights if moment(row[AT] + within_us) >= limit]
            return iter(())

    return Join()
