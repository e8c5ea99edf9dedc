"""Staged output between its commit and its readers: what is damaged there is never published, and never taken for published."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import springtide as st
from springtide.errors import CheckpointError

pytest.importorskip("pyspark")

from spark.driver.test_batch import NO_TABLES, Case, interrupted, numbers, read
from springtide.durable import read_json, write_atomic
from springtide.spark.driver import staged
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.staged import Output, StagedFileError
from springtide.spark.driver.undo import take_back
from springtide.spark.private.logs import COMMIT
from springtide.spark.shared.program import Staging
from springtide.spark.task import staging
from springtide.spark.task.letters import LETTER, dead_letter

EVEN, ODD = range(0, 40, 2), range(1, 40, 2)
"""The two files of batch 1. Batch 0 has the negative numbers."""
Damage = Callable[["Crashed", Path], None]


class Crashed:
    """A driver that died after the commit of batch 1 and before it published: two files of a sink, and one of dead letters."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root, root / "out"
        self.wanted: dict[str, bytes] = {}  # what readers are to see in the end, by the files' names
        self.case = self.started()
        self.stage(0, [-1, -2], [-3])
        self.case.run(0)
        self.older = {"dead": self.letters()[0], "out": next(self.out.glob("*.parquet"))}
        self.stage(1, EVEN, ODD)
        self.case.sinks.publish = interrupted  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            self.case.run(1)
        self.case.checkpoint.release()

    def started(self) -> Case:
        case = Case(self.root, numbers(st.sink.files(self.out)))
        try:
            case.sinks.prepare(NO_TABLES, case.checkpoint)
        except Exception:
            case.checkpoint.release()
            raise
        return case

    def stage(self, batch: int, one: Iterable[int], other: Iterable[int]) -> None:
        self.case.stage(batch, *one)
        self.case.stage(batch, *other)
        letter = {"topology": "numbers", "batch": batch, **vars(dead_letter("sink0", {"n": batch}, ValueError("no")))}
        place = self.case.sinks._places[""]
        at = staging.Attempt(self.case.checkpoint.epoch, batch, level=0, gate=0, task=0, attempt=0)
        written = staging.write(place, "", at, [pa.RecordBatch.from_pylist([letter], schema=LETTER)])
        first = self.case.tasks[0]
        self.case.tasks[0] = replace(first, receipts=first.receipts + written.receipts)
        self.files = self.case.sinks.located(batch, [vars(one) for task in self.case.tasks for one in task.receipts])
        self.wanted |= {one.receipt.name: one.staged.read_bytes() for one in self.files}

    def victim(self, which: str) -> Path:
        one, letters, other = self.files
        return {"a file of a sink": one, "dead letters": letters, "the second of two": other}[which].staged

    def letters(self) -> list[Path]:
        return sorted((self.root / "checkpoint" / "springtide" / "dead").glob("*.json"))

    def visible(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (*self.out.glob("*.parquet"), *self.letters())}

    def start_again(self) -> None:
        self.case = self.started()

    def replay(self) -> None:
        """What Spark does with a batch that it has begun and not logged as committed."""
        assert self.case.checkpoint.begun() == 1
        if self.case.checkpoint.manifest(1) is None:
            self.stage(1, EVEN, ODD)
        self.case.run(1)


@pytest.fixture
def crashed(tmp_path: Path) -> Iterator[Crashed]:
    crash = Crashed(tmp_path)
    yield crash
    crash.case.checkpoint.release()


def deleted(crash: Crashed, file: Path) -> None:
    file.unlink()


def cut(crash: Crashed, file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flipped(crash: Crashed, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def emptied(crash: Crashed, file: Path) -> None:
    os.truncate(file, 0)


def garbage(crash: Crashed, file: Path) -> None:
    file.write_bytes(os.urandom(file.stat().st_size))


def of_another(crash: Crashed, file: Path) -> None:
    """The content of another file of the batch, and so a good one."""
    other = next(one.staged for one in crash.files if one.staged != file and one.staged.suffix in (file.suffix, ".parquet"))
    shutil.copy(other, file)


def older(crash: Crashed, file: Path) -> None:
    """The file of the same sink in the batch before."""
    shutil.copy(crash.older["dead" if file.suffix == ".json" else "out"], file)


def touched(crash: Crashed, file: Path) -> None:
    """No damage."""
    os.utime(file, (0, 0))


@pytest.mark.parametrize("which", ["a file of a sink", "dead letters", "the second of two"])
@pytest.mark.parametrize("damage", [deleted, cut, flipped, emptied, garbage, of_another, older], ids=lambda one: one.__name__)
def test_what_is_damaged_between_commit_and_publishing_is_computed_again(
    crashed: Crashed, damage: Damage, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, victim = crashed.visible(), crashed.victim(which)
    damage(crashed, victim)
    with caplog.at_level(logging.WARNING, "springtide.spark"):
        crashed.start_again()
    assert crashed.visible() == before, "nothing of the batch shows before all of it is right"
    assert crashed.case.checkpoint.manifest(1) is None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"batch 1 is committed, but the staged file {victim} ")
    crashed.replay()
    assert crashed.visible() == crashed.wanted


def test_what_is_whole_is_published_and_the_batch_is_not_computed_again(crashed: Crashed) -> None:
    touched(crashed, crashed.victim("the second of two"))
    crashed.start_again()
    assert crashed.visible() == crashed.wanted
    assert crashed.case.checkpoint.manifest(1) is not None
    crashed.replay()
    assert crashed.visible() == crashed.wanted


@pytest.mark.parametrize("damage", [deleted, flipped, touched], ids=lambda one: one.__name__)
def test_a_crash_in_the_middle_of_publishing_takes_a_file_for_published_only_if_its_target_is_right(
    crashed: Crashed, damage: Damage
) -> None:
    """The first of two files was moved; what became of it decides."""
    first = crashed.files[0]
    staged.publish(first)
    assert first.target is not None
    damage(crashed, first.target)
    crashed.start_again()
    assert (crashed.case.checkpoint.manifest(1) is not None) == (damage is touched)
    if damage is not touched:
        assert not first.target.exists(), "what was published of the batch is taken back"
    crashed.replay()
    assert crashed.visible() == crashed.wanted


def test_what_readers_moved_away_after_spark_logged_the_commit_is_theirs(crashed: Crashed) -> None:
    crashed.start_again()
    crashed.replay()
    shutil.rmtree(crashed.out)
    crashed.case.checkpoint.release()
    crashed.start_again()
    assert crashed.case.checkpoint.manifest(1) is not None
    assert read(crashed.out) == []


def test_a_batch_is_finished_if_spark_began_another_though_its_commit_was_lost(crashed: Crashed) -> None:
    """Spark does not fsync its commits. The output is the readers', who have taken it away."""
    for one in crashed.files:
        one.staged.unlink()
    crashed.case.begin(2)
    crashed.start_again()
    assert crashed.case.checkpoint.manifest(1) is not None, "it is not computed again"


def test_a_file_that_is_damaged_before_the_commit_is_not_committed(tmp_path: Path) -> None:
    case = Case(tmp_path, numbers(st.sink.files(tmp_path / "out")))
    case.sinks.prepare(NO_TABLES, case.checkpoint)
    staged = case.stage(0, 1, 2, 3)
    os.truncate(staged.staged, 5)
    with pytest.raises(StagedFileError, match=f"a task wrote {staged.staged}, with 3 records, and now it has 5 bytes, not "):
        case.run(0)
    assert case.checkpoint.last_manifest() is None and read(tmp_path / "out") == []
    assert case.runner.fatal is None, "the query starts again, and computes the batch again"
    case.checkpoint.release()


def test_damage_that_is_found_while_the_driver_runs_restarts_the_query(tmp_path: Path) -> None:
    case = Case(tmp_path, numbers(st.sink.files(tmp_path / "out")))
    case.sinks.prepare(NO_TABLES, case.checkpoint)
    staged, commit = case.stage(0, 1, 2), case.checkpoint.commit

    def committed(manifest: Any) -> None:
        commit(manifest)
        staged.staged.unlink()

    case.checkpoint.commit = committed  # type: ignore[method-assign]
    with pytest.raises(StagedFileError, match="is missing"):
        case.run(0)
    assert case.runner.fatal is None
    case.checkpoint.release()


# Where the batch cannot be computed again


def test_a_batch_that_cannot_be_computed_again_is_refused_by_the_name_of_its_file(crashed: Crashed) -> None:
    victim = crashed.victim("a file of a sink")
    victim.unlink()
    (crashed.root / "checkpoint" / "springtide" / "manifests" / "00000000.json").unlink()
    hindered = "the manifest of batch 0 is missing.*put that file back from a copy"
    refused = f"the staged file {re.escape(str(victim))} is missing.* {hindered}"
    with pytest.raises(CheckpointError, match=refused):
        crashed.start_again()
    assert (crashed.root / "checkpoint" / "springtide" / "manifests" / "00000001.json").exists()


def test_state_of_the_batch_before_has_to_be_there_for_it(crashed: Crashed) -> None:
    checkpoint = Checkpoint(crashed.root / "checkpoint")
    before = {**(checkpoint.manifest(0) or {}), "state": {"count": {"keys": 1, "runs": [[0, 0, [["a.state", 9, 1]], []]]}}}
    write_atomic(checkpoint.manifests.file(0), before)
    with pytest.raises(CheckpointError, match=r"of the state before it .*/state/count/a\.state is gone"):
        take_back(checkpoint, 1, "a file is damaged", [])
    folder = checkpoint.state_folder() / "count"
    folder.mkdir(parents=True)
    (folder / "a.state").touch()
    with pytest.raises(CheckpointError, match=r"a\.state has 0 bytes of 9"):
        take_back(checkpoint, 1, "a file is damaged", [])
    (folder / "a.state").write_bytes(bytes(9))
    take_back(checkpoint, 1, "a file is damaged", [])
    assert checkpoint.last_manifest() == before


# Receipts are a stranger's words


def changed(**fields: Any) -> Callable[[dict[str, Any], Path], Any]:
    return lambda receipt, root: {**receipt, **{k: v.format(root=root) if isinstance(v, str) else v for k, v in fields.items()}}


def by_path(path: str) -> Callable[[dict[str, Any], Path], Any]:
    """As receipts were before they had plain names."""
    return lambda receipt, root: {
        "sink": receipt["sink"], "staged": path.format(root=root, **receipt), "name": receipt["name"], "rows": 1
    }  # fmt: skip


PLANTED: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "to the folder above": changed(name="../stolen"),
    "to a path": changed(name="{root}/stolen"),
    "to a folder": changed(name=".."),
    "to nothing": changed(name=""),
    "with NUL": changed(name="a\0b"),
    "over a file of somebody else's": changed(name="precious.txt"),
    "from a folder above": changed(file="../../../../precious.txt"),
    "from a path": changed(file="{root}/precious.txt"),
    "of another sink": changed(sink="other"),
    "of a sink that is a path": changed(sink="../.."),
    "of no sink": changed(sink=None),
    "of an epoch that is a path": changed(epoch="../.."),
    "of an epoch below 0": changed(epoch=-1),
    "without a file": changed(file=None),
    "with more than receipts have": changed(more=1),
    "with a number for a name": changed(name=7),
    "without a checksum": changed(crc32=None),
    "with the name of another task": lambda receipt, root: {**receipt, "name": receipt["name"].replace("-00000.", "-00001.")},
    "null": lambda receipt, root: None,
    "a list": lambda receipt, root: ["a"],
    "by path, of any file": by_path("{root}/precious.txt"),
    "by path, in a folder like a staging folder": by_path("{root}/epoch-000001/{file}"),
    "by path, through the sink's folder": by_path("{root}/out/../precious.txt"),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("finished", [False, True], ids=["before publishing", "after a clean stop"])
def test_a_planted_receipt_moves_nothing_and_is_refused_where_it_would_be_used(
    crashed: Crashed, planted: str, finished: bool
) -> None:
    root, manifest = crashed.root, crashed.root / "checkpoint" / "springtide" / "manifests" / "00000001.json"
    if finished:
        (root / "checkpoint" / "spark" / "commits" / "1").write_text(COMMIT)
    (root / "precious.txt").write_text("precious")
    (root / "out" / "precious.txt").write_text("precious")
    document = read_json(manifest) or {}
    document["receipts"][0] = PLANTED[planted](document["receipts"][0], root)
    write_atomic(manifest, document)
    before = contents(root)
    if finished and planted.startswith("by path"):  # as earlier versions wrote them: of no use to anybody once all is published
        crashed.start_again()
        assert all((folder / "precious.txt").read_text() == "precious" for folder in (root, root / "out"))
        return
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(manifest))}: a receipt .*nothing was moved"):
        crashed.start_again()
    assert contents(root) == before


def contents(root: Path) -> dict[str, bytes]:
    """Of all files but those that a start writes before it reads a manifest."""
    files = [file for file in root.rglob("*") if file.is_file() and file.name not in ("epoch.json", "driver.lock")]
    return {str(file): file.read_bytes() for file in files}


def test_a_link_in_the_staging_folder_is_not_followed(crashed: Crashed) -> None:
    victim = crashed.victim("a file of a sink")
    moved = victim.rename(crashed.root / "elsewhere")
    victim.symlink_to(moved)
    crashed.start_again()
    assert crashed.case.checkpoint.manifest(1) is None and moved.exists()


def test_manifests_of_before_receipts_had_checksums_are_read(crashed: Crashed) -> None:
    manifest = crashed.root / "checkpoint" / "springtide" / "manifests" / "00000001.json"
    document = read_json(manifest) or {}
    document["receipts"] = [
        {"sink": one.receipt.sink, "staged": str(one.staged), "name": one.receipt.name, "rows": one.receipt.rows}
        for one in crashed.files
    ]
    write_atomic(manifest, document)
    crashed.start_again()
    assert crashed.visible() == crashed.wanted


# Writing


def test_dead_letters_are_for_their_owner_only(crashed: Crashed) -> None:
    modes = {one.receipt.sink: stat.S_IMODE(one.staged.stat().st_mode) for one in crashed.files}
    assert modes[""] == 0o600 and modes["sink0"] & 0o044
    crashed.start_again()
    assert [stat.S_IMODE(file.stat().st_mode) for file in crashed.letters()] == [0o600, 0o600]


def test_a_disk_that_is_full_fails_the_attempt_and_names_the_path(tmp_path: Path) -> None:
    """/dev/full takes nothing. It is no record's fault, and none becomes a dead letter."""
    rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    at = staging.Attempt(epoch=1, batch=0, level=0, gate=0, task=0, attempt=0)
    (tmp_path / "epoch-000001").mkdir()
    path = tmp_path / "epoch-000001" / "part-00000000-0-0-00000-0.csv"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device, while 2 records were staged: '{path}'"):
        staging.write(Staging(str(tmp_path), "csv"), "out", at, [rows])


def test_a_receipt_tells_size_and_checksum_and_no_path(tmp_path: Path) -> None:
    place = Staging(str(tmp_path), "json", "out-1")
    at = staging.Attempt(epoch=1, batch=2, level=0, gate=0, task=3, attempt=4)
    (receipt,) = staging.write(place, "out", at, [pa.RecordBatch.from_pydict({"n": [1, 2]})]).receipts
    stem = "out-1-00000002-0-0-00003"
    content = {"rows": 2, "bytes": 18, "crc32": 3111920925, "place": ""}
    assert asdict(receipt) == {"sink": "out", "epoch": 1, "file": f"{stem}-4.json", "name": f"{stem}.json", **content}
    assert staged.located(vars(receipt), place, None, 2) == Output(receipt, tmp_path / "epoch-000001" / receipt.file)


# On Spark


@dataclass(frozen=True)
class Number:
    n: int
    key: str


@dataclass(frozen=True)
class Total:
    key: str
    count: int


class Counting(st.Processor):
    """Numbers the records of each key: state that goes back too far, or not far enough, shows in a number."""

    seen = st.value(int, default=0)

    def process(self, key: str, records: list[Number], state: st.State) -> Iterator[Total]:
        for _ in records:
            state.seen += 1
            yield Total(key, state.seen)


def number(draw: st.Draw) -> Number:
    return Number(draw.index, f"k{draw.index % 5}")


def no_sevens(one: Number) -> Number:
    if one.n % 7 == 0:
        raise ValueError(f"no {one.n}")
    return one


class Death(CheckpointError):
    """Ends a run as a kill would: nothing of the driver's runs after the commit."""


@pytest.mark.spark
def test_a_run_with_state_is_exact_though_its_output_was_damaged_after_two_commits(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batch 1 the driver lives, and its supervisor restarts the query; after batch 3 it dies, and the next run finds it."""
    out, commit = tmp_path / "out", Checkpoint.commit

    def staged(batch: int) -> list[Path]:
        folders = (out, tmp_path / "checkpoint" / "springtide" / "dead")
        return [file for folder in folders for file in folder.glob(f"_springtide/*/epoch-*/*-{batch:08d}-*")]

    def damaging(checkpoint: Checkpoint, manifest: Any) -> None:
        commit(checkpoint, manifest)
        if manifest["batch"] == 1 and manifest["epoch"] == 1:
            os.truncate(staged(1)[0], 10)
        if manifest["batch"] == 3:
            raise Death("killed")

    def job() -> st.Topology:
        source = st.source.generate(number, rate=1e6, limit=100, max_records=20)
        counted = source.map(no_sevens).key_by("key").stateful(Counting, shards=8)
        return counted.to(st.sink.files(out)).named("damaged")

    def run() -> st.Result:
        return st.run(
            job(), spark=spark, checkpoint=tmp_path / "checkpoint", runs=tmp_path / "runs", policy="static", max_slots=2
        )

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "commit", damaging)
        with pytest.raises(Death):
            run()
    for file in staged(3):
        file.unlink()
    run()
    rows = sorted(
        (row["key"], row["count"]) for file in out.glob("*.parquet") for row in pyarrow.parquet.read_table(file).to_pylist()
    )
    kept = [n for n in range(100) if n % 7]
    assert rows == [(f"k{key}", place + 1) for key in range(5) for place in range(sum(n % 5 == key for n in kept))]
    dead = [file.read_text() for file in (tmp_path / "checkpoint" / "springtide" / "dead").glob("*.json")]
    letters = [json.loads(line) for text in dead for line in text.splitlines()]
    assert sorted(json.loads(letter["record"])["n"] for letter in letters) == list(range(0, 100, 7))
