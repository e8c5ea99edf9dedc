"""Staged parts, as tasks write them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from servers.postgres import Server
from springtide.api import postgres as api
from springtide.connectors.postgres.declared import PostgresSink
from springtide.connectors.postgres.lines import encoded
from springtide.model.publisher import Guarantee, Part, Publisher

_numbers = itertools.count()
OPENED: list[Publisher] = []


def declared(server: Server, table: str, **options: Any) -> PostgresSink:
    return api.sink(server.url, table, **{"password": server.password, **options})


def part(folder: Path, number: int, rows: list[dict[str, Any]], schema: pa.Schema) -> Part:
    """A part with rows; none of them may be refused by the tasks."""
    staged, refused = encoded(pa.RecordBatch.from_pylist(rows, schema))
    assert not refused
    file = folder / f"{next(_numbers)}.parquet"
    pa.parquet.write_table(pa.Table.from_batches([staged]), file)
    return Part(number, file, len(rows), zlib.crc32(file.read_bytes()))


def publisher(sink: PostgresSink, schema: pa.Schema, identity: str, stopped: Callable[[], bool] = lambda: False) -> Publisher:
    """A publisher that is ready, and that the test need not close."""
    made = sink.publisher(identity, schema, stopped)
    OPENED.append(made)
    if made.prepare() is None and sink.guarantee is Guarantee.EXACTLY_ONCE:
        made.begin(-1)
    return made
