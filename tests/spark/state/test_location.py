"""State that lies at a URI, read through the node's cache: against a dict, with damage on either side, and on Spark with S3."""

from __future__ import annotations

import datetime
import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

import springtide as st
from processors.state_machine import Machine
from spark.state.test_book import plain, run_batches, task
from spark.state.test_store import Event, as_stored, contents, expected, layout_in, rows_of, steps
from springtide.cli.main import cli
from springtide.errors import CheckpointError, OptionError, SetupError
from springtide.model.plan import Plan
from springtide.policy.group.shards import shards_of
from springtide.policy.shard import spread
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.state import cache, segment
from springtide.spark.state.book import StateBook
from springtide.spark.state.cache import RETAIN_S, STALE_S, Cache, Traffic, node_folder
from springtide.spark.state.catalog import FEW
from springtide.spark.state.compact import merge
from springtide.spark.state.declared import declarations, layout_of
from springtide.spark.state.exporting import exported
from springtide.spark.state.reading import reading, stored_state
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.state.stepping import Stepping, Version
from springtide.spark.state.store import Folder, Remote, check_writable, checked, store_of


class Elsewhere(Machine):
    """A machine whose state lies at ``file:///…``, and whose tasks run on nodes with caches of their own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.remote, self.nodes = folder / "remote", folder / "nodes"
        super().__init__(replace(layout_in(folder, **options), folder=self.remote.as_uri()))

    def rows(self) -> list[dict[str, Any]]:
        before = self.catalog
        self.merge(len(before.runs))
        names, self.catalog = self.files, before
        parts = store_of(self.layout.folder).segments(names)
        return [row for part in parts for number in range(len(part.chunks)) for row in part.read(number).to_pylist()]

    def batch_of(self, events: list[Event]) -> list[StateReceipt]:
        """A batch of one task that is committed; its receipts."""
        receipts, _ = self.attempt(rows_of(events), spread(16, 1), 1)
        self.commit(receipts)
        return receipts


@pytest.fixture
def no_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are in pieces, however small they are."""
    monkeypatch.setattr(cache, "TAIL_BYTES", 64)


def pieces(node: Path) -> dict[str, Path]:
    """By name, the pieces of all segments in a node's cache."""
    return {path.name: path for path in node.glob("*/*.state/*")}


def traffic(receipts: list[StateReceipt]) -> tuple[int, int, int]:
    total = Traffic()
    for receipt in receipts:
        total.add(vars(receipt))
    return total.cache_hits, total.cache_misses, total.fetched_bytes


MANY = [Event(f"k{n}", 1) for n in range(200)]


# Right, whatever happens


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_random_nodes_crashes_and_retries_leave_what_a_dict_has(tmp_path_factory: Any, history: list[Any]) -> None:
    machine, model = Elsewhere(tmp_path_factory.mktemp("state")), dict[str, list[int]]()
    with pytest.MonkeyPatch.context() as patch:
        for batch, width, fate, seed in history:
            patch.setenv("SPARK_LOCAL_DIRS", str(machine.nodes / str(seed % 3)))
            owner = np.array([random.Random(seed + i).randrange(width) for i in range(16)])
            if fate == "lost":
                machine.attempt(rows_of(batch), owner, width)
            receipts, output = machine.attempt(rows_of(batch), owner, width)
            if fate == "retried":  # on another node
                patch.setenv("SPARK_LOCAL_DIRS", str(machine.nodes / str((seed + 1) % 3)))
                assert machine.attempt(rows_of(batch), owner, width)[1] == output
            assert sorted((row["key"], row["total"]) for row in output) == expected(model, batch)
            machine.commit(receipts)
            if fate == "merge":
                machine.merge(seed % (len(machine.catalog.runs) + 1))
        assert contents(machine) == as_stored(model)
    assert not list(machine.nodes.glob("*/*/*/writing/*"))


@pytest.mark.usefixtures("no_small_files")
def test_what_a_node_has_is_not_fetched_again(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    machine = Elsewhere(tmp_path)
    here = on_node("a")
    assert traffic(machine.batch_of(MANY)) == (0, 0, 0)  # there was nothing to read
    assert list(pieces(here)) == ["whole"]
    assert traffic(machine.batch_of(MANY[:1])) == (2, 0, 0)  # the index and the one chunk of what was written here
    first, second = (tmp_path / "remote" / name for name in reversed(machine.files))
    chunks = [segment.Segment(str(path)).chunks[0].length for path in (first, second)]
    there = on_node("b")
    # of each file its last 64 bytes, then its index, for which they were not enough, and what is before that, less a padding
    indices = [path.stat().st_size - length - -length % 64 for path, length in zip((first, second), chunks, strict=True)]
    assert min(indices) > 64
    assert traffic(machine.batch_of(MANY)) == (0, 4, 2 * 64 + sum(indices) + sum(chunks))
    assert sorted(pieces(there)) == ["0", "index", "whole"]
    assert traffic(machine.batch_of(MANY)) == (4, 0, 0)  # three indices, and the chunk of what was written last, with all keys


def test_a_small_file_is_fetched_at_once(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    machine = Elsewhere(tmp_path)
    on_node("a")
    machine.batch_of(MANY)
    there = on_node("b")
    size = (tmp_path / "remote" / machine.files[0]).stat().st_size
    assert size < cache.TAIL_BYTES
    receipts, _ = machine.attempt(rows_of(MANY), spread(16, 1), 1)
    assert traffic(receipts) == (1, 1, size)  # the chunk has come with the index
    assert [path.name for path in there.glob(f"*/{machine.files[0]}/*")] == ["whole"]


@pytest.mark.usefixtures("no_small_files")
def test_only_chunks_of_the_shards_that_a_task_needs_are_fetched(
    tmp_path: Path, on_node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "CHUNK_BYTES", 1)  # a chunk for each of the 16 shards
    machine = Elsewhere(tmp_path)
    on_node("a")
    machine.batch_of(MANY)
    one = machine.arriving(rows_of(MANY[:1]))
    (shard,) = shards_of(one.column(segment.HASH).to_numpy(), 16).tolist()
    there = on_node("b")
    stepping = Stepping(machine.layout, Version(machine.files, machine.now), np.arange(16) == shard, "x.state", 0)
    list(stepping.run(one))
    assert sorted(pieces(there)) == sorted([str(shard), "index", "whole"])
    assert (stepping.receipt.cache_hits, stepping.receipt.cache_misses) == (0, 2)


@pytest.mark.usefixtures("no_small_files")
@pytest.mark.parametrize("harm", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: b"?" + whole[1:]])
@pytest.mark.parametrize(("node", "piece"), [("a", "whole"), ("b", "index"), ("b", "0")])
def test_a_damaged_piece_is_fetched_anew(
    tmp_path: Path, on_node: Callable[[str], Path], node: str, piece: str, harm: Callable[[bytes], bytes]
) -> None:
    machine = Elsewhere(tmp_path)
    on_node("a")
    machine.batch_of(MANY)
    here = on_node(node)
    machine.attempt(rows_of(MANY), spread(16, 1), 1)  # "b" has the index and the chunk now
    (damaged,) = (path for path in here.glob(f"*/{machine.files[0]}/{piece}"))
    damaged.write_bytes(harm(damaged.read_bytes()))
    receipts, output = machine.attempt(rows_of(MANY), spread(16, 1), 1)
    assert {row["total"] for row in output} == {2} and len(output) == 200
    assert traffic(receipts)[1] >= 1
    machine.attempt(rows_of(MANY), spread(16, 1), 1)  # for the index of a file that was whole before
    assert traffic(machine.attempt(rows_of(MANY), spread(16, 1), 1)[0]) == (2, 0, 0)  # it is mended


@pytest.mark.parametrize("tail_bytes", [64, 64 << 10])
def test_what_is_damaged_where_it_lies_is_named(
    tmp_path: Path, on_node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    monkeypatch.setattr(cache, "TAIL_BYTES", tail_bytes)
    machine = Elsewhere(tmp_path)
    on_node("a")
    machine.batch_of(MANY)
    (name,) = machine.files
    path, uri = tmp_path / "remote" / name, f"{machine.layout.folder}/{name}"
    whole = path.read_bytes()
    on_node("b")
    for number, content in enumerate((whole[:100] + b"?" + whole[101:], whole[:-1], whole[:5], b"")):
        on_node(f"b{number}")
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"state file {uri} is damaged"):
            machine.attempt(rows_of(MANY), spread(16, 1), 1)
        with pytest.raises(CheckpointError, match=f"state file {uri} is damaged"):
            store_of(machine.layout.folder).verify(name)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"state file {uri} is damaged: it is gone"):
        machine.attempt(rows_of(MANY), spread(16, 1), 1)
    path.write_bytes(whole)
    assert len(machine.attempt(rows_of(MANY), spread(16, 1), 1)[1]) == 200


def test_a_piece_that_is_removed_while_it_is_read_stays_readable(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    machine = Elsewhere(tmp_path)
    node = on_node("a")
    machine.batch_of(MANY)
    (opened,) = store_of(machine.layout.folder).segments(machine.files)
    rows = opened.read(0)
    pieces(node)["whole"].unlink()
    assert rows.num_rows == 200 and sum(rows.column("state.total").to_pylist()) == 200
    assert opened.read(0).equals(rows)  # fetched


# The cache


def test_the_cache_is_this_users_alone(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    folder = on_node("a")
    assert folder == tmp_path / "nodes" / "a" / f"springtide-state-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert stat.S_IMODE(on_node("a").stat().st_mode) == 0o700
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(SetupError, match=f"{folder}, where state is to be cached, belongs to somebody else"):
        on_node("a")


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, on_node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.getuid() + 1
    folder = tmp_path / "nodes" / "a" / f"springtide-state-{other}"
    folder.mkdir(parents=True)  # by this user, for whom the other one's name was free
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(SetupError, match="belongs to somebody else"):
        on_node("a")


def test_the_cache_outlives_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark tells its workers folders that it removes with the executor."""
    one = "0b5d2a3c-6f0e-4a52-9f57-2f0f3a6f3c11"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/spark-{one}/executor-{one}/blockmgr-{one},/other/blockmgr-{one}")
    (tmp_path / f"spark-{one}" / f"executor-{one}" / f"blockmgr-{one}").mkdir(parents=True)
    assert node_folder().parent == tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # as above a volume of a container
    assert node_folder().parent == tmp_path / f"spark-{one}"
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setenv("LOCAL_DIRS", f"{tmp_path}/application_1")
    assert node_folder().parent == tmp_path / "application_1"


def test_pieces_go_some_minutes_after_nobody_names_them(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    machine = Elsewhere(tmp_path)
    node = on_node("a")
    for _ in range(3):
        machine.batch_of(MANY)
    old, used, named = reversed(machine.files)
    place = {path.name: path for path in node.glob("*/*.state")}
    other, stray = node / "0123", next(node.glob("*/writing")) / "stray"
    other.mkdir()
    stray.touch()
    for path, age_s in ((place[old], RETAIN_S + 1), (place[used], RETAIN_S - 60), (place[named], 1e6), (other, STALE_S - 60),
                        (stray, STALE_S - 60)):  # fmt: skip
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    store_of(machine.layout.folder).tidy([named])
    assert {path.name for path in node.glob("*/*.state")} == {used, named}
    assert other.exists() and stray.exists()
    for path in (other, stray):
        os.utime(path, (time.time() - STALE_S - 1, time.time() - STALE_S - 1))
    store_of(machine.layout.folder).tidy([named])
    assert not other.exists() and not stray.exists()
    machine.attempt(rows_of(MANY), spread(16, 1), 1)  # what went is fetched


def test_a_full_disk_is_no_reason_to_stop(
    tmp_path: Path, on_node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Elsewhere(tmp_path)
    on_node("a")
    machine.batch_of(MANY)
    on_node("b")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cache, "_move", full)
    (opened,) = store_of(machine.layout.folder).segments(machine.files)
    assert opened.read(0).num_rows == 200 and opened.read(0).num_rows == 200
    machine.batch_of(MANY)
    assert len(machine.files) == 2 and all((tmp_path / "remote" / name).exists() for name in machine.files)
    assert not list((tmp_path / "nodes" / "b").glob("*/*/*/*"))


def test_what_cannot_be_brought_to_its_place_is_not_in_a_receipt(
    tmp_path: Path, on_node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Elsewhere(tmp_path)
    node = on_node("a")

    def lost(*_: Any) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(Remote, "_write", lost)
    stepping = Stepping(machine.layout, Version((), 0), np.ones(16, dtype=np.bool_), "x.state", 0)
    with pytest.raises(OSError, match="connection reset"):
        list(stepping.run(machine.arriving(rows_of(MANY))))
    assert stepping.receipt.file is None
    assert not [path for path in node.rglob("*") if path.is_file()]


def test_a_plain_folder_has_no_cache(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    on_node("a")
    machine = Machine(layout_in(tmp_path / "state"))
    for _ in range(2):
        receipts, _ = machine.attempt(rows_of(MANY), spread(16, 1), 1)
        machine.commit(receipts)
    assert isinstance(store_of(machine.layout.folder), Folder)
    assert traffic(receipts) == (0, 0, 0) and not list((tmp_path / "nodes").glob("*/*/*"))


# The driver's book


def book_at(folder: Path, manifest: Any = None, epoch: int = 1) -> tuple[StateBook, Machine]:
    topology = plain()
    layouts = {o.name: layout_of(topology, o, folder.as_uri(), "secret") for o in topology.stateful}

    def merged(operator: str, names: Any, target: str, oldest: bool, now: int) -> Any:
        return merge(layouts[operator], names, target, oldest, now)

    return StateBook(topology, layouts, epoch, manifest, merged), Machine(layouts["count"])


def test_the_book_removes_sweeps_and_mends_there(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    on_node("a")
    book, machine = book_at(tmp_path / "remote")
    manifest = run_batches(book, machine, 40)
    book._thread.shutdown(wait=True)
    book._remover.shutdown(wait=True)
    folder, needed = tmp_path / "remote" / "count", book.catalog("count").names
    there = {path.name for path in folder.iterdir()}
    waiting = {file.name for files in book._unneeded for file in files}
    assert needed <= there
    assert {name for name in there - needed - waiting if "-m" not in name} == set()  # a merge may have just ended
    machine.attempt([{"key": 1, "at": datetime.datetime.now(datetime.UTC)}], None, 1)  # its driver died
    again, _ = book_at(tmp_path / "remote", manifest, epoch=2)
    assert {path.name for path in folder.iterdir()} == needed
    merged = next(run for run in again.catalog("count").runs if run.before)
    path = folder / merged.files[0].name
    path.write_bytes(path.read_bytes()[:-3])
    on_node("b")
    machine.catalog = again.catalog("count")
    with pytest.raises(CheckpointError) as damage:
        machine.attempt([{"key": 1, "at": datetime.datetime.now(datetime.UTC)}], None, 1)
    assert again.mended(damage.value)
    machine.catalog = again.catalog("count")
    names = machine.files
    assert path.name not in names
    receipts, _ = machine.attempt([{"key": key, "at": datetime.datetime.now(datetime.UTC)} for key in range(5)], None, 1)
    assert receipts[0].added == 0  # all five keys are known
    again.close()


def test_reports_tell_what_was_moved_also_by_merges(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    on_node("a")
    book, machine = book_at(tmp_path / "remote")
    run_batches(book, machine, FEW - 1)
    first = book.reports(Plan({}, 1, {}, shards={"count": (0,) * 4}), [])["count"]
    assert (first.cache_hits, first.cache_misses, first.fetched_bytes) == (0, 0, 0)
    on_node("b")
    manifest = run_batches(book, machine, 1)  # has a merge of all files begun, and waits for it
    files = [file for run in manifest["state"]["count"]["runs"] for file in run[2]]
    assert book._merging and len(files) == FEW
    reported = StateReceipt("count", 0, cache_hits=1, cache_misses=10, fetched_bytes=1_000)
    book.committed(book.after(FEW, [task([reported])]))
    second, third = (book.reports(Plan({}, 1, {}, shards={"count": (0,) * 4}), [task([reported])])["count"] for _ in range(2))
    # the batch on "b" has fetched the files, which are small; the merge found them, and its own: an index and a chunk of each
    assert (second.cache_hits, second.cache_misses, second.fetched_bytes) == (1 + 2 * FEW, 10, 1_000)
    assert third.cache_hits == 1
    book.close()


# Where it may lie


@pytest.mark.parametrize(
    ("given", "remembered"),
    [
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a?region=eu-central-1", "s3://bucket/a?region=eu-central-1"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
        ("hdfs://someone@node:8020/a", "hdfs://someone@node:8020/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("file:/mnt/state/", "file:///mnt/state"),
        ("file:///mnt/state", "file:///mnt/state"),
    ],
)
def test_places_are_remembered_in_one_spelling(given: str, remembered: str) -> None:
    assert checked(given) == remembered == checked(remembered)


@pytest.mark.parametrize(
    "given",
    [
        "s3://key:hush@bucket/a", "s3://hush@bucket/a", "s3a://key:hu/hush@bucket/a", "s3://key:hu#hush@bucket/a",
        "s3:key:hush@bucket", "hdfs://me:hush@node:8020/a", "abfs://account:hush==@box/a",
        "abfs://account:hu/hush==@box/a", "s3://bucket/a?secret_key=hush", "abfs://box@account/a?sig=hush&sv=1",
    ],
)  # fmt: skip
def test_secrets_are_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(OptionError, match="in their environment") as refused:
        checked(given)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("/mnt/state", r"state='/mnt/state': a path is not allowed; .*file:///folder"),
        (
            "ftp://me:hush@host/a",
            r"^state=: ftp:// is not allowed; give a URI with one of s3, s3a, gs, abfs, abfss, hdfs, file",
        ),
        ("file://mnt/state", "three slashes"),
        ("file:///", "three slashes"),
        ("s3:///a", "no bucket or container is named; write s3://NAME/folder"),
    ],
)
def test_places_that_cannot_be_are_reported(given: str, reported: str) -> None:
    with pytest.raises(OptionError, match=reported):
        checked(given)


def test_the_command_tells_it_too(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["run", "tweets", "--runs", str(tmp_path / "runs"), "--state", "ftp://host/a"])
    assert done.exit_code == 2 and "ftp:// is not allowed" in done.stderr, done.output
    assert not (tmp_path / "runs").exists()


def test_a_place_is_tried_before_anything_starts(tmp_path: Path) -> None:
    check_writable((tmp_path / "new" / "folder").as_uri())
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"state='file:///.*/file/a' cannot be written to: .*"):
        st.run(plain(), state=(tmp_path / "file" / "a").as_uri(), runs=tmp_path / "runs", checkpoint=tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_a_checkpoint_remembers_where_its_state_lies(tmp_path: Path) -> None:
    topology, uri = plain(), (tmp_path / "remote").as_uri()
    checkpoints = [Checkpoint(tmp_path / name) for name in ("a", "b", "c")]
    for one in checkpoints:
        one.acquire(topology)
    there, too, inside = checkpoints
    secret = there.keep_state(declarations(topology), uri)
    assert there.keep_state(declarations(topology)) == there.keep_state(declarations(topology), uri) == secret
    with pytest.raises(CheckpointError, match=f"state='s3://other', but the state of checkpoint {there.root} lies at '{uri}'"):
        there.keep_state(declarations(topology), "s3://other")
    too.keep_state(declarations(topology), uri)
    assert there.state_root() == f"{uri}/{there.identity}" != too.state_root()  # else each would sweep away the other's
    inside.keep_state(declarations(topology))
    assert inside.state_root() == str(inside.state_folder())
    with pytest.raises(CheckpointError, match=f"state='{uri}', but the state of checkpoint {inside.root} lies inside it"):
        inside.keep_state(declarations(topology), uri)
    for one in checkpoints:
        one.release()


def test_a_checkpoint_from_before_has_its_state_inside(tmp_path: Path) -> None:
    topology, checkpoint = plain(), Checkpoint(tmp_path)
    checkpoint.acquire(topology)
    checkpoint.remember("state", {"secret": "x", "declared": {}})
    assert checkpoint.keep_state(declarations(topology)) == "x"
    assert checkpoint.state_root() == str(checkpoint.state_folder())
    checkpoint.release()


def test_operators_of_any_name_have_a_folder_there(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    on_node("a")
    stream = st.source.generate(lambda draw: Event("a", 1), rate=1, schema=Event)
    topology = stream.key_by("key").count(name="é t: 1?").to(st.sink.discard()).named("t")
    (operator,) = topology.stateful
    machine = Machine(layout_of(topology, operator, (tmp_path / "a b").as_uri(), "secret"))
    for _ in range(2):
        machine.commit(machine.attempt(rows_of(MANY), None, 1)[0])
    (folder,) = (tmp_path / "a b").iterdir()
    assert folder.name.startswith("é_t__1_-") and len(list(folder.iterdir())) == 2


def test_state_is_imported_shown_and_exported_there(tmp_path: Path, on_node: Callable[[str], Path]) -> None:
    on_node("a")
    job, rows = tmp_path / "job.py", tmp_path / "rows.json"
    job.write_text(
        "import dataclasses\nimport springtide as st\n@dataclasses.dataclass(frozen=True)\nclass E:\n    key: str\n"
        "t = st.source.generate(lambda draw: E('a'), rate=1, schema=E).key_by('key').count()"
        ".to(st.sink.discard()).named('t')\n"
    )
    rows.write_text("".join(json.dumps({"key.key": f"k{n}", "state.count.0": n}) + "\n" for n in range(1, 5)))

    def invoked(*words: object) -> Any:
        done = CliRunner().invoke(cli, ["state", *map(str, words)])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    uri = (tmp_path / "remote").as_uri()
    reported = invoked("import", f"{job}:t", "count", rows, "--checkpoint", tmp_path / "c", "--state", uri, "--json",
                   "--accept-recount")  # fmt: skip
    assert reported["keys"] == 4 and not (tmp_path / "c" / "springtide" / "state").exists()
    (shown,) = invoked("show", tmp_path / "c", "--json")["operators"]
    stored = stored_state(tmp_path / "c", "count")
    assert shown["location"] == stored.place and stored.place.startswith(f"{uri}/") and shown["keys"] == 4
    on_node("b")
    assert invoked("show", tmp_path / "c", "count", "--key", "k3", "--json")["state"] == {"count.0": 3}
    exported(tmp_path / "c", "count", tmp_path / "out.json")
    found = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    assert {row["key.key"]: row["state.count.0"] for row in found} == {"k1": 1, "k2": 2, "k3": 3, "k4": 4}


# On Spark, with S3


@pytest.mark.spark
def test_state_lies_in_s3(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped, and goes on where its node has no pieces; in a process whose environment its workers have."""
    from pyarrow.fs import FileSelector

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "node"))
    tests = str(Path(__file__).parents[2])
    job = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path)], cwd=tests, env={**os.environ, "PYTHONPATH": tests},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-4000:]
    first, second = json.loads(job.stdout.splitlines()[-1])
    assert sum(report["cache_hits"] for report in first) > 0
    assert [report["fetched_bytes"] for report in first] == [0] * len(first)  # one node has written all there is
    moved = [number for number, report in enumerate(second) if report["fetched_bytes"]]
    assert moved and moved[-1] <= 1, second  # the first batch fetches what it needs; a merge, what else there was
    assert second[0]["cache_misses"] > 0

    from spark.state.test_state import expected as totals_of
    from spark.state.test_state import remembered

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "elsewhere"))
    assert remembered(tmp_path / "checkpoint") == totals_of(3_000)
    stored = stored_state(tmp_path / "checkpoint", "totals")
    folder = stored.place.removeprefix("s3://")
    there = {info.base_name for info in s3.get_file_info(FileSelector(folder)) if info.is_file}
    assert stored.catalog.names <= there and stored.place.startswith("s3://bucket/state/")
    assert not (tmp_path / "checkpoint" / "springtide" / "state").exists()
    reported = "".join(path.read_text(errors="replace") for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert "hush" not in reported
    damaged = stored.catalog.runs[0].files[0].name
    with s3.open_output_stream(f"{folder}/{damaged}") as file:
        file.write(b"torn")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "yet another"))
    with (
        pytest.raises(CheckpointError, match=f"state file {stored.place}/{damaged} is damaged"),
        reading(tmp_path / "checkpoint", "totals") as state,
    ):
        list(state.rows())


def test_a_bucket_that_is_not_there_is_reported(s3: Any) -> None:
    with pytest.raises(OptionError, match=r"state='s3://nobody/a' cannot be written to: .*bucket"):
        check_writable("s3://nobody/a")
    check_writable("s3://bucket/a")
    assert list(Remote("s3://bucket/a").names()) == []


def main(folder: Path) -> None:
    """Two runs in one session, the second without what the first left in the node's cache; prints what batches reported."""
    import shutil

    from crash.job import fixed_limit
    from spark.state.test_state import totals
    from springtide.record.folder import RunFolder
    from springtide.running import execution
    from springtide.spark.driver import session as sessions

    vars(execution)["ReadLimit"] = fixed_limit(100)
    session: Any = sessions.create(sessions.local_master(2), "state-in-s3")
    reported = []
    endings: list[dict[str, Any]] = [{"batches": 12}, {}]
    for ending in endings:
        result = st.run(
            totals(3_000), target="60s", max_slots=2, policy="static", settings={"degree": 2}, spark=session,
            runs=folder / "runs", checkpoint=folder / "checkpoint", state="s3a://bucket/state" if ending else None, **ending,
        )  # fmt: skip
        reported.append([vars(batch.state["totals"]) for batch in RunFolder.open(result.folder).batches()])
        shutil.rmtree(cache.node_folder())
    session.stop()
    print(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
