"""Spark's logs as Spark writes and reads them: how lines are split, and both versions of the log of offsets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import springtide as st
from springtide.errors import CheckpointError, DamageError

pytest.importorskip("pyspark")

from spark.driver.test_agreement import agreed
from springtide.spark.driver.agreement import Mending, mendings_of, refusal_of
from springtide.spark.driver.begun import Begun
from springtide.spark.private.logs import COMMIT, Logs, are_offsets, is_commit, log_offsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795034774470,"conf":{"spark.sql.shuffle.partitions":"200"}'
V2 = f'v2\n{METADATA},"sourceMetadataInfo":{{}}}}\n1:{{"logOffset":1}}\n0:{{"logOffset":4}}\n3:{{"next":40}}'
"""Of four sources, as Spark 4.3 writes it: in any order, and without a line for source 2, which has no offset yet."""


def written(folder: Path, offsets: str) -> Logs:
    """The logs of a checkpoint whose batch 7 was begun."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    (folder / "offsets" / "7").write_bytes(offsets.encode())
    return Logs(folder)


# Lines

NO_LINE_ENDS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
"""``str.splitlines`` takes them for line ends, and Java's readers do not."""


@pytest.mark.parametrize("mark", NO_LINE_ENDS, ids=ascii)
def test_what_is_no_line_end_for_spark_is_none(tmp_path: Path, mark: str) -> None:
    """A source's offset may hold it as it is, and JSON all but control characters."""
    conf = "" if mark < " " else mark
    text = f'v1\n{{"batchTimestampMs":5,"conf":{{"a":"x{conf}y"}}}}\ntopic{mark}0\n{{"logOffset":3}}'
    logs = written(tmp_path, text)
    assert are_offsets(text) and log_offsets(text) == {0: None, 1: 3}
    assert logs.batch_time(7) == 5_000
    logs.begin_after(7, 6)
    begun = (logs.text("offsets", 8) or "").split("\n")
    assert json.loads(begun[1]) == {"batchTimestampMs": 6, "conf": {"a": f"x{conf}y"}}
    assert begun[2:] == [f"topic{mark}0", '{"logOffset":3}']
    assert is_commit(f'v1\n{{"nextBatchWatermarkMs":0,"of":"{conf}"}}')


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"], ids=ascii)
def test_what_is_a_line_end_for_spark_is_one(tmp_path: Path, end: str) -> None:
    text = end.join(["v1", '{"batchTimestampMs":5}', "-", '{"logOffset":3}'])
    assert are_offsets(text) and log_offsets(text) == log_offsets(text + end) == {0: None, 1: 3}
    assert written(tmp_path, text).batch_time(7) == 5_000
    assert is_commit(COMMIT.replace("\n", end)) and is_commit(COMMIT.replace("\n", end) + end)
    assert not are_offsets(text.replace(":3}", f":{end}3}}")), "JSON may break there, and a line of a log does not"


# Version 2


def test_offsets_of_version_2_are_found_by_the_number_of_their_source(tmp_path: Path) -> None:
    logs = written(tmp_path, V2)
    for name in ("0/2.compact", "0/3", "0/4", "0/5", "1/0", "1/1", "1/2", "2/0", "3/0", "3/1"):
        (tmp_path / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sources" / name).write_text(name)
    assert are_offsets(V2) and log_offsets(V2) == {0: 4, 1: 1, 3: None}
    first = logs.settled(V2, {})
    assert set(first) == {"0/2.compact", "0/3", "0/4", "1/0", "1/1", "3/0"}
    later = V2.replace('"logOffset":1', '"logOffset":2').replace('"logOffset":4', '"logOffset":5')
    assert set(logs.settled(later, first)) == {*first, "0/5", "1/2"}


def test_a_closing_batch_of_version_2_has_the_same_offsets(tmp_path: Path) -> None:
    logs = written(tmp_path, V2)
    logs.begin_after(7, 1795034774480)
    assert logs.text("offsets", 8) == V2.replace("4470", "4480")
    assert logs.batch_time(8) == 1795034774480_000


@pytest.mark.parametrize(
    "damaged",
    [
        V2.replace("1:{", "{"),
        V2.replace("1:{", "0:{"),
        V2.replace("1:{", ":{"),
        V2.replace("1:{", "1:{{"),
        V2.replace("v2", "v1").replace("{", "", 2),
        V2.replace("v2", "v3"),
        V2.split("\n1:")[0],
    ],
)
def test_damaged_offsets_of_version_2_are_not_readable(damaged: str) -> None:
    assert not are_offsets(damaged)


def test_planned_entries_of_sources_in_version_2_are_removed_and_others_are_not() -> None:
    """Batch 8 is planned anew, with the files that its sources listed for it; what a source of another kind has is retained."""
    found = agreed(7)
    planned = V2.replace('"logOffset":1', '"logOffset":2')
    entries = dict.fromkeys(("0/4", "0/5", "1/1", "1/2", "2/0", "3/0", "3/1"))
    found = replace(found, recorded={7: V2}, logs={}, begun=Begun(7, 1, V2), entries=entries)
    found = replace(found, offsets={6: "", 7: V2, 8: planned})
    assert refusal_of(found) is None
    removed = [Mending(f"spark/{name}", None, None) for name in ("offsets/8", "sources/0/5", "sources/1/2")]
    assert mendings_of(found) == removed


def test_sources_that_spark_knows_by_name_are_refused(tmp_path: Path) -> None:
    named = V2.replace("\n1:", "\norders:")
    with pytest.raises(CheckpointError, match=r"leave out spark\.sql\.streaming\.queryEvolution\.enableSourceEvolution, and"):
        written(tmp_path, named).settled(named, {})
    assert not are_offsets(named)


# On Spark


@dataclass(frozen=True)
class Number:
    n: int


def having_set(name: str, value: str, source: str | None, folder: Path) -> Callable[[Any], Any]:
    """A source that changes a setting of the run's session before the query starts."""

    def frame(session: Any) -> Any:
        session.conf.set(name, value)
        reader = session.readStream.schema("n bigint").format("parquet")
        return (reader if source is None else reader.name(source)).load(str(folder))

    return frame


def files(root: Path) -> list[Path]:
    folders = [root / f"in{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
        for part in range(3):
            pq.write_table(pa.table({"n": pa.array(range(5 * part, 5 * part + 5), pa.int64())}), folder / f"{part}.parquet")
    return folders


def reading(folder: Path) -> Callable[[Any], Any]:
    """Spark's own source of files."""
    return lambda session: session.readStream.schema("n bigint not null").option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.spark
def test_the_logs_of_sources_are_checked_with_offsets_of_version_2(spark: Any, tmp_path: Path) -> None:
    *plain, last = files(tmp_path)
    frame = having_set("spark.sql.streaming.offsetLog.formatVersion", "2", None, last)
    numbers = st.source.dataframe(frame, schema=Number)
    for folder in plain:
        numbers = numbers.union(st.source.dataframe(reading(folder), schema=Number, name=folder.name))
    topology, checkpoint = numbers.to(st.sink.memory("rows")).named("numbers"), tmp_path / "checkpoint"

    def run() -> list[int]:
        result = st.run(
            topology, spark=spark, runs=tmp_path / "runs", checkpoint=checkpoint, policy="static", max_slots=2,
            available_now=True,
        )  # fmt: skip
        return sorted(result.table("rows").column("n").to_pylist()) if result.summary["rows_in"] else []

    assert run() == sorted(list(range(15)) * 4)
    logs, manifest = Logs(checkpoint / "spark"), max((checkpoint / "springtide" / "manifests").iterdir())
    assert (logs.text("offsets", 0) or "").startswith("v2\n")
    entries = set(json.loads(manifest.read_text())["logs"])
    assert entries == {entry.name for entry in logs.all_entries()} and len(entries) >= 3 * 3 + 1
    assert run() == []
    damaged = logs.folder / "sources" / "1" / "1"
    damaged.write_text(damaged.read_text().replace("/in", "/on"))
    with pytest.raises(DamageError, match=f"{damaged} was changed since batch"):
        run()


@pytest.mark.spark
def test_a_query_whose_sources_have_names_is_refused_before_anything_is_committed(spark: Any, tmp_path: Path) -> None:
    frame = having_set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true", "orders", files(tmp_path)[0])
    topology = st.source.dataframe(frame, schema=Number).to(st.sink.memory("rows")).named("numbers")
    with pytest.raises(CheckpointError, match="Spark's log of offsets names the sources of this query"):
        st.run(topology, spark=spark, runs=tmp_path / "runs", checkpoint=tmp_path / "checkpoint", available_now=True)
    assert not list((tmp_path / "checkpoint" / "springtide" / "manifests").glob("*.json"))


@pytest.mark.spark
@pytest.mark.parametrize("mark", [*NO_LINE_ENDS, "\n", "\r", "\r\n"], ids=ascii)
def test_lines_are_those_that_spark_reads(spark: Any, mark: str) -> None:
    jvm = spark.sparkContext._jvm
    text = f'v1\n{{"batchTimestampMs":5}}\ntopic{mark}0\n'
    stream = jvm.java.io.ByteArrayInputStream(bytearray(text.encode()))
    lines = jvm.scala.io.Source.fromInputStream(stream, "UTF-8").getLines()
    count = 0
    while lines.hasNext():
        lines.next()
        count += 1
    assert len(log_offsets(text)) == count - 2
