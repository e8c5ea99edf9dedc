"""Records as lines of COPY: what a server reads is what was written, and what it cannot hold is refused in the task."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers.postgres import Server
from springtide.connectors.postgres import lines
from springtide.connectors.postgres.lines import LINE, encoded, values
from springtide.connectors.postgres.types import Kind, column_type, holds
from springtide.errors import TopologyError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FIRST, LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "a": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "b": (pa.bool_(), st.booleans()),
    "c": (pa.float64(), st.floats()),
    "d": (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, allow_nan=False, allow_infinity=False, places=18)),
    "e": (pa.string(), TEXT),
    "f": (pa.binary(), st.binary(max_size=8)),
    "g": (pa.timestamp("us", "UTC"), st.datetimes(FIRST, LAST, timezones=st.just(datetime.UTC))),
    "h": (pa.timestamp("us"), st.datetimes(FIRST, LAST)),
    "i": (pa.date32(), st.dates()),
    "j": (pa.time64("us"), st.times()),
    "k": (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    "l": (pa.struct([("x", pa.int64()), ("y", pa.string())]), st.fixed_dictionaries({"x": st.integers(0, 9), "y": TEXT})),
    "m": (pa.float32(), st.floats(width=32)),
    "n": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "o": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | some for name, (_, some) in KINDS.items()}), min_size=1, max_size=20)


def lines_of(batch: pa.RecordBatch) -> tuple[list[bytes], list[int]]:
    staged, refused = encoded(batch)
    return staged.column(LINE).to_pylist(), [refusal.index for refusal in refused]


def has_nul(value: Any) -> bool:
    return "\\u0000" in json.dumps(value, default=str).replace("\\\\", "")


@pytest.fixture(scope="module")
def connection(postgres_of_session: Server) -> Any:
    postgres_of_session.start()
    columns = ", ".join(f'"{field.name}" {column_type(field)}' for field in SCHEMA)
    with postgres_of_session.connected() as connection:
        connection.execute(f"CREATE TEMP TABLE kinds (number serial, {columns}); SET TimeZone = 'UTC'")
        yield connection


@settings(max_examples=40)
@given(rows=ROWS)
@pytest.mark.postgres
def test_a_server_reads_what_was_written(rows: list[dict[str, Any]], connection: Any) -> None:
    found, refused = lines_of(pa.RecordBatch.from_pylist(rows, SCHEMA))
    kept = [row for row in rows if not any(has_nul(row[name]) for name in ("e", "k", "l"))]
    assert len(kept) == len(found) and len(refused) == len(rows) - len(kept)
    names = ", ".join(f'"{name}"' for name in KINDS)
    connection.execute("DELETE FROM kinds")
    with connection.cursor() as cursor, cursor.copy(f"COPY kinds ({names}) FROM STDIN") as copy:
        copy.write(b"".join(found))
    stored = connection.execute(f"SELECT {names} FROM kinds ORDER BY number").fetchall()
    for row, got in zip(kept, stored, strict=True):
        for name, value in zip(KINDS, got, strict=True):
            wanted = row[name]
            if isinstance(wanted, float) and math.isnan(wanted):
                assert math.isnan(value)
            else:  # the server shows the shortest decimal that gives the same float4
                assert (value if name != "m" or value is None else float(np.float32(value))) == wanted


@given(rows=st.lists(st.lists(st.none() | TEXT.filter(lambda text: "\0" not in text), min_size=3, max_size=3), min_size=1))
def test_lines_can_be_read_back(rows: list[list[str | None]]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [dict(zip("abc", row, strict=True)) for row in rows], pa.schema([(n, pa.string()) for n in "abc"])
    )
    found, refused = lines_of(batch)
    assert not refused and list(map(values, found)) == rows


@pytest.mark.parametrize(
    ("kind", "good", "bad", "message"),
    [
        (pa.string(), "a", "a\0b", "has a NUL character"),
        (pa.list_(pa.string()), ["\\u0000"], ["\0"], "has a NUL character"),
        (pa.map_(pa.string(), pa.string()), [("a", "b")], [("\0", "b")], "has a NUL character"),
        (pa.timestamp("us", "UTC"), 0, 2**62, "outside of the years 1 to 9999"),
        (pa.timestamp("s"), 0, -(2**40), "outside of the years 1 to 9999"),
        (pa.date32(), 0, 2**30, "outside of the years 1 to 9999"),
    ],
)
def test_what_no_column_holds_is_refused_alone(kind: pa.DataType, good: Any, bad: Any, message: str) -> None:
    found = pa.RecordBatch.from_arrays([pa.array([good, bad, None, good], kind)], ["x"])
    staged, (refusal,) = encoded(found)
    assert staged.num_rows == 3 and refusal.index == 1
    assert str(refusal.error).startswith("column 'x' ") and message in str(refusal.error)


def test_text_that_is_not_utf_8_is_refused() -> None:
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"ok"], pa.binary()).buffers())
    assert lines_of(pa.RecordBatch.from_arrays([column], ["x"])) == ([b"ok\n"], [0])


def test_dictionaries_maps_and_half_floats() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["a\t", None, "a\t"]).dictionary_encode(),
            pa.array([[("k", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
            pa.array([1.5, None, 2], pa.float16()),
        ],
        ["x", "y", "z"],
    )
    assert lines_of(batch)[0] == [b'a\\t\t{"k": 1.5}\t1.5\n', b"\\N\t\\N\t\\N\n", b"a\\t\t{}\t2\n"]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.duration("s"), pa.null()])
def test_types_that_postgres_does_not_have_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(TopologyError, match=r"column 'x' is .*, which PostgreSQL does not hold"):
        lines.check(pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("kind", "columns", "others"),
    [
        (pa.int32(), ["int4", "int8", "numeric"], ["int2", "text", "float4"]),
        (pa.uint32(), ["int8"], ["int4"]),
        (pa.float64(), ["float8", "numeric"], ["float4", "int8"]),
        (pa.string(), ["text", "varchar", "uuid", "jsonb"], ["int8", "bytea"]),
        (pa.timestamp("us"), ["timestamp"], ["timestamptz", "date"]),
        (pa.list_(pa.int64()), ["jsonb", "json"], ["text"]),
    ],
)
def test_which_columns_hold_which_values(kind: pa.DataType, columns: list[str], others: list[str]) -> None:
    category = {"text": "S", "varchar": "S", "uuid": "U", "jsonb": "U", "bytea": "U"}
    fits = [name for name in (*columns, *others) if holds(Kind(name, category.get(name, "N")), pa.field("x", kind))]
    assert fits == columns


def test_digits_that_would_be_rounded_do_not_fit() -> None:
    field = pa.field("x", pa.decimal128(10, 2))
    shapes = ((10, 2), (12, 4), (10, 4), (12, 1))
    fits = [(p, s) for p, s in shapes if holds(Kind("numeric", "N", (p << 16 | s) + 4), field)]
    assert fits == [(10, 2), (12, 4)]
    assert not holds(Kind("timestamptz", "D", 3), pa.field("x", pa.timestamp("us", "UTC")))
    assert holds(Kind("timestamptz", "D", 6), pa.field("x", pa.timestamp("us", "UTC")))
