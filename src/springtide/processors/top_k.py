"""The greatest of every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from springtide.processors.processor import Processor, State, list_of

RANK = "rank"


def top_k(k: int, by: str, of: str | None, records: pa.Schema) -> Processor:
    """The ``k`` records of a key that are greatest ``by`` a column, told anew, the first rank first, when they change.

    ``of``: the column with what is ranked, of which the latest record counts; without it, every record is ranked for itself.
    Equals are ranked in the order in which they came.
    """
    row = pa.struct(list(records))

    class TopK(Processor):
        ranked = list_of(row)

        def process(self, key: Any, records: list[Any], state: State) -> Iterator[dict[str, Any]]:
            before = state.ranked[:k]
            for record in map(vars, records):
                if of is not None:
                    state.ranked = [one for one in state.ranked if one[of] != record[of]]
                if record[by] is not None:
                    state.ranked.append(dict(record))
            state.ranked.sort(key=lambda one: one[by], reverse=True)
            if of is None:
                del state.ranked[k:]
            if state.ranked[:k] != before:
                for rank, one in enumerate(state.ranked[:k], 1):
                    yield {**one, RANK: rank}

    return TopK()


def ranked(records: pa.Schema) -> pa.Schema:
    """The schema of what comes out."""
    return pa.schema([*records, pa.field(RANK, pa.int64(), nullable=False)])
