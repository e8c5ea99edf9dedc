"""State that is rewritten at a start because its keys are hashed otherwise: at a URI, after an import, and with a migration."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem

from processors.state_machine import SECOND
from recorded import old_checkpoint as old
from spark.state.test_reading import Alarmed, AlarmedLater, Case, Event, by_key, read_rows, topology
from spark.state.test_rehash import all_counts, expected, merge_nothing
from springtide.errors import CheckpointError, RunError
from springtide.model.state import moment
from springtide.model.topology import Topology
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.manifests import Manifests
from springtide.spark.state import presence
from springtide.spark.state.book import StateBook
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.declared import folder_of, layouts_in
from springtide.spark.state.exporting import exported
from springtide.spark.state.reading import reading, stored_state
from springtide.spark.state.rehash import rehash
from springtide.spark.state.seeding import seeded
from springtide.spark.state.stepping import StateLayout
from springtide.spark.state.store import Remote, below, store_of

OnNode = Callable[[str], Path]
EVENTS = [Event(None if n % 7 == 0 else f"r{n}", n % 3, n) for n in range(30)]
MIGRATED = topology(AlarmedLater, migrate=lambda before: {"total": float(before["total"])})
"""What counts as an integer in ``Alarmed`` is a float here."""


@pytest.fixture(params=["folder", "file", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, on_node: OnNode) -> str | None:
    """Where state lies; None: in the checkpoint."""
    on_node("a")
    if request.param == "s3":
        request.getfixturevalue("s3")
    return {"folder": None, "file": (tmp_path / "remote").as_uri(), "s3": "s3://bucket/state"}[request.param]


def start(root: Path, made: Topology) -> dict[str, StateLayout]:
    """What the start of a driver does with state, until its first batch."""
    checkpoint = Checkpoint(root)
    checkpoint.acquire(made)
    try:
        checkpoint.next_epoch()
        layouts = layouts_in(checkpoint, made)
        presence.check(checkpoint, layouts)
        rehash(checkpoint, layouts)
        last = checkpoint.last_manifest()
        StateBook(made, layouts, checkpoint.epoch, last, merge_nothing, checkpoint.catalogs()).close()
    finally:
        checkpoint.release()
    return layouts


def go_on(case: Case, layout: StateLayout) -> None:
    """With the state that a start has left, in that start's epoch."""
    case.checkpoint = Checkpoint(case.root)
    case.checkpoint.acquire(case.topology)
    case.checkpoint.next_epoch()
    case.checkpoint.release()
    case.machine.layout, case.machine.catalog = layout, stored_state(case.root, "keep").catalog


def lose_secret(root: Path) -> None:
    (root / "springtide" / "secret.json").unlink()


def count_of(root: Path, route: str | None, day: int) -> Any:
    """What is found by looking a key up."""
    with reading(root, "keep") as state:
        row = state.row(pa.record_batch({"route": pa.array([route], pa.string()), "day": pa.array([day], pa.int64())}))
        return None if row is None else row.column("state.total")[0].as_py()


def as_floats(rows: dict[Any, Any]) -> dict[Any, Any]:
    return {key: {**own, "state.total": repr(float(own["state.total"]))} for key, own in rows.items()}


def check_files(root: Path) -> None:
    """There is one file of the state, and no other but those that ``Machine`` merged, whose names are its own."""
    stored = stored_state(root, "keep")
    there = {name for name in store_of(stored.place).names() if not name.startswith("m")}
    assert there == set(stored.catalog.names) and len(there) == 1


@pytest.fixture
def case(tmp_path: Path, location: str | None) -> Case:
    """Three batches, of which two were merged."""
    made = Case(tmp_path / "checkpoint", topology(Alarmed), location)
    made.run(*EVENTS)
    made.run(Event("r1", 1, 100), Event(None, 0, 5))
    made.machine.merge(2)
    made.run(Event("r1", 1, 70), Event("new", 0, 60))
    return made


def test_state_outlives_the_loss_of_the_secret_wherever_it_lies(case: Case, location: str | None, on_node: OnNode) -> None:
    before = by_key(read_rows(case.root))
    assert len(before) == 31 - 2 and before["r1", 1]["state.total"] == "3"
    lose_secret(case.root)
    on_node("b")  # which has no piece of it
    layout = start(case.root, case.topology)["keep"]
    assert isinstance(store_of(layout.folder), Remote) == (location is not None)
    assert by_key(read_rows(case.root)) == before and count_of(case.root, "r1", 1) == 3
    check_files(case.root)
    on_node("c")
    assert start(case.root, case.topology)["keep"].hashing == layout.hashing, "it is done once"
    go_on(case, layout)
    (output,) = {row["total"] for row in case.run(Event("r1", 1, 80))}
    assert output == 1 and count_of(case.root, "r1", 1) == 4, "the key is found"


def test_state_is_migrated_while_it_is_rewritten(case: Case, on_node: OnNode) -> None:
    before = by_key(read_rows(case.root))
    lose_secret(case.root)
    on_node("b")
    start(case.root, MIGRATED)
    assert by_key(read_rows(case.root)) == as_floats(before)
    assert repr(count_of(case.root, "r1", 1)) == "3.0"
    with reading(case.root, "keep") as state:
        assert state.timers()["event"] == {"keys": len(before), "first": moment(SECOND).isoformat()}
    check_files(case.root)
    without = topology(AlarmedLater)
    start(case.root, without)  # the migration is not needed any more
    assert by_key(read_rows(case.root)) == as_floats(before)


def test_state_of_two_declarations_is_rewritten(case: Case, on_node: OnNode) -> None:
    """The secret is lost in the middle of a migration."""
    before = as_floats(by_key(read_rows(case.root)))
    go_on(case, start(case.root, MIGRATED)["keep"])
    case.run(Event("r1", 1, 90), Event("newest", 0, 50))
    lose_secret(case.root)
    on_node("b")
    start(case.root, MIGRATED)
    after = by_key(read_rows(case.root))
    assert {key: own["state.total"] for key, own in after.items()} == {
        **{key: own["state.total"] for key, own in before.items()}, ("r1", 1): "4.0", ("newest", 0): "1.0",
    }  # fmt: skip
    untouched = before.keys() - {("r1", 1)}
    assert {key: after[key] for key in untouched} == {key: before[key] for key in untouched}
    check_files(case.root)


def test_a_migration_that_fails_leaves_the_state_as_it_was(case: Case) -> None:
    before = by_key(read_rows(case.root))
    lose_secret(case.root)
    with pytest.raises(RunError, match="operator 'keep': migrate failed on variables total: ZeroDivisionError"):
        start(case.root, topology(AlarmedLater, migrate=lambda row: {"total": 1 / 0}))
    start(case.root, case.topology)
    assert by_key(read_rows(case.root)) == before
    check_files(case.root)


def test_a_crash_before_the_state_counts_leaves_it_as_it_was(
    case: Case,
    on_node: OnNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = by_key(read_rows(case.root))
    lose_secret(case.root)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifests, "amend", crash)
        with pytest.raises(KeyboardInterrupt):
            start(case.root, MIGRATED)
    assert by_key(read_rows(case.root)) == before
    on_node("b")
    start(case.root, MIGRATED)
    assert by_key(read_rows(case.root)) == as_floats(before)
    check_files(case.root)


def test_damage_is_named_or_what_was_merged_is_read(case: Case, on_node: OnNode) -> None:
    before, stored = by_key(read_rows(case.root)), stored_state(case.root, "keep")
    _, merged = stored.catalog.runs
    change(stored.place, merged.files[0].name)
    lose_secret(case.root)
    on_node("b")
    change(stored.place, merged.before[0].files[0].name, whole := list[bytes]())
    with pytest.raises(CheckpointError, match=rf"state file {stored.place}/.* is damaged.* 1\. put"):
        start(case.root, case.topology)
    change(stored.place, merged.before[0].files[0].name, whole)
    on_node("c")
    start(case.root, case.topology)
    assert by_key(read_rows(case.root)) == before
    check_files(case.root)


def change(place: str, name: str, content: list[bytes] | None = None) -> None:
    """Flip a bit in the middle of a file, or write ``content`` to it; an empty one gets what was there."""
    files, folder = FileSystem.from_uri(place) if "://" in place else (LocalFileSystem(), place)
    with files.open_input_file(f"{folder}/{name}") as file:
        was = file.read()
    middle = len(was) // 3
    flipped = was[:middle] + bytes([was[middle] ^ 1]) + was[middle + 1 :]
    with files.open_output_stream(f"{folder}/{name}") as file:
        file.write(content[0] if content else flipped)
    if content is not None and not content:
        content.append(was)


@pytest.mark.parametrize("made", [topology(Alarmed), MIGRATED], ids=["as it was", "migrated"])
def test_imported_state_is_rewritten(
    made: Topology,
    location: str | None,
    tmp_path: Path,
    on_node: OnNode,
) -> None:
    """Before the first batch, with the declaration that it was imported for or a later one."""
    first = Case(tmp_path / "first", topology(Alarmed))
    first.run(*EVENTS)
    before, root = by_key(read_rows(first.root)), tmp_path / "second"
    exported(first.root, "keep", tmp_path / "rows.parquet")
    seeded(topology(Alarmed), "keep", tmp_path / "rows.parquet", root, 77, location, accept_recount=True)
    assert by_key(read_rows(root)) == before
    lose_secret(root)
    on_node("b")
    for _ in range(2):
        start(root, made)
        assert by_key(read_rows(root)) == (as_floats(before) if made is MIGRATED else before)
        check_files(root)
    assert count_of(root, "r1", 1) == 1


def test_state_of_an_earlier_version_is_rewritten_where_it_lies(
    tmp_path: Path,
    location: str | None,
    on_node: OnNode,
) -> None:
    checkpoint = Checkpoint(old.restored(tmp_path))
    documents, stored = checkpoint.catalogs(), checkpoint.recall("state")
    assert stored is not None and all(not Catalog.from_json(one).hashing for one in documents.values())
    if location is not None:
        checkpoint.remember("state", {**stored, "location": location})
        for name in documents:
            place = Remote(below(checkpoint.state_root(), folder_of(name)))
            place.prepare()
            for file in (checkpoint.state_folder() / folder_of(name)).iterdir():
                place.writing(file.name).write_bytes(file.read_bytes())
                place.publish(file.name)
        shutil.rmtree(checkpoint.state_folder())
    rows = old.visits(0, 100)
    assert all_counts(checkpoint.root) == expected(rows)
    on_node("b")
    start(checkpoint.root, old.topology(tmp_path))
    assert all_counts(checkpoint.root) == expected(rows)
    assert all(Catalog.from_json(one).hashing for one in checkpoint.catalogs().values())
    for name in documents:
        found = stored_state(checkpoint.root, name)
        assert set(store_of(found.place).names()) == found.catalog.names
