"""How files are read: formats, compression, parts of files, broken records, and files that are not what they were."""

from __future__ import annotations

import bz2
import csv
import datetime
import decimal
import gzip
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as strategies

from connectors.files.folders import Place, lines, numbers, rows
from springtide.connectors.files import lines as lines_module
from springtide.connectors.files import positions
from springtide.errors import OptionError, RunError

MIXED = pa.schema([
    pa.field("n", pa.int64(), nullable=False), ("x", pa.float64()), ("s", pa.string()), ("b", pa.bool_()),
    ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32()),
])  # fmt: skip
DEEP = pa.schema([
    pa.field("n", pa.int64(), nullable=False), ("tags", pa.list_(pa.string())), ("d", pa.decimal128(10, 2)),
    ("m", pa.map_(pa.string(), pa.int64())), ("p", pa.struct([("x", pa.int64())])), ("raw", pa.binary()),
])  # fmt: skip
TEXT = strategies.text(strategies.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)


def test_json_lines_are_read_into_columns(tmp_path: Path) -> None:
    place = Place(tmp_path, schema=MIXED)
    place.write("a.json", '{"n": 1, "x": 2, "s": "é", "b": true, "at": "2024-05-01T12:00:00+02:00", "day": "2024-05-01"}\n'
                          '{"n": 2}\r\n{"n": 3, "at": "2024-05-01 10:00:00"}')  # fmt: skip
    read = place.everything()
    assert all(isinstance(records.values, pa.RecordBatch) and records.values.schema == MIXED for records in read)
    noon = datetime.datetime(2024, 5, 1, 10, tzinfo=datetime.UTC)
    first = {"n": 1, "x": 2.0, "s": "é", "b": True, "at": noon, "day": datetime.date(2024, 5, 1)}
    assert rows(read) == [first, dict.fromkeys(MIXED.names) | {"n": 2}, dict.fromkeys(MIXED.names) | {"n": 3, "at": noon}]
    assert [number for records in read if records.numbers is not None for number in records.numbers] == [1, 2, 3]


def test_nested_json_is_read(tmp_path: Path) -> None:
    """Leading nulls in lists, which Arrow's own parser misplaces, among it."""
    place = Place(tmp_path, schema=DEEP)
    place.write(
        "a.json", '{"n": 1, "tags": [null, "a"], "d": 1.25, "m": {"k": 2}, "p": {"x": 3, "y": 4}, "raw": "aGk="}\n{"n": 2}\n'
    )
    deep = {"n": 1, "tags": [None, "a"], "d": decimal.Decimal("1.25"), "m": [("k", 2)], "p": {"x": 3}, "raw": b"hi"}
    assert rows(place.everything()) == [deep, dict.fromkeys(DEEP.names) | {"n": 2}]


BROKEN = ["null", "5", "[1]", '{"n": "a"}', '{"n": 1', '{"n": 1.5}', "{}", '{"n": null}', '{"n": 99999999999999999999}',
          '{"n": 1} {"n": 2}', "\xff", '{"n": NaN}', '{"n": true}']  # fmt: skip


@given(strategies.lists(strategies.one_of(strategies.integers(0, 99), strategies.sampled_from(BROKEN)), max_size=12))
def test_a_line_that_does_not_parse_is_rejected_alone(content: list[int | str]) -> None:
    """``null`` among them, as the first line too: there Arrow's own parser ends the process."""
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root))
        place.write(
            "a.json", "\n".join(one if isinstance(one, str) else f'{{"n": {one}}}' for one in content).encode("latin-1")
        )
        read = place.everything()
        assert numbers(read) == [one for one in content if isinstance(one, int)]
        places = [dict(one.place) for records in read for one in records.rejected]
        assert places == [{"file": "a.json", "line": at} for at, one in enumerate(content, 1) if isinstance(one, str)]


@given(
    strategies.lists(strategies.tuples(strategies.integers(-99, 99), strategies.floats(allow_nan=False), TEXT), min_size=1),
    strategies.integers(1, 60), strategies.sampled_from(["json", "csv"]),
)  # fmt: skip
def test_lines_are_read_as_python_reads_them(content: list[tuple[int, float, str]], block: int, format: str) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("x", pa.float64()), ("s", pa.string())])
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK_BYTES", block)
        place = Place(Path(root), format, schema)
        if format == "json":
            text = "".join(json.dumps({"n": n, "x": x, "s": s}) + "\n" for n, x, s in content)
        else:
            held = io.StringIO()
            csv.writer(held, lineterminator="\n").writerows(content)
            text = held.getvalue()
        place.write(f"a.{format}", text)
        read = place.everything()
        empty = "" if format == "json" else None
        assert [tuple(row.values()) for row in rows(read)] == [(n, x, s or empty) for n, x, s in content]
        assert np.concatenate([one.numbers for one in read if one.numbers is not None]).tolist() == [
            *range(1, len(content) + 1)
        ]


def test_csv_with_and_without_a_header(tmp_path: Path) -> None:
    place = Place(tmp_path, "csv", MIXED, {"options": {"header": "true", "sep": ";"}})
    place.write("a.csv", "s;n;more;x;b;at;day\n\"a;\"\"b\";1;0;;true;2024-05-01T12:00:00;2024-05-01\n"
                         "\"\";2;0;1.5;;2024-05-01T12:00:00+02:00;\n\nc;x;0;;;;\nd;4;0\n;5;0;;;;\n")  # fmt: skip
    read = place.everything()
    assert [(row["n"], row["s"], row["x"]) for row in rows(read)] == [(1, 'a;"b', None), (2, "", 1.5), (5, None, None)]
    assert [row["at"].hour for row in rows(read)[:2]] == [12, 10]
    assert [(one.place["line"], one.raw) for records in read for one in records.rejected] == [(5, b"c;x;0;;;;"), (6, b"d;4;0")]
    plain = Place(tmp_path / "plain", "csv", given={"options": {"nullValue": "-"}})
    plain.write("a.csv", "1\n-\n3\n")
    read = plain.everything()
    assert numbers(read) == [1, 3] and read[0].rejected[0].place == {"file": "a.csv", "line": 2}


def test_a_header_without_a_column_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, "csv", given={"options": {"header": "true"}})
    place.write("a.csv", "m\n1\n")
    with pytest.raises(RunError, match=r"a\.csv: its header has no column 'n'; it has 'm'"):
        place.everything()


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda text: pa.compress(text, "zstd", asbytes=True),
}


@pytest.mark.parametrize("end", COMPRESSED)
def test_compressed_lines_are_read(tmp_path: Path, end: str) -> None:
    place = Place(tmp_path)
    place.write(f"a.json.{end}", COMPRESSED[end](lines(range(30_000)).encode()))
    enumerator = place.enumerator()
    last = enumerator.end(enumerator.first())
    assert place.between(enumerator, enumerator.first(), last, 4) == list(range(30_000))
    waits = enumerator.waiting(enumerator.first(), last)
    assert waits.records is not None and waits.files == 1
    assert waits.records == pytest.approx(30_000, rel=0.3)


def test_a_truncated_compressed_file_stops_or_counts(tmp_path: Path) -> None:
    for lenient in (False, True):
        place = Place(tmp_path / str(lenient), given={"on_data_loss": "go on" if lenient else "stop"})
        place.write("a.json.gz", gzip.compress(lines(range(1000)).encode())[:-200])
        if not lenient:
            with pytest.raises(RunError, match=r"a\.json\.gz cannot be read to its end .* on_data_loss=\"go on\""):
                place.everything()
        else:
            assert sum(records.lost for records in place.everything()) > 0


@given(strategies.lists(strategies.integers(0, 10**12), min_size=1, max_size=60), strategies.integers(1, 6),
       strategies.integers(1, 30))  # fmt: skip
def test_the_parts_of_a_file_of_lines_have_every_line_once(values: list[int], tasks: int, least: int) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "MIN_CUT_BYTES", least)
        patch.setattr(lines_module, "BLOCK_BYTES", 7)
        place = Place(Path(root))
        place.write("a.json", lines(values).rstrip("\n"))
        assert numbers(place.everything(tasks)) == values


def test_a_broken_line_in_the_middle_of_a_file_has_its_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MIN_CUT_BYTES", 10)
    place = Place(tmp_path)
    text = lines(range(20)) + "broken\n" + lines(range(20))
    place.write("a.json", text)
    (rejected,) = [one for records in place.everything(tasks=4) for one in records.rejected]
    assert rejected.place == {"file": "a.json", "byte": text.index("broken")} and rejected.raw == b"broken"


# Parquet


def parquet(place: Place, name: str, table: pa.Table, **options: Any) -> Path:
    place.folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, place.folder / name, **options)
    os.utime(place.folder / name, (1_000, 1_000))
    return place.folder / name


def test_parquet_is_cut_by_row_groups(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    parquet(place, "a.parquet", pa.table({"n": range(100), "more": ["x"] * 100}), row_group_size=10)
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    until = enumerator.limited(enumerator.first(), end, 34)
    assert until["at"] == 3 and enumerator.count(until, end) == 70
    parts = enumerator.ranges(until, end, 3)
    assert len(parts) == 3
    read = place.read(parts)
    assert numbers(read) == list(range(30, 100))
    assert np.concatenate([one.numbers for one in read if one.numbers is not None]).tolist() == list(range(30, 100))


def test_parquet_columns_are_cast_and_missing_ones_are_null(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("x", pa.float64())])
    place = Place(tmp_path, "parquet", schema)
    parquet(place, "a.parquet", pa.table({"n": pa.array([1, None, 3], pa.int32())}))
    read = place.everything()
    assert rows(read) == [{"n": 1, "x": None}, {"n": 3, "x": None}]
    assert [dict(one.place) for one in read[0].rejected] == [{"file": "a.parquet", "row": 1}]


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (pa.table({"m": [1]}), r"a\.parquet has no column 'n', which schema= has; it has 'm'"),
        (pa.table({"n": ["x"]}), r"a\.parquet: column 'n' cannot be read as int64"),
    ],
)
def test_parquet_of_another_schema_is_refused(tmp_path: Path, table: pa.Table, match: str) -> None:
    place = Place(tmp_path, "parquet")
    parquet(place, "a.parquet", table)
    with pytest.raises(RunError, match=match):
        place.everything()


def test_a_broken_parquet_file_stops_or_counts(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    file = parquet(place, "a.parquet", pa.table({"n": range(1000)}))
    file.write_bytes(file.read_bytes()[:100])
    os.utime(file, (1_000, 1_000))
    with pytest.raises(RunError, match=r"a\.parquet is no whole Parquet file"):
        place.everything()
    place.given = {"on_data_loss": "go on"}
    assert [records.lost for records in place.everything()] == [1]


# Files that are not what they were


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("harm", ["vanishes", "grows", "is written again"])
def test_a_file_that_is_not_as_it_was_listed(tmp_path: Path, harm: str, lenient: bool) -> None:
    place = Place(tmp_path, given={"on_data_loss": "go on" if lenient else "stop"})
    file = place.write("a.json", lines(range(5)))
    enumerator = place.enumerator()
    parts = enumerator.ranges(enumerator.first(), enumerator.end(enumerator.first()), 1)
    if harm == "vanishes":
        file.unlink()
    else:
        place.write("a.json", lines(range(6 if harm == "grows" else 5)), at=2_000)
    if lenient:
        assert [(len(records), records.lost) for records in place.read(parts)] == [(0, 5)]
        return
    with pytest.raises(
        RunError, match=r"a\.json (vanished before it was read|changed after it was listed).* Put the file back"
    ):
        place.read(parts)


# Columns beside the records


def test_columns_of_the_path_are_columns_of_the_records(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("route", pa.string())])
    for format in ("json", "csv", "parquet"):
        place = Place(tmp_path / format, format, schema)
        name = f"day=2024-05-01/route=A%2FB/a.{format}"
        if format == "parquet":
            (place.folder / name).parent.mkdir(parents=True)
            parquet(place, name, pa.table({"n": [1]}))
        else:
            place.write(name, '{"n": 1}\n' if format == "json" else "1\n")
        assert rows(place.everything()) == [{"n": 1, "day": datetime.date(2024, 5, 1), "route": "A/B"}]


def test_creation_times_are_those_of_a_column_or_of_the_file(tmp_path: Path) -> None:
    place = Place(tmp_path, schema=MIXED)
    place.write("a.json", '{"n": 1, "at": "1970-01-01T00:00:05"}\n{"n": 2}\n', at=7)
    (records,) = place.everything()
    assert records.created is not None and records.created.tolist() == [7_000_000, 7_000_000]
    place.given = {"created": "at"}
    (records,) = place.everything()
    assert records.created is not None and records.created.tolist() == [5_000_000, 7_000_000], "the file's, if there is none"


def test_text_in_another_encoding(tmp_path: Path) -> None:
    place = Place(tmp_path, "csv", pa.schema([("s", pa.string())]), {"options": {"encoding": "ISO-8859-1"}})
    place.write("a.csv", "é\n".encode("latin-1"))
    assert rows(place.everything()) == [{"s": "é"}]
    with_mark = Place(tmp_path / "mark")
    with_mark.write("a.json", b"\xef\xbb\xbf" + lines([1]).encode())
    assert numbers(with_mark.everything()) == [1]


@pytest.mark.parametrize(
    ("format", "given", "match"),
    [
        ("csv", {"mode": "FAILFAST"}, "'mode' .* dead letters"),
        ("csv", {"timestampFormat": "x"}, "convert it in a map"),
        ("csv", {"multiLine": "true"}, "a record is a line; .*st.source.dataframe"),
        ("csv", {"header": "yes"}, "true or false"),
        ("csv", {"sep": "||"}, "one ASCII character"),
        ("csv", {"heder": "true"}, "did you mean 'header'"),
        ("json", {"encoding": "utf-16"}, "encoding='utf-16' is not supported"),
        ("json", {"maxFilesPerTrigger": "1"}, "max_files="),
        ("parquet", {"header": "true"}, "not supported"),
    ],
)
def test_options_of_sparks_reader_are_refused_with_a_replacement(
    tmp_path: Path, format: str, given: dict[str, str], match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        _ = Place(tmp_path, format, given={"options": given}).source


def test_options_that_say_what_is_done_anyway(tmp_path: Path) -> None:
    place = Place(tmp_path, given={"options": {"recursiveFileLookup": "true", "pathGlobFilter": "*.json"}})
    place.write("sub/a.json", lines([1]))
    place.write("sub/a.txt", lines([2]))
    assert numbers(place.everything()) == [1]


# Object stores


def test_an_object_store(s3: Any, tmp_path: Path) -> None:
    assert Place(tmp_path / "none", uri="s3://bucket/none").everything() == [], "a store has no empty folders"
    with s3.open_output_stream("bucket/in/day=1/a.json.gz", compression=None) as stream:
        stream.write(gzip.compress(lines(range(100)).encode()))
    place = Place(tmp_path, uri="s3://bucket/in")
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    assert enumerator.waiting(enumerator.first(), end).records == 100
    assert place.between(enumerator, enumerator.first(), end, 2) == list(range(100))
    with s3.open_output_stream("bucket/in/b.json") as stream:
        stream.write(lines([7, 8]).encode())
    after = enumerator.end(end)
    assert place.between(enumerator, end, after, 2) == [7, 8]
    assert "hush" not in repr(place.source)
