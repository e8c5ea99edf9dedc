"""Files as sources and sinks of runs on Spark."""

from __future__ import annotations

import gzip
import itertools
import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

import springtide as st
from springtide.errors import CheckpointError, RunError

pytest.importorskip("pyspark")

from springtide.connectors.files.declared import FilesSource
from springtide.connectors.files.enumerator import FilesEnumerator
from springtide.connectors.files.options import Options
from springtide.spark.driver.adoption import adopt
from springtide.spark.private.logs import Logs

DOCS = Path(__file__).parents[3] / "docs" / "files.md"


@dataclass(frozen=True)
class Row:
    n: int
    day: str


def same(row: Row) -> Row:
    return row


def write(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"n": n, "day": f"d{n % 2}"}) + "\n" for n in numbers)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def batches(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]


def seen(folder: Path) -> list[int]:
    return sorted(pyarrow.dataset.dataset(folder, partitioning="hive").to_table().column("n").to_pylist())


@pytest.mark.spark
def test_the_read_limit_holds_from_the_first_batch_on(spark: Any, tmp_path: Path) -> None:
    """20 files of 400 records wait; before anything is measured a batch may have 1,000 for each slot."""
    for file in range(20):
        write(tmp_path / "in", f"{file:02}.json" + (".gz" if file % 2 else ""), range(400 * file, 400 * (file + 1)))
    rows = st.source.files(tmp_path / "in", format="json", schema=Row, name="rows")
    out = st.sink.files(tmp_path / "out", partition_by="day", roll_every="1h")
    topology = rows.map(same).to(out).named("files")
    options: Any = {"spark": spark, "runs": tmp_path / "runs", "max_slots": 2}
    result = st.run(
        topology,
        **options,
        checkpoint=tmp_path / "checkpoint",
        available_now=True,
        policy="static",
        target="60s",
        interval="1h",
    )
    lines = batches(result)
    taken = [(line["rows_in"], line["plan"]["read_limit"]) for line in lines]
    assert all(rows <= limit < rows + 400 for rows, limit in taken[:-1]), f"whole files: {taken}"
    read = list(itertools.accumulate(line["rows_in"] for line in lines))
    assert read == [800, 4000, 8000], "whole files within 1,000, and then within four times as many after every batch"
    assert [line["backlog"] for line in lines] == pytest.approx([8000 - rows for rows in read], rel=0.05)
    first = lines[0]["waiting"]["rows"]
    assert (first["records"], first["files"], first["exact"]) == (lines[0]["backlog"], 20 - read[0] // 400, False)
    assert first["bytes"] > 1000
    assert result.summary["latency_ms"] is not None, "the files' times count"
    assert seen(tmp_path / "out") == list(range(8000))
    assert len(list((tmp_path / "out").glob("day=*/*"))) == 2, "one for each value, at the end of the run"
    with pytest.raises(CheckpointError, match=r"belongs to checkpoint .*/checkpoint \(topology 'files'\)"):
        st.run(topology, **options, available_now=True)
    write(tmp_path / "in", "new.json", range(8000, 8005))
    again = st.run(topology, **options, checkpoint=tmp_path / "checkpoint", available_now=True)
    assert again.summary["rows_in"] == 5 and seen(tmp_path / "out") == list(range(8005))


@pytest.mark.spark
@pytest.mark.parametrize("on_data_loss", ["stop", "go on"])
def test_a_broken_file_stops_the_run_or_counts(spark: Any, tmp_path: Path, on_data_loss: str) -> None:
    write(tmp_path / "in", "a.json", range(5))
    write(tmp_path / "in", "b.json.gz", range(5, 500))
    broken = tmp_path / "in" / "b.json.gz"
    broken.write_bytes(broken.read_bytes()[:200])
    rows = st.source.files(tmp_path / "in", format="json", schema=Row, on_data_loss=on_data_loss)
    topology = rows.map(same).to(st.sink.memory("rows")).named("files")
    options: Any = {"spark": spark, "runs": tmp_path / "runs", "max_slots": 1, "available_now": True}
    if on_data_loss == "stop":
        with pytest.raises(RunError, match=r"b\.json\.gz cannot be read to its end"):
            st.run(topology, **options)
        return
    result = st.run(topology, **options)
    assert set(range(5)) <= set(result.table("rows").column("n").to_pylist())
    assert sum(line["rows_lost"] for line in batches(result)) > 0


@pytest.mark.spark
def test_the_example_of_the_page_runs(spark: Any, tmp_path: Path) -> None:
    code = DOCS.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "fares.py").write_text(code)
    (tmp_path / "trips").mkdir()
    trips = [{"id": n, "route": "a", "fare": 5.0 * n, "day": "2024-05-01"} for n in range(6)]
    (tmp_path / "trips" / "1.json").write_text("".join(json.dumps(trip) + "\n" for trip in trips))
    build = runpy.run_path(str(tmp_path / "fares.py"))["build"]
    st.run(build(str(tmp_path)), spark=spark, runs=tmp_path / "runs", checkpoint=tmp_path / "c", available_now=True)
    found = pyarrow.dataset.dataset(tmp_path / "expensive", partitioning="hive").to_table().to_pylist()
    assert sorted(row["id"] for row in found) == [3, 4, 5] and {row["day"] for row in found} == {"2024-05-01"}


# Checkpoints of Spark's own source


def sparks_checkpoint(root: Path, batch: int) -> Logs:
    """Spark's file source read a file in each batch; the log is compacted in batch 1."""
    logs = Logs(root / "spark")
    entries = [
        {"path": (root / "in" / f"{n} é.json").as_uri(), "timestamp": (n + 1) * 1000, "batchId": n} for n in range(batch + 1)
    ]
    for number in range(batch + 1):
        write(root / "in", f"{number} é.json", range(10 * number, 10 * (number + 1)))
        offsets, source = root / "spark" / "offsets", root / "spark" / "sources" / "0"
        for folder in (offsets, source):
            folder.mkdir(parents=True, exist_ok=True)
        (offsets / str(number)).write_text(f'v1\n{{"batchTimestampMs":{number}}}\n{{"logOffset":{number}}}')
        held = entries[: number + 1] if number == 1 else [entries[number]]
        name = f"{number}.compact" if number == 1 else str(number)
        (source / name).write_text("\n".join(["v1", *map(json.dumps, held)]))
    return logs


def test_what_spark_has_read_is_not_read_again(tmp_path: Path) -> None:
    """The last batch was planned by Spark, and has not run: it reads what Spark planned."""
    logs = sparks_checkpoint(tmp_path, 3)
    write(tmp_path / "in", "new.json", range(100, 110))
    source = FilesSource(str(tmp_path / "in"), "json", Options()).stored_in(tmp_path / "list")
    for _ in range(2):  # it is the same once more
        enumerator = source.enumerator(source.begin())
        assert adopt(enumerator, logs, 0, 3)
    since, until = {"logOffset": 2}, {"logOffset": 3}
    enumerator.check(until)
    assert read(source, enumerator, since, until) == list(range(30, 40))
    assert enumerator.count(since, until) == 10
    end = source.enumerator(source.begin()).end(until)
    enumerator.check(end)
    assert read(source, enumerator, until, end) == list(range(100, 110))
    assert read(source, enumerator, {"logOffset": 2}, end) == [*range(30, 40), *range(100, 110)]


def read(source: FilesSource, enumerator: FilesEnumerator, since: Any, until: Any) -> list[int]:
    import pyarrow as pa

    reader = source.in_tasks().reader(pa.schema([("n", pa.int64())]), None)
    parts = enumerator.ranges(since, until, 2)
    return [row["n"] for part in parts for records in reader.read(part) for row in records.values.to_pylist()]  # type: ignore[union-attr]
