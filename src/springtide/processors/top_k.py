"""The greatest of every key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from springtide.processors.processor import Processor, State, list_of

RANK = "rank"


def top_k(k: int, by: str, of: str | None, records: pa.Schema) -> Processor:
    """The ``k`` records of a key that are greatest ``by`` a column, told anew, the first rank first, when they change.

    ``of``: the column with what is ranked, of which the latest record counts; without it, every record is ranked for itself.
    Equals are ranked in the order in which they came, and what is no number (NaN) behind all that is.
    """
    row = pa.struct(list(records))
    nested = any(pa.types.is_nested(field.type) for field in records)

    def rows(records: list[Any]) -> list[dict[str, Any]]:
        """Records as they are stored, that one can be compared with what was: there, a record in a record is a dict."""
        if not nested:
            return [dict(vars(record)) for record in records]
        stored: list[dict[str, Any]] = pa.array(map(dataclasses.asdict, records), row).to_pylist()
        return stored

    def size(one: dict[str, Any]) -> tuple[bool, Any]:
        number = one[by]
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
                    state.ranked = [one for one in state.ranked if one[of] != record[of]]
                if record[by] is not None:
                    state.ranked.append(record)
            state.ranked.sort(key=size, reverse=True)
            if of is None:
                del state.ranked[k:]
            if state.ranked[:k] != before:
                for rank, one in enumerate(state.ranked[:k], 1):
                    yield {**one, RANK: rank}

    return TopK()


def ranked(records: pa.Schema) -> pa.Schema:
    """The schema of what comes out."""
    return pa.schema([*records, pa.field(RANK, pa.int64(), nullable=False)])
