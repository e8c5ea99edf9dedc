"""The greatest k records of every key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from springtide.processors.processor import Processor, State, list_of

RANK = "rank"


def top_k(k: int, by: str, of: str | None, records: pa.Schema) -> Processor:
    """The ``k`` greatest records of a key ``by`` a column. All k are emitted again, by rank, whenever they change.

    ``of``: the column that identifies an item; of each item the latest record is ranked. Without it, every record is ranked.
    Equal records are ranked in the order in which they came, and NaN ranks below every number.
    """
    row = pa.struct(list(records))
    nested = any(pa.types.is_nested(field.type) for field in records)

    def rows(records: list[Any]) -> list[dict[str, Any]]:
        """Records in their stored form, which can be compared with the state: there, a nested record is a dict."""
        if not nested:
            return [dict(vars(record)) for record in records]
        stored: list[dict[str, Any]] = pa.array(map(dataclasses.asdict, records), row).to_pylist()
        return stored

    def size(row: dict[str, Any]) -> tuple[bool, Any]:
        number = row[by]
        return bool(number == number), number  # NaN is not equal to itself

    class TopK(Processor):
        ranked = list_of(row)
        describes: ClassVar[Mapping[str, str]] = {
            "ranked": f"the greatest by {by!r}" + (f", of {of!r}" if of is not None else "")
        }

        def process(self, key: Any, records: list[Any], state: State) -> Iterator[dict[str, Any]]:
            before = state.ranked[:k]
            for record in rows(records):
                if of is not None:
                    state.ranked = [ranked for ranked in state.ranked if ranked[of] != record[of]]
                if record[by] is not None:
                    state.ranked.append(record)
            state.ranked.sort(key=size, reverse=True)
            if of is None:
                del state.ranked[k:]
            if state.ranked[:k] != before:
                for rank, record in enumerate(state.ranked[:k], 1):
                    yield {**record, RANK: rank}

    return TopK()


def ranked(records: pa.Schema) -> pa.Schema:
    return pa.schema([*records, pa.field(RANK, pa.int64(), nullable=False)])
