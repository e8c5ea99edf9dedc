"""A record that a sink cannot write is a dead letter of that sink; the other records are written."""

from __future__ import annotations

import csv
import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as some

import springtide as st
from springtide.errors import RecordError, TopologyError

pytest.importorskip("pyspark")

from springtide.spark.task import encoding
from springtide.spark.task.encoding import encoded
from springtide.spark.task.letters import dead_letter

TOO_LATE = 2**62
"""Microseconds since 1970: the year 148,108."""


def of_text(values: list[bytes]) -> pa.Array:
    """A column of text that nobody has checked, as Spark's may be."""
    validity, offsets, content = pa.array(values, pa.binary()).buffers()
    return pa.Array.from_buffers(pa.string(), len(values), [validity, offsets, content])


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


@pytest.mark.parametrize(
    ("column", "format", "message"),
    [
        (pa.array([b"a", b"\xff", b"c"]), "csv", "Invalid UTF8 payload"),
        (of_text([b"a", b"\xff", b"c"]), "csv", "Invalid UTF8 sequence"),
        (of_text([b"a", b"\xff", b"c"]), "json", "can't decode byte 0xff"),
        (pa.array([0, TOO_LATE, 1], pa.timestamp("us")), "csv", "CSV holds the years 1 to 9999, got 4611686018427387904 as"),
        (pa.array([0, TOO_LATE, 1], pa.timestamp("us", "UTC")), "csv", "CSV holds the years 1 to 9999"),
        (pa.array([0, -TOO_LATE, 1], pa.timestamp("us", "UTC")), "json", "out of range"),
        (pa.array([0, 2**30, 1], pa.int32()).cast(pa.date32()), "csv", "got 1073741824 as date32"),
        (pa.array([0, 2**30, 1], pa.int32()).cast(pa.date32()), "json", "must have magnitude"),
    ],
)
def test_a_record_that_a_format_cannot_represent_is_refused_and_reported(column: pa.Array, format: str, message: str) -> None:
    content = encoded(table(n=[0, 1, 2], value=column), format)
    (refusal,) = content.refused
    assert refusal.record["n"] == 1 and message in str(refusal.error)
    assert content.rows == 2
    letter = dead_letter("out", refusal.record, refusal.error)
    assert json.loads(letter.record)["n"] == 1
    assert b"out of range" not in bytes(content.content)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_what_a_format_can_hold_is_written_at_once(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the calendar, no number, and text of other scripts."""
    first, last = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
    times = [first, last, None]
    days = [first.date(), last.date(), None]
    rows = table(
        day=pa.array(days, pa.date32()), at=pa.array(times, pa.timestamp("us")), utc=pa.array(times, pa.timestamp("us", "UTC")),
        value=[float("nan"), float("inf"), None], text=["é", "雨", '"'], raw=[b"plain", b"", None],
    )  # fmt: skip
    calls, encode = [], encoding.encode

    def counted(given: pa.Table, format: str) -> bytes | pa.Buffer:
        calls.append(format)
        return encode(given, format)

    monkeypatch.setattr(encoding, "encode", counted)
    content = encoded(rows, format)
    assert (content.rows, content.refused, calls) == (3, (), [format])


@given(some.lists(some.booleans(), max_size=60))
def test_exactly_the_records_that_fail_are_refused_in_their_order(bad: list[bool]) -> None:
    rows = table(n=pa.array(range(len(bad)), pa.int64()), raw=pa.array([b"\xff" if one else b"a" for one in bad], pa.binary()))
    content = encoded(rows, "csv")
    assert [refusal.record["n"] for refusal in content.refused] == [n for n, one in enumerate(bad) if one]
    assert content.rows == len(bad) - sum(bad)
    lines = bytes(content.content).decode().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == [n for n, one in enumerate(bad) if not one]


def test_what_fails_for_all_together_and_for_none_alone_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(given: pa.Table, format: str) -> bytes:
        if given.num_rows > 2:
            raise pa.ArrowCapacityError("too much at once")
        return b""

    monkeypatch.setattr(encoding, "encode", small)
    with pytest.raises(pa.ArrowCapacityError, match="too much at once"):
        encoded(table(n=[1, 2, 3, 4]), "parquet")


def test_want_of_memory_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(given: pa.Table, format: str) -> bytes:
        raise MemoryError("none left")

    monkeypatch.setattr(encoding, "encode", full)
    with pytest.raises(MemoryError, match="none left"):
        encoded(table(n=[1]), "csv")


# On Spark


@dataclass(frozen=True)
class Blob:
    n: int
    content: bytes


@dataclass(frozen=True)
class Nested:
    n: int
    parts: list[int]


def blob(draw: st.Draw) -> Blob:
    return Blob(draw.index, b"\xff\xfe" if draw.index % 9 == 4 else b"plain")


def nested(draw: st.Draw) -> Nested:
    return Nested(draw.index, [])


@pytest.mark.spark
def test_bytes_that_are_no_utf8_are_dead_letters_of_the_csv_sink_and_of_no_other(spark: Any, tmp_path: Path) -> None:
    blobs = st.source.generate(blob, rate=1e6, limit=90)
    topology = st.topology(
        "bytes",
        blobs.to(st.sink.files(tmp_path / "csv", format="csv"), name="table"),
        blobs.to(st.sink.files(tmp_path / "parquet"), name="whole"),
    )
    result = run(topology, spark, tmp_path)
    bad = list(range(4, 90, 9))
    rows = [row for file in (tmp_path / "csv").glob("*.csv") for row in csv.DictReader(file.read_text().splitlines())]
    assert sorted(int(row["n"]) for row in rows) == [n for n in range(90) if n not in bad]
    assert {row["content"] for row in rows} == {"plain"}
    whole = [n for file in (tmp_path / "parquet").glob("*") if file.is_file() for n in numbers_in(file)]
    assert sorted(whole) == list(range(90))
    dead = [file.read_text() for file in (tmp_path / "checkpoint" / "springtide" / "dead").glob("*.json")]
    letters = [json.loads(line) for text in dead for line in text.splitlines()]
    assert sorted(json.loads(letter["record"])["n"] for letter in letters) == bad
    assert {(letter["operator"], letter["error"]) for letter in letters} == {("table", "ArrowInvalid: Invalid UTF8 payload")}
    assert (result.summary["rows_failed"], result.summary["sinks"]) == (10, {"table": 80, "whole": 90})
    reports = [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]
    tasks = [task for report in reports for task in report["tasks"] if task["operator"] == "table"]
    assert [sum(task[of] for task in tasks) for of in ("rows_in", "rows_out", "failures")] == [90, 80, 10]


@pytest.mark.spark
def test_a_sink_that_is_told_to_stop_names_the_record_that_it_cannot_write(spark: Any, tmp_path: Path) -> None:
    sink = st.sink.files(tmp_path / "csv", format="csv")
    topology = st.source.generate(blob, rate=1e6, limit=90).to(sink, name="table", on_error="stop").named("stops")
    with pytest.raises(
        RecordError, match=r"operator 'table' failed with ArrowInvalid: Invalid UTF8 payload on the record .*\"n\""
    ):
        run(topology, spark, tmp_path)
    assert not list((tmp_path / "csv").glob("*.csv"))


def test_columns_that_csv_cannot_hold_at_all_are_refused_when_the_topology_is_built(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="CSV cannot hold column 'parts'"):
        st.source.generate(nested, rate=1).to(st.sink.files(tmp_path, format="csv")).named("nested")


def numbers_in(file: Path) -> list[int]:
    numbers: list[int] = pyarrow.parquet.read_table(file).column("n").to_pylist()
    return numbers


def run(topology: st.Topology, spark: Any, tmp_path: Path) -> st.Result:
    return st.run(
        topology, spark=spark, checkpoint=tmp_path / "checkpoint", runs=tmp_path / "runs", policy="static", max_slots=2
    )
