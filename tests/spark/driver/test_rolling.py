"""Files that collect the output of several batches: every record is visible once, wherever the driver dies."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as strategies

import springtide as st
from springtide.errors import CheckpointError, OptionError, TopologyError
from springtide.model.endpoints import FilesSink
from springtide.model.plan import Plan
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from springtide.spark.driver import owners
from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.pipeline import BatchOutcome
from springtide.spark.driver.sinks import Sinks
from springtide.spark.private.logs import COMMIT
from springtide.spark.shared.program import dead_letter_sink, staging_of
from springtide.spark.shared.report import Report
from springtide.spark.task import staging

SCHEMA = {"n": int, "day": str | None}
ROW = pa.schema([("n", pa.int64()), ("day", pa.string())])
SECOND = 1_000
"""Spark's times are in milliseconds."""


def rows_to(sink: FilesSink) -> Topology:
    rows = st.source.generate(lambda draw: {"n": draw.index, "day": None}, rate=1.0, schema=SCHEMA)
    return rows.to(sink, name="out").named("rows")


class Driver:
    """A driver on real files, with stand-ins for Spark and the tasks."""

    def __init__(self, root: Path, sink: FilesSink) -> None:
        topology = rows_to(sink)
        self.checkpoint = Checkpoint(root / "checkpoint")
        self.checkpoint.acquire(topology)
        try:
            self._start(root, topology)
        except BaseException:
            self.checkpoint.release()
            raise

    def _start(self, root: Path, topology: Topology) -> None:
        spark = root / "checkpoint" / "spark"
        spark.mkdir(exist_ok=True)
        (spark / "metadata").write_text(f'{{"id":"{uuid.UUID(int=1)}"}}')
        private = str(self.checkpoint.own)
        places, dead = staging_of(topology, private, self.checkpoint.identity)
        self.place = places["out"]
        self.sinks = Sinks(topology, dead_letter_sink(topology, private), {"": dead, **{n: p for n, p in places.items() if p}})
        self.checkpoint.next_epoch()
        self.sinks.prepare(SimpleNamespace(), self.checkpoint)
        self.tasks: list[Report] = []
        pipeline: Any = SimpleNamespace(run=lambda *_: BatchOutcome(list(self.tasks)))
        streams: Any = SimpleNamespace(
            parts=lambda *_: {}, committed=lambda *_: None, waiting=lambda *_: {}, read_limit=lambda limit: limit
        )
        control: Any = SimpleNamespace(current=lambda: Plan({}, 1, {}), routes=lambda _: {}, report=lambda _: None)
        state: Any = {}
        self.runner = BatchRunner(
            topology, SimpleNamespace(), self.checkpoint, pipeline, self.sinks, control, streams, threading.Event(), state
        )  # fmt: skip

    def batch(self, number: int, rows: list[tuple[int, str | None]], at: int) -> None:
        """Spark plans a batch at a time in ms, or replays it; a task writes its rows; Spark logs the commit."""
        spark = self.checkpoint.root / "spark"
        for log in ("offsets", "commits"):
            (spark / log).mkdir(exist_ok=True)
        offsets = spark / "offsets" / str(number)
        if not offsets.exists():
            offsets.write_text(f'v1\n{{"batchTimestampMs":{at}}}\n{{"offset":{number}}}')
        if self.checkpoint.manifest(number) is None and rows:
            assert self.place is not None
            for task, row in enumerate(rows):
                made = pa.RecordBatch.from_pylist([{"n": row[0], "day": row[1]}], schema=ROW)
                written = staging.write(
                    self.place, "out", staging.Attempt(self.checkpoint.epoch, number, 0, 0, task, 0), [made]
                )
                assert not written.refused
                self.tasks.append(Report(task, receipts=written.receipts, sinks={"out": 1}))
        self.runner(None, number)
        self.tasks.clear()
        (spark / "commits" / str(number)).write_text(COMMIT)

    def roll(self, at: int, every: bool = False) -> None:
        self.runner.roll(at * 1_000, every)


def visible(folder: Path, format: str = "parquet") -> list[tuple[int, str | None]]:
    """What a reader sees, which skips hidden folders."""
    files = [file for file in folder.rglob(f"*.{format}") if "_springtide" not in file.parts]
    found = []
    for file in files:
        for row in pyarrow.dataset.dataset(file, format=format).to_table().to_pylist():
            day = next((unquote(part[4:]) for part in file.parts if part.startswith("day=")), row.get("day"))
            found.append((row["n"], None if day == "__HIVE_DEFAULT_PARTITION__" else day))
    return sorted(found, key=str)


def files_in(folder: Path) -> int:
    return sum("_springtide" not in file.parts and file.is_file() for file in folder.rglob("*"))


class Killed(BaseException):
    """The driver dies."""


@contextmanager
def killed_at(step: int) -> Iterator[list[int]]:
    """Die before the file system is changed for the time ``step``: a rename, or the removal of a file."""
    count = [0]

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            if count[0] == step:
                count[0] += 1
                raise Killed
            count[0] += 1
            return change(*given, **named)

        return changed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        yield count


BATCHES = strategies.lists(
    strategies.tuples(
        strategies.lists(strategies.sampled_from(["a", "b/c", None]), max_size=3),
        strategies.integers(0, 3),
        strategies.booleans(),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=120)
@given(batches=BATCHES, kills=strategies.lists(strategies.integers(0, 25), max_size=3), partitioned=strategies.booleans())
def test_every_record_is_visible_once(batches: list[Any], kills: list[int], partitioned: bool) -> None:
    """Batches of any size at any time, rolling between them, and kills before any change of a file."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sink = st.sink.files(root / "out", roll_every="2s", partition_by="day" if partitioned else ())
        driver, at, wanted, kills = Driver(root, sink), SECOND, list[tuple[int, str | None]](), list(kills)
        for number, (days, seconds, idle) in enumerate(batches):
            at += seconds * SECOND
            rows = [(100 * number + task, day) for task, day in enumerate(days)]
            wanted += rows
            while True:
                try:
                    with killed_at(kills[0] if kills else -1) as count:
                        driver.batch(number, rows, at)
                        if idle:
                            driver.roll(at + 3 * SECOND)
                    break
                except Killed:
                    assert len(set(visible(root / "out"))) == len(visible(root / "out"))
                    driver.checkpoint.release()
                    driver = started(root, sink)
                finally:
                    kills = kills[1:] if kills and count[0] > kills[0] else kills
            seen = visible(root / "out")
            assert len(set(seen)) == len(seen) and set(seen) <= set(wanted)
        driver.roll(at, every=True)
        driver.checkpoint.release()
        assert visible(root / "out") == sorted(wanted, key=str)


def started(root: Path, sink: FilesSink) -> Driver:
    return Driver(root, sink)


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("published", [False, True])
def test_a_commit_that_is_taken_back_finds_the_parts_that_it_rolled(tmp_path: Path, published: bool, starts: int) -> None:
    """The driver dies before Spark logs the commit, and the rolled file is lost: the batch runs again."""
    sink = st.sink.files(tmp_path / "out", roll_every="2s")
    driver = Driver(tmp_path, sink)
    driver.batch(0, [(0, "a")], at=0)
    with killed_before_the_end(published):
        driver.batch(1, [(1, "a")], at=5 * SECOND)
    for _ in range(starts - 1):  # it settles, and dies before Spark comes to the batch
        driver.checkpoint.release()
        driver = Driver(tmp_path, sink)
    (rolled,) = (tmp_path / "out").rglob("*-rolled-*")
    rolled.unlink()
    driver.checkpoint.release()
    driver = Driver(tmp_path, sink)
    assert driver.checkpoint.manifest(1) is None, "taken back"
    driver.batch(1, [(1, "a")], at=5 * SECOND)
    assert visible(tmp_path / "out") == [(0, "a"), (1, "a")]
    driver.batch(2, [(2, "a")], at=6 * SECOND)
    driver.roll(at=6 * SECOND, every=True)
    assert visible(tmp_path / "out") == [(0, "a"), (1, "a"), (2, "a")]
    driver.checkpoint.release()


@contextmanager
def killed_before_the_end(published: bool) -> Iterator[None]:
    """Die after the commit: before its files are visible, or after that."""

    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        if published:
            patch.setattr("springtide.spark.driver.batch.BatchRunner._report", killed)
        else:
            patch.setattr(Sinks, "publish", killed)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("step", range(8))
def test_a_roll_between_batches_survives_a_kill_at_every_step(tmp_path: Path, step: int) -> None:
    sink = st.sink.files(tmp_path / "out", roll_every="1h", partition_by="day")
    driver = Driver(tmp_path, sink)
    for number in range(3):
        driver.batch(number, [(number, "a" if number else "b")], at=number)
    try:
        with killed_at(step) as count:
            driver.roll(at=SECOND, every=True)
        assert count[0] <= step, "it has fewer steps"
    except Killed:
        driver.checkpoint.release()
        driver = Driver(tmp_path, sink)
    seen = visible(tmp_path / "out")
    driver.batch(3, [(3, "a")], at=2 * SECOND)
    driver.roll(at=2 * SECOND, every=True)
    driver.checkpoint.release()
    wanted = [(0, "b"), (1, "a"), (2, "a")]
    assert seen in ([], wanted), "all of it or nothing"
    assert visible(tmp_path / "out") == [*wanted, (3, "a")]


def test_a_file_becomes_visible_once_it_is_old_or_large_enough(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", roll_every="10s", format="csv"))
    for number in range(5):
        driver.batch(number, [(number, "a")], at=number * 4 * SECOND)
        assert files_in(tmp_path / "out") == (1 if number >= 3 else 0), "12 s after the first"
    assert visible(tmp_path / "out", "csv") == [(n, "a") for n in range(4)], "one header"
    driver.roll(at=17 * SECOND)
    assert files_in(tmp_path / "out") == 1, "the rest is a second old"
    driver.roll(at=26 * SECOND)
    assert visible(tmp_path / "out", "csv") == [(n, "a") for n in range(5)]
    driver.checkpoint.release()
    small = Driver(tmp_path / "small", st.sink.files(tmp_path / "small" / "out", roll_size=2000))
    for number in range(6):
        small.batch(number, [(number, "a"), (number + 10, "a")], at=number)
    assert len(visible(tmp_path / "small" / "out")) == 12, "a row takes about 700 bytes in a file of its own"
    assert files_in(tmp_path / "small" / "out") == 3
    small.checkpoint.release()


def test_what_waits_survives_a_restart_and_the_end_of_rolling(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", roll_every="1h"))
    driver.batch(0, [(1, "a")], at=0)
    driver.checkpoint.release()
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", roll_every="1h"))
    assert files_in(tmp_path / "out") == 0
    driver.checkpoint.release()
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out"))
    driver.batch(1, [(2, "a")], at=SECOND)
    assert visible(tmp_path / "out") == [(1, "a"), (2, "a")]
    driver.checkpoint.release()


@pytest.mark.parametrize("harm", ["deleted", "changed"])
def test_a_damaged_part_that_waits_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    sink = st.sink.files(tmp_path / "out", roll_every="1h")
    driver = Driver(tmp_path, sink)
    driver.batch(0, [(1, "a")], at=0)
    driver.checkpoint.release()
    (part,) = (file for file in (tmp_path / "out").rglob("*.parquet"))
    part.unlink() if harm == "deleted" else part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=rf"{part.name} (is missing|has another checksum).* no reader has seen yet"):
        Driver(tmp_path, sink)


def test_values_name_folders(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", partition_by=["day"], format="json"))
    driver.batch(0, [(1, "a/../b"), (2, None), (3, "é =%"), (4, "")], at=0)
    driver.checkpoint.release()
    folders = {file.parent.name for file in (tmp_path / "out").glob("*/*.json")}
    assert folders == {"day=a%2F..%2Fb", "day=__HIVE_DEFAULT_PARTITION__", "day=%C3%A9 %3D%25"}
    read = pyarrow.dataset.dataset(tmp_path / "out", format="json", partitioning="hive", ignore_prefixes=["_", "."])
    assert sorted(row["day"] or "" for row in read.to_table().to_pylist()) == ["", "", "a/../b", "é =%"]


def test_a_record_whose_value_cannot_name_a_folder_is_refused_alone(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", partition_by="day"))
    made = pa.RecordBatch.from_pylist([{"n": 1, "day": "x" * 300}, {"n": 2, "day": "a"}], schema=ROW)
    assert driver.place is not None
    written = staging.write(driver.place, "out", staging.Attempt(1, 0, 0, 0, 0, 0), [made])
    assert [receipt.rows for receipt in written.receipts] == [1]
    assert "too long for the name of a folder" in str(written.refused[0].error)
    driver.checkpoint.release()


def test_a_receipt_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out", partition_by="day"))
    made = pa.RecordBatch.from_pylist([{"n": 1, "day": "a"}], schema=ROW)
    assert driver.place is not None
    (receipt,) = staging.write(driver.place, "out", staging.Attempt(driver.checkpoint.epoch, 0, 0, 0, 0, 0), [made]).receipts
    for place in ("..", "day=a/..", "/tmp", "day=a/../../x", "a"):
        with pytest.raises(ValueError, match="no folder that values of columns name"):
            driver.sinks.located(0, [{**vars(receipt), "place": place}])
    driver.checkpoint.release()


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: rows_to(st.sink.files("o", partition_by="hour")), TopologyError, "partition_by='hour' is no column"),
        (lambda: rows_to(st.sink.files("o", partition_by=["n", "day"])), TopologyError, "no column is left"),
        (lambda: st.sink.files("o", roll_size=0), OptionError, "roll_size=0"),
        (lambda: st.sink.files("o", roll_every="soon"), OptionError, "roll_every 'soon' is not a duration"),
    ],
)
def test_options_that_cannot_be(make: Callable[[], object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


# Owners


def claimed(root: Path, out: Path, **options: Any) -> Checkpoint:
    topology, checkpoint = rows_to(st.sink.files(out, **options)), Checkpoint(root)
    owners.check_before(topology, root)
    checkpoint.acquire(topology)
    try:
        owners.claim(topology, checkpoint)
    finally:
        checkpoint.release()
    return checkpoint


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    out = tmp_path / "out"
    claimed(tmp_path / "one", out)
    claimed(tmp_path / "one", out)
    with pytest.raises(CheckpointError, match=rf"belongs to checkpoint {tmp_path}/one .*'rows'.* 1\. go on .*append=True"):
        claimed(tmp_path / "two", out)
    assert not (tmp_path / "two").exists(), "nothing was changed"
    (tmp_path / "one").rename(tmp_path / "moved")
    claimed(tmp_path / "moved", out)
    with pytest.raises(CheckpointError, match=rf"checkpoint {tmp_path}/moved "):
        claimed(tmp_path / "two", out)
    claimed(tmp_path / "two", out, append=True)
    claimed(tmp_path / "moved", out)


def test_the_folder_of_an_earlier_version_has_an_owner_too(tmp_path: Path) -> None:
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out"))
    driver.batch(0, [(1, "a")], at=0)
    driver.checkpoint.release()
    with pytest.raises(CheckpointError, match=f"belongs to checkpoint of identity {driver.checkpoint.identity}"):
        claimed(tmp_path / "two", tmp_path / "out")
    claimed(tmp_path / "checkpoint", tmp_path / "out")


def test_a_damaged_owner_is_an_owner(tmp_path: Path) -> None:
    claimed(tmp_path / "one", tmp_path / "out")
    (file,) = (tmp_path / "out" / "_springtide" / "owners").iterdir()
    file.write_text("{")
    with pytest.raises(CheckpointError, match=f"of identity {file.stem}"):
        claimed(tmp_path / "two", tmp_path / "out")
    claimed(tmp_path / "one", tmp_path / "out")


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_text("{")])
def test_a_checkpoint_whose_topology_file_is_damaged_still_owns_its_folder(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    """``acquire`` puts the file back by the last manifest; the folder's owner must not be taken for another checkpoint."""
    driver = Driver(tmp_path, st.sink.files(tmp_path / "out"))
    driver.batch(0, [(1, "a")], at=0)
    driver.checkpoint.release()
    claimed(tmp_path / "checkpoint", tmp_path / "out")
    harm(tmp_path / "checkpoint" / "springtide" / "topology.json")
    claimed(tmp_path / "checkpoint", tmp_path / "out")


def test_a_checkpoint_whose_folder_is_gone_is_named_and_not_its_output(tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "checkpoint"
    claimed(root, out)
    (root / "spark").mkdir()
    shutil.rmtree(root / "springtide")
    with pytest.raises(CheckpointError, match=rf"its folder {root}/springtide is gone: put it back"):
        claimed(root, out)
