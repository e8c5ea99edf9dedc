"""The driver's book of the state: watermarks, commits, merges, what is removed, and what is mended."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import springtide as st
from processors.state_machine import SECOND, Machine
from springtide.errors import CheckpointError, RunError
from springtide.model.plan import Plan
from springtide.spark.shared.report import Report
from springtide.spark.state.book import RETAINED_COMMITS, StateBook
from springtide.spark.state.catalog import FEW, Catalog, File, SegmentRun
from springtide.spark.state.compact import merge
from springtide.spark.state.declared import layout_of
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.state.store import store_of


@dataclass(frozen=True)
class Seen:
    key: int
    at: datetime.datetime


class Count(st.Processor):
    count = st.value(int, default=0)

    def process(self, key: int, records: list[Seen], state: st.State) -> Iterator[Seen]:
        state.count += len(records)
        return iter(())


def source(name: str) -> st.Stream:
    return st.source.generate(lambda draw: Seen(1, draw.created), rate=1, schema=Seen, name=name)


def plain() -> st.Topology:
    return source("s").key_by("key").stateful(Count, shards=4).to(st.sink.discard()).named("t")


def book_of(topology: st.Topology, folder: Path, manifest: Any = None, epoch: int = 1) -> StateBook:
    layouts = {o.name: layout_of(topology, o, str(folder), "secret") for o in topology.stateful}
    for layout in layouts.values():
        store_of(layout.folder).prepare()

    def merged(operator: str, names: Sequence[str], target: str, oldest: bool, now: int) -> Mapping[str, Any]:
        return merge(layouts[operator], names, target, oldest, now)

    return StateBook(topology, layouts, epoch, manifest, merged)


def task(state: Sequence[StateReceipt] = (), **times: int) -> Report:
    return Report(0, state=tuple(state), times=times)


# Time


def test_the_watermark_is_the_latest_of_the_batches_before_less_the_delay(tmp_path: Path) -> None:
    made = source("s").watermark("at", "5s", name="mark").key_by("key").stateful(Count)
    book = book_of(made.to(st.sink.discard()).named("t"), tmp_path)
    assert book.watermark("count") is None
    book.committed(book.after(0, [task(mark=9 * SECOND), task(mark=7 * SECOND), task()]))
    assert book.watermark("count") == 4 * SECOND
    book.committed(book.after(1, [task(mark=3 * SECOND)]))  # it never goes back
    assert book.watermark("count") == 4 * SECOND
    assert book.versions(77)["count"] == {"files": [], "now": 77, "watermark": 4 * SECOND, "expiring": None}


def test_a_unions_watermark_is_the_least_and_waits_for_all(tmp_path: Path) -> None:
    one, two = (source(name).watermark("at", "0s", name=f"mark-{name}") for name in ("a", "b"))
    book = book_of(one.union(two).key_by("key").stateful(Count).to(st.sink.discard()).named("t"), tmp_path)
    book.committed(book.after(0, [Report(0, times={"mark-a": 9 * SECOND})]))
    assert book.watermark("count") is None
    book.committed(book.after(1, [Report(0, times={"mark-b": 2 * SECOND})]))
    assert book.watermark("count") == 2 * SECOND


def test_an_input_without_a_watermark_holds_all_back(tmp_path: Path) -> None:
    both = source("a").watermark("at", "0s", name="mark").union(source("b"))
    book = book_of(both.key_by("key").stateful(Count).to(st.sink.discard()).named("t"), tmp_path)
    book.committed(book.after(0, [task(mark=9 * SECOND)]))
    assert book.watermark("count") is None


def test_behind_a_stateful_operator_time_is_a_batch_behind(tmp_path: Path) -> None:
    first = source("s").watermark("at", "0s", name="mark").key_by("key").stateful(Count, name="first")
    topology = first.key_by("key").stateful(Count, name="second").to(st.sink.discard()).named("t")
    book = book_of(topology, tmp_path)
    for batch, latest in enumerate((10, 20, 30)):
        book.committed(book.after(batch, [task(mark=latest * SECOND)]))
    assert (book.watermark("first"), book.watermark("second")) == (30 * SECOND, 20 * SECOND)
    again = book_of(topology, tmp_path, book.after(3, [task()]))
    assert (again.watermark("first"), again.watermark("second")) == (30 * SECOND, 30 * SECOND)


# Files


def receipt(task: int, shards: Sequence[int], name: str = "f", added: int = 1) -> StateReceipt:
    return StateReceipt("count", task, File(name, 10, 1), list(shards), added)


def test_two_tasks_that_changed_one_shard_are_found_out(tmp_path: Path) -> None:
    book = book_of(plain(), tmp_path)
    with pytest.raises(RunError, match="tasks 0 and 1 both changed shard 2 in one batch"):
        book.after(0, [task([receipt(0, [1, 2])]), task([receipt(1, [2, 3])])])


def run_batches(book: StateBook, machine: Machine, count: int) -> dict[str, Any]:
    """Batches through the miniature machine, committed in the book."""
    manifest: dict[str, Any] = {}
    for _ in range(count):
        machine.catalog = book.catalog("count")
        receipts, _ = machine.attempt([{"key": machine.batch % 5, "at": datetime.datetime.now(datetime.UTC)}], None, 2)
        manifest = book.after(machine.batch, [task(receipts)])
        book.committed(manifest)
        machine.batch += 1
        for merging in book._merging.values():
            merging.result.result()
    return manifest


def test_runs_are_merged_and_what_nobody_needs_is_removed(tmp_path: Path) -> None:
    topology = plain()
    book, machine = book_of(topology, tmp_path), Machine.of(topology, tmp_path)
    run_batches(book, machine, 60)
    book.close()  # which waits for what is being removed
    catalog = book.catalog("count")
    assert len(catalog.runs) <= 2 * FEW
    assert any(run.before for run in catalog.runs)
    there = {path.name for path in (tmp_path / "count").iterdir()}
    waiting = {path.name for paths in book._unneeded for path in paths}
    in_flight = {path for path in there if "-m" in path and path not in catalog.names}
    assert catalog.names <= there
    assert there <= catalog.names | waiting | in_flight
    assert len(book._unneeded) == RETAINED_COMMITS
    machine.catalog = catalog
    assert {row["key.key"]: row["state.count"] for row in machine.rows()} == dict.fromkeys(range(5), 12)
    assert catalog.keys == 5


def damage(book: StateBook, folder: Path) -> None:
    """Replace a merged file by one whose end is cut off, and have it found. A merge may have the file mapped at that moment;
    a file that is cut in place would kill its process."""
    for run in (run for run in book.catalog("count").runs if run.before):
        path = folder / "count" / run.files[0].name
        cut = folder / "cut"
        cut.write_bytes(path.read_bytes()[:-3])
        cut.replace(path)
        assert book.mended(RuntimeError(f"state file {path} is damaged: it was cut"))
        break


BATCHES = some.tuples(
    some.sets(some.integers(0, 7), max_size=3), some.integers(1, 9), some.booleans(), some.sampled_from([False, False, True])
)


@settings(max_examples=40)
@given(some.lists(BATCHES, min_size=20, max_size=50))
def test_keys_are_counted_though_a_merge_forgets_some_that_come_again(batches: list[tuple[set[int], int, bool, bool]]) -> None:
    """Of each batch: the keys that come, the seconds that pass, whether the merge is done before the next, and whether a merged
    file is damaged then. A key is forgotten after 12 s; a merge that runs meanwhile lets it go, and it may have come again."""
    topology = source("s").key_by("key").stateful(Count, shards=4, ttl="12s").to(st.sink.discard()).named("t")
    with tempfile.TemporaryDirectory() as folder:
        book, machine = book_of(topology, Path(folder)), Machine.of(topology, Path(folder))
        reader = Machine(replace(machine.layout, ttl_us=None))  # also sees expired keys
        for keys, passed, waits, damaged in batches:
            if damaged:
                damage(book, Path(folder))
            machine.catalog = book.catalog("count")
            machine.expiring = book.versions(machine.now)["count"]["expiring"]
            receipts, _ = machine.attempt([{"key": key, "at": datetime.datetime.now(datetime.UTC)} for key in keys], None, 2)
            book.committed(book.after(machine.batch, [task(receipts)]))
            machine.batch, machine.now = machine.batch + 1, machine.now + passed * SECOND
            for merging in book._merging.values() if waits else ():
                merging.result.result()
        reader.catalog = book.catalog("count")
        assert reader.catalog.keys == len(reader.rows())
        book.close()
        futures.wait([merging.result for merging in book._merging.values()])  # they write into the folder


def test_keys_that_a_merge_expired_count_again_when_it_is_restored(tmp_path: Path) -> None:
    topology = source("s").key_by("key").stateful(Count, shards=4, ttl="12s").to(st.sink.discard()).named("t")
    book, machine = book_of(topology, tmp_path), Machine.of(topology, tmp_path)
    counts, at = [], datetime.datetime.now(datetime.UTC)
    for keys, ended in [([0, 1, 2, 3], 0), *[([0], 0)] * (FEW - 2), ([0], 100), ([0, 1], 0)]:
        machine.now += ended * SECOND  # the last of the runs to be merged: the other keys have expired
        machine.expiring = book.versions(machine.now)["count"]["expiring"]
        machine.catalog = book.catalog("count")
        receipts, _ = machine.attempt([{"key": key, "at": at} for key in keys])
        book.committed(book.after(machine.batch, [task(receipts)]))
        machine.batch += 1
        for merging in book._merging.values():
            merging.result.result()
        counts.append(book.catalog("count").keys)
    assert counts[-2:] == [4, 2]  # 0, and 1, which came again while the merge was running; 2 and 3 expired
    damage(book, tmp_path)
    assert book.catalog("count").keys == 4
    book.close()


def test_a_start_sweeps_away_what_was_never_committed(tmp_path: Path) -> None:
    topology = plain()
    book, machine = book_of(topology, tmp_path), Machine.of(topology, tmp_path)
    manifest = run_batches(book, machine, 3)
    machine.attempt([{"key": 1, "at": datetime.datetime.now(datetime.UTC)}], None, 1)  # its driver died
    lost = {path.name for path in (tmp_path / "count").iterdir()} - book.catalog("count").names
    assert len(lost) == 1
    again = book_of(topology, tmp_path, manifest, epoch=2)
    assert {path.name for path in (tmp_path / "count").iterdir()} == again.catalog("count").names


def test_a_damaged_merge_gives_way_to_what_it_was_made_of(tmp_path: Path) -> None:
    topology = plain()
    book, machine = book_of(topology, tmp_path), Machine.of(topology, tmp_path)
    run_batches(book, machine, FEW + 2)
    before = book.catalog("count")
    merged = next(run for run in before.runs if run.before)
    path = tmp_path / "count" / merged.files[0].name
    reported = RuntimeError(f"Job aborted: CheckpointError: state file {path} is damaged: it is gone")
    assert not book.mended(reported) and book.catalog("count") == before  # it is there, and whole: the batch is tried again
    path.write_bytes(path.read_bytes()[:-3])
    assert not book.mended(ValueError("something else"))
    assert book.mended(RuntimeError(f"Job aborted: CheckpointError: state file {path} is damaged: it was cut"))
    assert book.catalog("count") == before.restored(merged)
    machine.catalog = book.catalog("count")
    assert sum(row["state.count"] for row in machine.rows()) == FEW + 2


def test_damage_without_a_way_back_names_the_file(tmp_path: Path) -> None:
    topology = plain()
    book, machine = book_of(topology, tmp_path), Machine.of(topology, tmp_path)
    run_batches(book, machine, 2)
    name = book.catalog("count").runs[0].files[0].name
    path = tmp_path / "count" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        CheckpointError, match=f"{path} of operator 'count' is damaged, batches 1 to 1.*put that file back from a copy"
    ):
        book.mended(RuntimeError(f"state file {path} is damaged: the checksum"))


def test_reports_tell_what_moved(tmp_path: Path) -> None:
    book = book_of(plain(), tmp_path)
    tasks = [task([receipt(0, [0], "a"), receipt(1, [3], "b")])]
    book.committed(book.after(0, tasks))
    first = book.reports(Plan({}, 1, {}, shards={"count": (0, 0, 1, 1)}), tasks)["count"]
    second = book.reports(Plan({}, 1, {}, shards={"count": (0, 1, 1, 0)}), tasks)["count"]
    assert (first.moved, second.moved) == (0, 2)
    assert (first.keys, first.bytes, first.files, first.written_bytes) == (2, 20, 2, 20)


# Catalogs


def catalog(*sizes: int) -> Catalog:
    return Catalog(tuple(SegmentRun(i, i, (File(f"f{i}", size, 1),)) for i, size in enumerate(sizes)))


def test_merges_are_of_the_newest_runs_that_are_not_much_larger_than_those_after_them() -> None:
    assert catalog(*[1] * (FEW - 1)).merge_due() == ()
    even = catalog(*[1] * FEW, 100)
    assert even.merge_due() == even.runs[:FEW]
    tiers = catalog(*[1] * FEW, FEW, 100)
    assert tiers.merge_due() == tiers.runs[: FEW + 1]
    assert catalog(1, 3, 9, 27, 81, 243, 729, 2187, 6561).merge_due() == ()
    assert catalog(*[3**i for i in range(32)]).merge_due() == ()
    many = catalog(*[3**i for i in range(33)])
    assert many.merge_due() == many.runs


def test_a_catalog_is_the_same_after_json() -> None:
    one = catalog(1, 2, 3).merged(catalog(1, 2, 3).runs[:2], [File("m", 3, 2)], 1)
    assert Catalog.from_json(one.to_json()) == one
    assert one.names == {"m", "f0", "f1", "f2"}
    assert catalog(5, 5).merged(catalog(1, 2).runs, []) == catalog(5, 5)


# Memory


def test_pieces_that_are_small_for_want_of_memory_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = book_of(plain(), tmp_path)
    plan = Plan({}, 1, {}, shards={"count": (0,) * 4})
    book.committed(book.after(0, [task([receipt(0, [1])])]))
    assert book.reports(plan, [task([replace(receipt(0, [1]), groups=3)])])["count"].pieces == 3
    assert not caplog.records  # of full size: state is larger than that, and memory may be larger still
    for _ in range(2):
        book.reports(plan, [task([replace(receipt(0, [1]), groups=5, piece_bytes=8_000_000)])])
    (reported,) = caplog.records
    assert "they work on 8 MB of it at once, in 5 pieces a batch" in reported.message
