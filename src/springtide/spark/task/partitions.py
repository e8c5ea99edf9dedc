"""Splits the records of a sink by the values of columns, and names a folder for each, as Hive and Spark do."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value in a folder's name for records without one, as Hive and Spark write it."""
MAX_NAME_BYTES = 255
"""The longest name that most file systems allow."""


def split(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """The records of each folder without the columns in its name, in the order of the folders.

    ValueError if a value makes a name that is too long, or is not UTF-8.
    """
    if not columns:
        yield "", table
        return
    codes, values = _coded(table, columns)
    distinct, which = np.unique(codes, axis=0, return_inverse=True)
    folders = [
        "/".join(map(folder_of, columns, [known[code] for known, code in zip(values, row, strict=True)])) for row in distinct
    ]
    order = np.argsort(which.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(which.ravel(), minlength=len(distinct)))
    rest = table.drop_columns(list(columns))
    for index in sorted(range(len(folders)), key=folders.__getitem__):
        first = ends[index - 1] if index else 0
        yield folders[index], rest.take(pa.array(order[first : ends[index]]))


def _coded(table: pa.Table, columns: tuple[str, ...]) -> tuple[Any, list[list[Any]]]:
    """For each record the numbers of its values, and the values of each column."""
    codes, values = [], []
    for name in columns:
        coded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
        codes.append(coded.indices.to_numpy(zero_copy_only=False))
        values.append(coded.dictionary.to_pylist())
    return np.stack(codes, axis=1), values


def folder_of(column: str, value: object) -> str:
    """
    >>> folder_of("route", "A/B")
    'route=A%2FB'
    """
    name = f"{quote(column, safe=' ')}={_text(value)}"
    if len(name) > MAX_NAME_BYTES:
        raise ValueError(f"{column}={str(value)[:80]!r}… is too long for the name of a folder ({MAX_NAME_BYTES} bytes)")
    return name


def _text(value: object) -> str:
    if value is None or value == "":
        return NO_VALUE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date):
        return value.isoformat()
    return quote(str(value), safe=" ")
