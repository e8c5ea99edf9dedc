"""Topologies on real Spark, end to end: operators, sources, sinks, failures, restarts and reports."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from crash.job import fixed_limit
from springtide.errors import CheckpointError, OptionError, RecordError, RunError, SetupError, SpringtideError
from springtide.record.folder import RunFolder
from springtide.record.summary import summarise

pytest.importorskip("pyspark")

FAST = 1_000_000.0
"""Records/s: all that there will be are there when the query starts."""


@dataclass(frozen=True)
class Number:
    n: int
    k: str


@dataclass(frozen=True)
class Word:
    text: str
    weight: float | None


def number(draw: st.Draw) -> Number:
    return Number(draw.index, f"k{draw.index % 7}")


def word(draw: st.Draw) -> Word:
    return Word(f"w{draw.index}", None if draw.index % 2 else 0.5)


def numbers(limit: int, rate: float = FAST, name: str = "source") -> st.Stream:
    return st.source.generate(number, rate=rate, limit=limit, name=name)


def same(one: Number) -> Number:
    return one


def slow(one: Number) -> Number:
    time.sleep(0.001)
    return one


def tardy(one: Number) -> Number:
    time.sleep(0.005)
    return one


def odd(one: Number) -> bool:
    return one.n % 2 == 1


def twice(one: Number) -> Iterator[Number]:
    yield one
    yield Number(-one.n, one.k)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "n", pa.array([2 * n for n in batch.column("n").to_pylist()], pa.int64()))


def seventh(one: Number) -> Number:
    if one.n % 7 == 0:
        raise ValueError(f"no {one.n}")
    return one


@dataclass(frozen=True)
class Counted:
    """Writes down every call."""

    path: str

    def __call__(self, one: Number) -> Number:
        with open(self.path, "a") as file:
            file.write(f"{one.n}\n")
        return one


def run(topology: st.Topology, spark: Any, tmp_path: Path, **options: Any) -> st.Result:
    return st.run(topology, **{"spark": spark, "runs": tmp_path / "runs", "max_slots": 4, "policy": "static", **options})


def lines(result: st.Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.folder / "batches.jsonl").read_text().splitlines()]


def kept(result: st.Result, sink: str, column: str = "n") -> list[Any]:
    return sorted(result.table(sink).column(column).to_pylist())


def read(folder: Path) -> list[dict[str, Any]]:
    """What is visible in the folder of a files sink, of any format."""
    rows: list[dict[str, Any]] = []
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        if file.suffix == ".parquet":
            rows += pyarrow.parquet.read_table(file).to_pylist()
        elif file.suffix == ".csv":
            with file.open(newline="") as opened:
                rows += csv.DictReader(opened)
        else:
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return rows


# Operators


@pytest.mark.spark
def test_the_end_of_a_run_does_not_read_what_its_batches_wrote(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary and the plot come from what was added up on the way, and say the same as the file."""
    monkeypatch.setattr("springtide.running.execution.ReadLimit", fixed_limit(40))
    for name in ("batches", "each_batch"):
        monkeypatch.setattr(RunFolder, name, lambda *_: pytest.fail("the batches were read"), raising=False)
    topology = numbers(200).map(same, grouping="round-robin").to(st.sink.memory("out")).named("numbers")
    result = run(topology, spark, tmp_path, settings={"degree": 2}, target="5s")
    monkeypatch.undo()
    told = RunFolder.open(result.folder).batches()
    assert len(told) == result.summary["batches"] >= 5
    assert result.summary["rows_in"] == result.summary["rows_out"] == sum(one.rows_in for one in told) == 200
    again = summarise(topology, "static", "tide", told, str(result.folder))
    assert {name: result.summary[name] for name in again} == again
    assert [plot.name for plot in result.plots] == ["run.png"]


@pytest.mark.spark
def test_every_operator_on_one_graph_computes_what_it_says_and_shared_work_once(spark: Any, tmp_path: Path) -> None:
    """map, filter, flat_map, map_batches, and sql: at the source, in the middle, behind another, before several."""
    source = numbers(200)
    work = source.map(Counted(str(tmp_path / "calls")))
    thirds = work.sql(lambda frame: frame.where("n % 3 = 0"), schema=Number, name="thirds")
    sixths = thirds.sql(lambda frame: frame.where("n % 2 = 0"), schema=Number, name="sixths")
    tens = source.sql(lambda frame: frame.where("n % 10 = 0"), schema=Number, name="tens")
    both = work.filter(odd).union(tens).map(same, grouping="round-robin", name="united")
    topology = st.topology(
        "operators",
        work.flat_map(twice, grouping="round-robin").to(st.sink.memory("all-twice")),
        work.key_by("k").map_batches(doubled, parallelism=2).to(st.sink.memory("all-doubled")),
        thirds.map(same, name="after").to(st.sink.memory("thirds-kept")),
        sixths.to(st.sink.memory("sixths-kept")),
        both.to(st.sink.memory("both")),
        work.filter(odd, name="odd-again").union(tens, thirds, name="mix").to(st.sink.files(tmp_path / "mixed")),
    )
    result = run(topology, spark, tmp_path, settings={"degree": 2})
    every = range(200)
    assert kept(result, "all-twice") == sorted([*every, *(-n for n in every)])
    assert kept(result, "all-doubled") == [2 * n for n in every]
    assert kept(result, "thirds-kept") == [n for n in every if n % 3 == 0]
    assert kept(result, "sixths-kept") == [n for n in every if n % 6 == 0]
    assert kept(result, "both") == sorted([n for n in every if n % 2] + [n for n in every if n % 10 == 0])
    mixed = [n for n in every if n % 2] + [n for n in every if n % 10 == 0] + [n for n in every if n % 3 == 0]
    assert sorted(row["n"] for row in read(tmp_path / "mixed")) == sorted(mixed), "no task replaced another's file"
    assert Counter(map(int, (tmp_path / "calls").read_text().split())) == Counter(every), "each record once"
    assert result.summary["rows_in"] == 200
    assert result.summary["sinks"]["thirds-kept"] == 67
    in_jvm = [task for line in lines(result) for task in line["tasks"] if task["operator"] == "thirds"]
    assert in_jvm and {task["busy_s"] for task in in_jvm} == {None}, "what ran in the JVM has no busy time"


@pytest.mark.spark
def test_rows_for_a_sql_operator_wait_for_the_level_at_which_it_runs(spark: Any, tmp_path: Path) -> None:
    """Behind another sql operator with Python in between, and behind a union of branches of different length."""
    source = numbers(60)
    evens = source.sql(lambda frame: frame.where("n % 2 = 0"), schema=Number, name="evens")
    sixths = evens.map(same, name="between").sql(lambda frame: frame.where("n % 3 = 0"), schema=Number, name="sixths")
    far = source.map(same, grouping="round-robin", name="far").map(same, grouping="round-robin", name="farther")
    united = source.filter(odd).union(far, sixths).sql(lambda frame: frame, schema=Number, name="united")
    topology = st.topology(
        "waiting",
        sixths.to(st.sink.memory("sixths-kept")),
        united.map(same, grouping="round-robin", name="last").to(st.sink.memory("united-kept")),
    )
    result = run(topology, spark, tmp_path, settings={"degree": 2})
    assert kept(result, "sixths-kept") == list(range(0, 60, 6))
    assert kept(result, "united-kept") == sorted([*range(1, 60, 2), *range(60), *range(0, 60, 6)])


@dataclass(frozen=True)
class Inner:
    x: int
    names: dict[str, int]


@dataclass(frozen=True)
class Everything:
    flag: bool
    whole: int
    real: float
    text: str
    raw: bytes
    moment: datetime.datetime
    day: datetime.date
    money: decimal.Decimal
    tags: list[str | None]
    scores: dict[str, int | None]
    inner: Inner
    inners: list[Inner]
    maybe: Inner | None
    nothing: str | None


def filled(index: int) -> Everything:
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC) + datetime.timedelta(hours=index)
    return Everything(
        index % 2 == 0, -(2**63) + index, 1e300 / (index + 1), "é\u0001𝄞" * index, bytes([index, 255]), moment,
        datetime.date(1999, 12, 31), decimal.Decimal(index) / 8, ["a", None][: index % 3], {"a": index, "b": None},
        Inner(index, {"p": index}), [Inner(n, {}) for n in range(index % 3)], Inner(1, {"m": 2}) if index % 2 else None, None,
    )  # fmt: skip


def everything(draw: st.Draw) -> Everything:
    return filled(draw.index)


ODD = pa.schema({"a.b `c`": pa.int64()})


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("whole")], schema=ODD)


def unchanged(one: Everything) -> Everything:
    wanted = filled(one.whole + 2**63)
    if one != wanted:
        raise ValueError(f"{one!r} is not {wanted!r}")
    return one


@pytest.mark.spark
def test_records_of_all_types_and_nulls_are_the_same_behind_shuffles_and_sql(spark: Any, tmp_path: Path) -> None:
    source = st.source.generate(everything, rate=FAST, limit=12)
    shuffled = source.map(unchanged, name="a").key_by("inner", "money").map(unchanged, name="b")
    odd_names = shuffled.map_batches(renamed, schema=ODD).sql(lambda frame: frame, schema=ODD, name="odd-names")
    topology = st.topology(
        "types",
        odd_names.to(st.sink.memory("odd")),
        shuffled.sql(lambda frame: frame, schema=Everything, name="jvm").map(unchanged, name="c").to(st.sink.memory("out")),
        source.map(unchanged, name="dealt", grouping="round-robin").to(st.sink.files(tmp_path / "json", format="json")),
    )
    result = run(topology, spark, tmp_path)
    assert result.summary["rows_failed"] == 0, next((result.folder / "checkpoint/springtide/dead").iterdir()).read_text()[:2000]
    assert sorted(result.table("odd").column("a.b `c`").to_pylist()) == [-(2**63) + n for n in range(12)]
    table = result.table("out")
    assert sorted(table.column("whole").to_pylist()) == [-(2**63) + n for n in range(12)]
    assert table.column("nothing").null_count == 12
    rows = sorted(read(tmp_path / "json"), key=lambda row: int(row["whole"]))
    assert rows[3]["scores"] == {"a": 3, "b": None}
    assert rows[3]["inner"] == {"x": 3, "names": {"p": 3}}


# Sources


@pytest.mark.spark
def test_sources_of_different_shapes_and_all_file_formats_are_united(spark: Any, tmp_path: Path) -> None:
    """CSV, JSON and Parquet folders and a generated stream; what is there now is read, and no more."""
    schema = pa.schema({"text": pa.string(), "weight": pa.float64(), "at": pa.timestamp("us", tz="UTC")})
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    for format in ("csv", "json", "parquet"):
        (tmp_path / format).mkdir()
        for number in range(2):
            table = pa.Table.from_pylist([{"text": f"{format}{number}", "weight": None, "at": moment}], schema=schema)
            _write(table, tmp_path / format / f"{number}.{format}")
    timed = replace_field(Word, "at", datetime.datetime)
    streams = [
        st.source.files(
            tmp_path / format, format=format, schema=timed, created="at", name=format,
            options={"header": "true"} if format == "csv" else {}, max_files=1,
        ).map(lambda one: Word(one.text, one.weight), schema=Word, name=f"as-word-{format}")
        for format in ("csv", "json", "parquet")
    ]  # fmt: skip
    streams.append(numbers(3).map(lambda one: Word(f"n{one.n}", 1.0), schema=Word, name="from-number"))
    topology = streams[0].union(*streams[1:]).to(st.sink.memory("words")).named("shapes")
    result = run(topology, spark, tmp_path, available_now=True)
    texts = [f"{format}{number}" for format in ("csv", "json", "parquet") for number in range(2)]
    assert kept(result, "words", "text") == sorted([*texts, "n0", "n1", "n2"])
    assert result.table("words").column("weight").null_count == 6
    assert result.summary["batches"] >= 2, "max_files bounds a batch"
    assert result.summary["latency_ms"]["p99"] > 3600_000, "the files' records are old"
    assert result.summary["backlog_end"] == 0


def replace_field(cls: type, name: str, kind: type) -> dict[str, Any]:
    import typing

    return {**typing.get_type_hints(cls), name: kind}


def _write(table: pa.Table, file: Path) -> None:
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    elif file.suffix == ".csv":
        file.write_text("text,weight,at\n" + "".join(f"{row['text']},,{row['at'].isoformat()}\n" for row in table.to_pylist()))
    else:
        file.write_text("".join(json.dumps({**row, "at": row["at"].isoformat()}) + "\n" for row in table.to_pylist()))


@dataclass(frozen=True)
class Tick:
    timestamp: datetime.datetime
    value: int


def ticks(session: Any) -> Any:
    options = {"rowsPerBatch": 40, "numPartitions": 2, "startTimestamp": round(time.time() * 1000)}
    return session.readStream.format("rate-micro-batch").options(**options).load()


def tenfold(tick: Tick) -> Number:
    return Number(tick.value * 10, "tick")


@pytest.mark.spark
@pytest.mark.parametrize("made", ["before", "by a function"])
def test_a_streaming_dataframe_is_a_source(made: str, spark: Any, tmp_path: Path) -> None:
    frame = ticks(spark) if made == "before" else ticks
    created = "timestamp" if made == "before" else None
    source = st.source.dataframe(frame, schema=Tick, created=created)
    result = run(source.map(tenfold, parallelism=3).to(st.sink.memory("out")).named("ticks"), spark, tmp_path, batches=2)
    assert kept(result, "out") == [10 * n for n in range(40 * result.summary["batches"])]
    assert (result.summary["latency_ms"] is None) == (created is None), "null where the source has no creation time"


@pytest.mark.spark
def test_a_dataframe_that_does_not_fit_or_does_not_stream_is_refused(spark: Any, tmp_path: Path) -> None:
    for frame, words in [
        (ticks, "'value' is int64, wanted string"),
        (spark.range(3), "is not a streaming DataFrame"),
        (lambda session: "frame", "'frame' is not a streaming DataFrame"),
    ]:
        source = st.source.dataframe(frame, schema={"value": str})
        with pytest.raises(SpringtideError, match=words):
            run(source.to(st.sink.discard()).named("t"), spark, tmp_path)


# Sinks


@pytest.mark.spark
def test_every_sink_holds_every_record_once_and_batches_are_numbered(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark.sql(f"CREATE DATABASE sinks LOCATION '{(tmp_path / 'tables').as_uri()}'")
    seen: list[tuple[int, int]] = []
    source = numbers(1500)
    kinds: dict[str, Any] = {
        "parquet": st.sink.files(tmp_path / "parquet", append=True),
        "csv": st.sink.files(tmp_path / "csv", format="csv", append=True),
        "json": st.sink.files(tmp_path / "json", format="json", append=True),
        "plain": st.sink.table("sinks.plain"),
        "fenced": st.sink.table("sinks.fenced", batch_column="batch"),
        "console": st.sink.console(rows=2),
        "memory": st.sink.memory("memory"),
        "foreach": st.sink.foreach(lambda frame, batch: seen.append((batch, frame.count()))),
        "discard": st.sink.discard(),
    }
    topology = st.topology("sinks", *(source.to(sink, name=name) for name, sink in kinds.items()))
    result = run(topology, spark, tmp_path, target="5s")
    batches = lines(result)
    assert len(batches) >= 2
    assert result.summary["sinks"] == dict.fromkeys(kinds, 1500)
    assert result.summary["rows_out"] == 1500 * len(kinds)
    for format in ("parquet", "csv", "json"):
        assert sorted(int(row["n"]) for row in read(tmp_path / format)) == list(range(1500))
    for table in ("plain", "fenced"):
        assert sorted(row.n for row in spark.table(f"sinks.{table}").collect()) == list(range(1500))
    counts = dict(spark.table("sinks.fenced").groupBy("batch").count().collect())
    expected = {line["batch"]: line["rows_in"] for line in batches}
    assert counts == expected
    assert dict(seen) == expected and len(seen) == len(batches), "foreach: once per batch, with its number"
    assert kept(result, "memory") == list(range(1500))
    printed = capfd.readouterr().err
    assert f"[console] batch 0: {expected[0]} records" in printed
    assert printed.count("{'n': ") <= 2 * len(batches)
    with pytest.raises(CheckpointError, match=r"'sinks.fenced' holds batches of another checkpoint"):
        run(topology, spark, tmp_path)
    assert spark.table("sinks.fenced").count() == 1500
    spark.sql("DROP DATABASE sinks CASCADE")


def counts_by_key(frame: Any) -> Any:
    return frame.groupBy("k").count().selectExpr("count n", "k")


@pytest.mark.spark
def test_a_batch_from_which_nothing_is_left_is_a_batch(spark: Any, tmp_path: Path) -> None:
    """Empty on the way, before a shuffle, before sql, and in every sink; and a source that never brings anything."""
    seen: list[int] = []
    gone = numbers(30).filter(lambda one: False, name="none").map(same, grouping="round-robin")
    topology = st.topology(
        "empty",
        gone.sql(counts_by_key, schema=Number).to(st.sink.files(tmp_path / "a")),
        gone.to(st.sink.foreach(lambda frame, batch: seen.append(frame.count()))),
        numbers(0, name="never").to(st.sink.memory("never-kept")),
    )
    result = run(topology, spark, tmp_path)
    assert (result.summary["rows_in"], result.summary["rows_out"], result.summary["rows_failed"]) == (30, 0, 0)
    assert read(tmp_path / "a") == []
    assert set(seen) == {0}
    with pytest.raises(OptionError, match="no memory sink 'never-kept' received anything"):
        result.table("never-kept")


# Failures


@pytest.mark.spark
def test_a_record_that_fails_is_a_dead_letter_and_is_counted(spark: Any, tmp_path: Path) -> None:
    topology = st.topology(
        "letters",
        numbers(100).map(seventh, grouping="round-robin").to(st.sink.files(tmp_path / "good")),
        dead_letters=st.sink.files(tmp_path / "dead", format="json"),
    )
    result = run(topology, spark, tmp_path, settings={"degree": 4})
    assert sorted(row["n"] for row in read(tmp_path / "good")) == [n for n in range(100) if n % 7]
    letters = read(tmp_path / "dead")
    assert sorted(json.loads(letter["record"])["n"] for letter in letters) == list(range(0, 100, 7))
    one = next(letter for letter in letters if json.loads(letter["record"])["n"] == 14)
    assert (one["topology"], one["operator"], one["error"]) == ("letters", "seventh", "ValueError: no 14")
    assert 'raise ValueError(f"no {one.n}")' in one["traceback"]
    assert result.summary["rows_failed"] == 15
    reports = [task for line in lines(result) for task in line["tasks"] if task["operator"] == "seventh"]
    assert sum(task["failures"] for task in reports) == 15
    assert (sum(task["rows_in"] for task in reports), sum(task["rows_out"] for task in reports)) == (100, 85)
    assert all(task["busy_s"] >= 0 and task["finished"] >= task["started"] for task in reports)
    assert len({task["task"] for task in reports}) == 4, "a report for each task"


@pytest.mark.spark
def test_stop_commits_nothing_and_a_mended_run_goes_on_with_other_widths_and_groupings(spark: Any, tmp_path: Path) -> None:
    """And of a checkpoint everything may change but the graph, the schemas and the keys."""
    from springtide.spark.driver.checkpoint import Checkpoint

    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def job(function: Any, **options: Any) -> st.Topology:
        return numbers(60).map(function, name="work", on_error="stop", **options).to(st.sink.files(out)).named("stops")

    with pytest.raises(RecordError, match=r"operator 'work' failed with ValueError: no .*'stop'; nothing of the batch was"):
        run(job(seventh), spark, tmp_path, checkpoint=checkpoint)
    assert read(out) == []
    mended = job(same, grouping="round-robin", parallelism=3)
    options = {"policy": "scripted", "settings": {"script": "* 0:2"}, "max_slots": 3, "grouping": "round-robin"}
    result = run(mended, spark, tmp_path, checkpoint=checkpoint, **options)
    assert sorted(row["n"] for row in read(out)) == list(range(60))
    assert result.summary["policy"] == "scripted"
    again = run(job(same, parallelism=1), spark, tmp_path, checkpoint=checkpoint)
    assert again.summary["rows_in"] == 0, "there is nothing left"
    logs = [file.name for file in (checkpoint / "spark" / "offsets").iterdir()]
    assert "0" in logs and not [name for name in logs if name.endswith(".crc")], "manifests have the offsets"
    assert all("offsets" in manifest for manifest in Checkpoint(checkpoint).manifests.readable())

    before = sorted((tmp_path / "runs").iterdir())
    more = numbers(60).map(same, name="work").filter(odd, name="more").to(st.sink.files(out)).named("stops")
    with pytest.raises(CheckpointError, match="operator 'more' is new"):
        run(more, spark, tmp_path, checkpoint=checkpoint)
    assert sorted((tmp_path / "runs").iterdir()) == before, "nothing was made for a run that was refused"
    assert sorted(row["n"] for row in read(out)) == list(range(60))


@pytest.mark.spark
def test_a_run_goes_on_where_a_loss_of_power_left_sparks_logs_empty(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 records in 3 batches, a fourth that was begun, and 40 records more."""
    monkeypatch.setattr("springtide.running.execution.ReadLimit", fixed_limit(20))
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def go_on(limit: int) -> st.Result:
        topology = numbers(limit).map(same, name="work").to(st.sink.files(out)).named("power")
        return run(topology, spark, tmp_path, checkpoint=checkpoint, target="60s")

    assert go_on(60).summary["rows_in"] == 60
    for lost in ("offsets/1", "offsets/2", "offsets/3", "commits/1", "commits/2"):
        (checkpoint / "spark" / lost).write_text("")
    again = go_on(100)
    assert again.summary["rows_in"] == 40
    assert [line["batch"] for line in lines(again)] == [3, 4]
    assert sorted(row["n"] for row in read(out)) == list(range(100))


def slow_for_one_key(one: Number) -> Number:
    time.sleep(0.02 if one.k == "k3" else 0.001)
    return one


@pytest.mark.spark
@pytest.mark.parametrize("by", ["k", None], ids=["a key", "a key that is found"])
def test_tide_learns_what_keys_cost_routes_by_it_and_knows_it_after_a_restart(
    by: str | None, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stage behind the source, and in one that follows, where there is nothing to learn."""
    monkeypatch.setattr("springtide.running.execution.ReadLimit", fixed_limit(100))

    def topology(limit: int) -> st.Topology:
        worked = numbers(limit).map(slow_for_one_key, grouping="tide", by=by, name="work", parallelism=3)
        again = worked.map(same, grouping="tide", by=by, name="again", parallelism=2)
        return again.to(st.sink.memory("out")).named("tide")

    place = tmp_path / "checkpoint"
    options = {"settings": {"degree": 3}, "checkpoint": place, "grouping": "tide", "target": "60s"}
    first = run(topology(1_000), spark, tmp_path, **options)
    second = run(topology(1_200), spark, tmp_path, **options)
    assert sorted(kept(first, "out") + kept(second, "out")) == list(range(1_200))
    editions = [line["plan"]["knowledge"] for line in lines(first)]
    assert editions[0] == 0
    assert editions[-1] > 0
    assert lines(second)[0]["plan"]["knowledge"] >= editions[-1], "what was learned is there from the start"
    from springtide.spark.driver.editions import Editions

    editions_kept = Editions(place / "springtide" / "knowledge")
    learned = editions_kept.load(editions_kept.latest())
    assert learned is not None
    assert learned["work/"].tolist()[1:] == ["k"], "after the grouping that learned it"
    means = learned["work/seconds"] / learned["work/weights"]
    assert len(means) == 7
    assert sorted(means)[-1] > 3 * sorted(means)[-2]


def unlucky(draw: st.Draw) -> Number:
    if draw.index == 13:
        raise ValueError("no 13")
    return number(draw)


@pytest.mark.spark
def test_a_generator_that_fails_ends_the_run_at_once_with_the_record(spark: Any, tmp_path: Path) -> None:
    """It would fail on the same record for ever: there is no record yet that could be a dead letter."""
    topology = st.source.generate(unlucky, rate=FAST, limit=20).to(st.sink.files(tmp_path / "out")).named("unlucky")
    with pytest.raises(RecordError, match="generator unlucky: record 13 failed: ValueError: no 13; nothing of the batch"):
        run(topology, spark, tmp_path)
    assert read(tmp_path / "out") == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda frame: frame.selectExpr("cast(n as string) n", "k"), "'n' is string, wanted int64"),
        (lambda frame: frame.select("k"), "'n'"),
        (lambda frame: 5, "must return a DataFrame, but returned int"),
    ],
)
def test_a_sql_function_that_breaks_its_word_ends_the_run_at_once(
    function: Any, words: str, spark: Any, tmp_path: Path
) -> None:
    topology = numbers(10).sql(function, schema=Number, name="wrong").to(st.sink.discard()).named("wrong")
    begin = time.monotonic()
    with pytest.raises(RunError, match=words):
        run(topology, spark, tmp_path)
    assert time.monotonic() - begin < 20, "starting it again five times would change nothing"


@pytest.mark.spark
def test_a_line_that_cannot_be_read_is_a_dead_letter_of_its_source(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n,k\n1,a\nx,b\n3,c\n")
    source = st.source.files(tmp_path / "in", format="csv", schema=Number, options={"header": "true"}, name="lines")
    topology = source.map(same).to(st.sink.memory("out")).named("malformed")
    result = run(topology, spark, tmp_path, available_now=True)
    assert kept(result, "out") == [1, 3]
    assert result.summary["rows_failed"] == 1
    (letter,) = read(result.folder / "checkpoint" / "springtide" / "dead")
    assert letter["operator"] == "lines"
    assert json.loads(letter["record"]) == {"file": "a.csv", "line": 3, "raw": "x,b"}


# Plans and reports


@pytest.mark.spark
def test_the_schedule_starts_with_the_first_batch(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long Spark takes to start: what came meanwhile would be a backlog. A restart goes on with the same schedule."""
    from springtide.spark.driver import sources

    original, ready = sources.stream, list[float]()

    def slow_start(*given: Any, **named: Any) -> Any:
        time.sleep(1.0)
        frame = original(*given, **named)
        ready.append(time.time())
        return frame

    monkeypatch.setattr(sources, "stream", slow_start)
    topology, checkpoint = numbers(100_000, rate=1_000.0).to(st.sink.discard()).named("late"), tmp_path / "checkpoint"
    first = lines(run(topology, spark, tmp_path, checkpoint=checkpoint, batches=1))
    schedule = (checkpoint / "springtide" / "schedule.json").read_bytes()
    assert ready[0] <= json.loads(schedule)["started"] <= first[0]["started"]
    assert 0 < first[0]["rows_in"] <= 1_000 * (first[0]["started"] - ready[0]), "not what came before"
    manifest = json.loads((checkpoint / "springtide" / "manifests" / "00000000.json").read_text())
    assert manifest["schedule"]["started"] == json.loads(schedule)["started"], "it is repeated, as it may be lost"
    again = lines(run(topology, spark, tmp_path, checkpoint=checkpoint, batches=1))
    assert (checkpoint / "springtide" / "schedule.json").read_bytes() == schedule
    assert again[0]["backlog"] + again[0]["rows_in"] > 1_000, "it went on while nothing ran"


def test_a_backlog_is_worked_off_in_batches_under_the_target_and_every_batch_is_reported(spark: Any, tmp_path: Path) -> None:
    topology = numbers(6000).map(slow, grouping="round-robin").to(st.sink.discard(), name="sink").named("backlog")
    script = {"script": "* 0:1 0.5:2", "repeat": 1}
    result = run(topology, spark, tmp_path, target="2s", policy="scripted", settings=script, interval="100ms")
    batches = lines(result)
    assert len(batches) >= 3, "not in one"
    assert sum(line["rows_in"] for line in batches) == 6000
    decisions = [json.loads(line) for line in (result.folder / "decisions.jsonl").read_text().splitlines()]
    most = max(plan["read_limit"] for plan in (batches[0]["plan"], *decisions))
    for line in batches:
        assert 0 < line["rows_in"] <= max(1000, most), "the limit in force when Spark asked, a moment before the plan is taken"
        assert line["latency_ms"]["p50"] > 0
        assert line["backlog"] == 6000 - sum(other["rows_in"] for other in batches if other["batch"] <= line["batch"])
        assert sum(task["rows_in"] for task in line["tasks"] if task["operator"] == "sink") == line["rows_in"]
        tasks = [task["task"] for task in line["tasks"] if task["operator"] == "slow"]
        assert len(tasks) == len(set(tasks)) <= line["plan"]["widths"]["slow"]
    assert any("the script says 2 since 0.5 s" in decision["reason"] for decision in decisions)
    assert result.summary["reconfigurations"] >= 1
    assert result.summary["replicas"]["max"] == 4


# Refused before Spark starts


class Remote:
    """As much of a Spark Connect session as is looked at."""


Remote.__module__ = "pyspark.sql.connect.session"


class Elastic:
    """As much of a session with dynamic allocation as is looked at."""

    version = "4.2.0"

    class conf:
        @staticmethod
        def get(name: str, default: str) -> str:
            return "true" if name == "spark.dynamicAllocation.enabled" else default


class Old(Elastic):
    version = "3.5.1"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"spark": Remote()}, SetupError, "this is a Spark Connect session"),
        ({"spark": Elastic()}, SetupError, "spark.dynamicAllocation.enabled is true"),
        ({"spark": Old()}, SetupError, "Spark 3.5.1 is too old; Springtide needs 4.2 or later"),
        ({"conf": {"spark.remote": "sc://host"}}, SetupError, "spark.remote asks for Spark Connect"),
        ({"conf": {"spark.dynamicAllocation.enabled": "true"}}, SetupError, "spark.dynamicAllocation.enabled=true"),
        ({"py_files": ["gone.zip"]}, SetupError, "there is no file 'gone.zip' to ship"),
        ({"policy": "statik"}, OptionError, "did you mean 'static'?"),
        ({"grouping": "hsh"}, OptionError, "did you mean 'hash'?"),
        ({"grouping": "hash"}, OptionError, "'open'.*hash.*key_by"),
        ({"policy": "static", "settings": {"degre": 2}}, OptionError, "did you mean 'degree'?"),
        ({"policy": "static", "settings": {"degrees": "opn=2"}}, OptionError, "did you mean 'open'?"),
        ({"policy": "static", "settings": {"degree": 0}}, OptionError, "degree=0 is not allowed"),
        ({"target": "10ms"}, OptionError, "target 10 ms is below the floor of a batch, 50 ms"),
        ({"target": "soon"}, OptionError, "target 'soon' is not a duration"),
        ({"trigger": "-1s"}, OptionError, "trigger '-1s' is not a duration"),
        ({"interval": "0s"}, OptionError, "interval"),
        ({"duration": "long"}, OptionError, "duration 'long' is not a duration"),
        ({"max_slots": 0}, OptionError, "max_slots=0 is not allowed"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(
    options: dict[str, Any], kind: type[SpringtideError], words: str, tmp_path: Path
) -> None:
    topology = numbers(1).map(same, name="open", grouping="auto").to(st.sink.files(tmp_path / "out")).named("t")
    with pytest.raises(kind, match=words):
        st.run(topology, runs=tmp_path / "runs", **options)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "runs").exists(), "not even a run's folder"


def test_a_checkpoint_or_a_run_folder_that_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    topology = numbers(1).to(st.sink.discard()).named("t")
    with pytest.raises(CheckpointError, match="is a file; give a folder"):
        st.run(topology, runs=tmp_path / "runs", checkpoint=tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be made: "):
        st.run(topology, runs=tmp_path / "runs", checkpoint="/proc/nope")
    with pytest.raises(OptionError, match=r"cannot be made: .*file is a file; give a folder"):
        st.run(topology, runs=tmp_path / "file" / "runs", checkpoint=tmp_path / "held")
    with pytest.raises(OptionError, match=r"cannot be made: .*file is a file; give a folder"):  # not: in use by this process
        st.run(topology, runs=tmp_path / "file" / "runs", checkpoint=tmp_path / "held")


def test_threads_that_are_not_pinned_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=false"):
        st.run(numbers(1).to(st.sink.discard()).named("t"), runs=tmp_path / "runs")


def unwilling(frame: Any, batch: int) -> None:
    raise OSError("no space left")


@pytest.mark.spark
def test_a_run_whose_last_batch_failed_is_no_success(spark: Any, tmp_path: Path) -> None:
    topology = numbers(100).to(st.sink.foreach(unwilling)).named("unwilling")
    with pytest.raises(RunError, match="no space left"):
        run(topology, spark, tmp_path, duration=10)


def test_a_function_that_cannot_reach_the_workers_is_refused_with_its_operator(tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()

    def guarded(one: Number) -> Number:
        with lock:
            return one

    topology = numbers(1).map(guarded).to(st.sink.discard()).named("t")
    with pytest.raises(SpringtideError, match=r"operator 'guarded': its function cannot be sent .*lock.*; keep connections"):
        st.run(topology, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_what_is_no_topology_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SpringtideError, match=r"\.named"):
        st.run(numbers(1).to(st.sink.discard()), runs=tmp_path / "runs")  # type: ignore[arg-type]


def test_a_target_below_the_floor_that_was_measured_is_refused_with_that_number(tmp_path: Path) -> None:
    from springtide.spark.driver.checkpoint import Checkpoint

    topology = numbers(1).to(st.sink.discard()).named("t")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.acquire(topology)
    checkpoint.remember("floor", {"floor_s": 0.321})
    checkpoint.release()
    with pytest.raises(
        OptionError, match="target 300 ms is below the floor of a batch, 321 ms, as measured in this checkpoint"
    ):
        st.run(topology, target="300ms", checkpoint=tmp_path / "checkpoint", runs=tmp_path / "runs")


def test_records_that_are_too_old_are_left_out_and_counted(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 records were created within half a second, and are read 60 at a time, a second apart: later ones are too old."""
    monkeypatch.setattr("springtide.running.execution.ReadLimit", fixed_limit(60))
    topology = numbers(300, rate=600.0).map(same).to(st.sink.files(tmp_path / "out")).named("shed")
    result = st.run(
        topology, policy="static", target="5s", trigger="1s", batches=5, shed_after="2s", spark=spark, runs=tmp_path / "runs"
    )
    summary = result.summary
    assert summary["rows_in"] == 300
    assert summary["rows_shed"] > 0
    assert summary["rows_in"] == summary["rows_out"] + summary["rows_shed"]
    written = [row["n"] for row in read(tmp_path / "out")]
    assert len(written) == len(set(written)) == summary["rows_out"]
    for line in lines(result):
        assert line["rows_shed"] == 0 or line["plan"]["shed_before"] is not None, "a replay has to leave out the same ones"


def test_of_a_queue_that_is_too_long_about_as_many_as_its_limit_are_kept(spark: Any, tmp_path: Path) -> None:
    """400/s come and take 5 ms each, which is twice too long; 400 are those of a second, and take two."""
    topology = numbers(1_000_000, rate=400.0).map(tardy, parallelism=1).to(st.sink.discard()).named("queued")
    result = st.run(topology, policy="static", batches=10, queue_limit=400, spark=spark, runs=tmp_path / "runs")
    found = [(line["rows_in"], line["rows_out"]) for line in lines(result)]
    full = next(number for number, (read, _) in enumerate(found) if read > 600)  # each batch before is twice the one before it
    assert result.summary["rows_in"] == result.summary["rows_out"] + result.summary["rows_shed"]
    assert all(read > 600 and 200 <= kept <= 600 for read, kept in found[full:]) and len(found) - full >= 4, found


def test_a_limit_of_the_queue_needs_sources_that_tell_how_many_wait(tmp_path: Path) -> None:
    topology = st.source.dataframe(ticks, schema=Tick, created="timestamp").to(st.sink.discard()).named("ticks")
    with pytest.raises(OptionError, match=r"queue_limit=5: source '\w+' does not say how many .*; give shed_after instead"):
        st.run(topology, queue_limit=5, runs=tmp_path / "runs")


def test_a_dry_run_records_what_it_would_do_and_does_nothing(spark: Any, tmp_path: Path) -> None:
    """It lasts for 16 s: once, on a machine with seven others for each core, control had not begun after 8."""
    topology = numbers(3200, rate=200.0).map(slow, parallelism=4).to(st.sink.discard()).named("dry")
    result = st.run(
        topology, policy="scripted", settings={"script": "* 0:1 1:2"}, dry_run=True, max_slots=4, duration="16s",
        interval="0.5s", spark=spark, runs=tmp_path / "runs",
    )  # fmt: skip
    told = [json.loads(line) for line in (result.folder / "decisions.jsonl").read_text().splitlines()]
    assert any(entry.get("dry_run") and "the script says" in entry["reason"] for entry in told)
    assert result.summary["reconfigurations"] == 0
    assert result.summary["replicas"] == {"mean": 4.0, "max": 4}, "all slots are in use"


def test_what_a_policy_learned_is_known_to_the_next_run(spark: Any, tmp_path: Path) -> None:
    topology = numbers(10_000, rate=300.0).map(slow, parallelism=4).to(st.sink.discard()).named("learned")
    options: dict[str, Any] = {
        "policy": "tide", "target": "5s", "interval": "0.3s", "trigger": "0.5s", "batches": 8, "spark": spark,
        "runs": tmp_path / "runs", "checkpoint": tmp_path / "checkpoint",
    }  # fmt: skip
    st.run(topology, **options)
    kept = json.loads((tmp_path / "checkpoint" / "springtide" / "policy.json").read_text())
    assert kept["policy"].startswith("Tide(")
    known = len(kept["state"]["intervals"])
    assert known > 0
    st.run(topology, **options)
    again = json.loads((tmp_path / "checkpoint" / "springtide" / "policy.json").read_text())
    assert len(again["state"]["intervals"]) > known
