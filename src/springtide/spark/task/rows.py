"""Separates the rows for sql operators, which run between two stages, from a stage's blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from springtide.spark.shared import blocks
from springtide.spark.shared.blocks import BlockKind


class Onward:
    """Passes a stage's blocks on without the rows for the sql operators of its level."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, split: int, elements: Iterable[bytes]) -> Iterator[bytes]:
        keys = iter(elements)
        for key, block in zip(keys, keys, strict=True):
            header = blocks.parse(block)
            if header.kind is not BlockKind.ROWS or header.level != self._level:
                yield from (key, block)


class Pick:
    """Picks the rows for one sql operator out of a stage's blocks."""

    def __init__(self, consumer: int, schema: pa.Schema) -> None:
        self._consumer, self._schema = consumer, schema

    def __call__(self, elements: Any) -> Any:
        for block in itertools.islice(elements, 1, None, 2):  # without keys
            header = blocks.parse(block)
            if header.kind is BlockKind.ROWS and header.consumer == self._consumer:
                for row in blocks.records(block, self._schema).to_pylist():
                    yield tuple(_as_row(value, kind) for value, kind in zip(row.values(), self._schema.types, strict=True))


def _as_row(value: Any, kind: pa.DataType) -> Any:
    """A value as in Spark's rows, with maps as dicts instead of Arrow's lists of pairs."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _as_row(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return tuple(_as_row(value[part.name], part.type) for part in kind)
    return [_as_row(item, kind.value_type) for item in value]
