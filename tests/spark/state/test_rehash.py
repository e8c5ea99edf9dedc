"""State whose keys were hashed in another way: read, refused where a key is asked for, and rewritten at the start of a run."""

from __future__ import annotations

import json
import logging
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from click.testing import CliRunner

from recorded import old_checkpoint as old
from springtide.cli.main import cli
from springtide.errors import CheckpointError
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.driver.manifests import Manifests
from springtide.spark.state import piles
from springtide.spark.state.book import StateBook
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.declared import layouts_in
from springtide.spark.state.reading import reading, stored_states
from springtide.spark.state.rehash import rehash
from springtide.spark.state.store import store_of

RECORDED = old.visits(0, 100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    old.restored(tmp_path)
    return tmp_path


def counts(checkpoint: Path, operator: str) -> Counter[str]:
    """By key, as JSON, what is counted of it."""
    found: Counter[str] = Counter()
    with reading(checkpoint, operator) as state:
        for row in (row for part in state.rows() for row in part.to_pylist()):
            found[json.dumps(row[f"key.{old.OPERATORS[operator]}"])] += row["state.count.0"]
    return found


def all_counts(checkpoint: Path) -> dict[str, Counter[str]]:
    return {operator: counts(checkpoint, operator) for operator in old.OPERATORS}


def expected(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    return {operator: old.expected(column, rows) for operator, column in old.OPERATORS.items()}


def start(folder: Path, before: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint:
    """What the start of a run does to the state."""
    checkpoint, topology = Checkpoint(folder / "checkpoint"), old.topology(folder)
    checkpoint.acquire(topology)
    try:
        before(checkpoint)
        rehash(checkpoint, layouts_in(checkpoint, topology))
    finally:
        checkpoint.release()
    return checkpoint


def shown(folder: Path, operator: str, *key: str, code: int = 0) -> str:
    arguments = ["state", "show", str(folder / "checkpoint"), operator, *(word for one in key for word in ("--key", one))]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.output


def count_of(folder: Path, name: str | None) -> int | None:
    """What is found by looking the key up."""
    with reading(folder / "checkpoint", "by_name") as state:
        row = state.row(pa.record_batch({"name": pa.array([name], pa.string())}))
        return None if row is None else int(row.column("state.count.0")[0].as_py())


def hashings(checkpoint: Checkpoint) -> set[str]:
    manifest = checkpoint.last_manifest()
    assert manifest is not None
    return {Catalog.from_json(document).hashing for document in manifest["state"].values()}


def test_the_keys_of_an_earlier_version_are_read_as_a_whole_and_not_looked_up(folder: Path) -> None:
    assert all_counts(folder / "checkpoint") == expected(RECORDED)
    reported = " ".join(shown(folder, "by_name", "name 3", code=2).split())
    assert "its keys were hashed by another version of Springtide" in reported
    assert "Run the topology once with this checkpoint" in reported


def test_the_state_of_an_earlier_version_is_rewritten_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="springtide.spark")
    before = Checkpoint(folder / "checkpoint").last_manifest()
    checkpoint = start(folder)
    (mixed,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "'by_place' could take keys for one another whose column 'place'" in mixed, "structs are what could be chosen"
    assert [record.message.split(":")[0] for record in caplog.records if record.levelno == logging.INFO] == [
        f"the {keys} keys of operator {name!r} were hashed by another version of Springtide, or with another secret"
        for name, keys in (("by_name", 7), ("by_number", 5), ("by_place", len(old.expected("place", RECORDED))))
    ]
    assert all_counts(folder / "checkpoint") == expected(RECORDED)
    after = checkpoint.last_manifest()
    assert before is not None and after is not None
    assert {**after, "state": None} == {**before, "state": None}, "all but the files of the state is as it was"
    assert {len(Catalog.from_json(document).runs) for document in after["state"].values()} == {1}
    start(folder)
    assert checkpoint.last_manifest() == after, "it is done once"
    assert count_of(folder, "name 3") == 14


def test_a_crash_while_state_is_rewritten_leaves_it_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifests, "amend", crash)
        with pytest.raises(KeyboardInterrupt):
            start(folder)
    assert hashings(Checkpoint(folder / "checkpoint")) == {""}
    assert all_counts(folder / "checkpoint") == expected(RECORDED)
    checkpoint, topology = start(folder), old.topology(folder)
    assert all_counts(folder / "checkpoint") == expected(RECORDED)
    state = checkpoint.own / "state"
    needed = {name: Catalog.from_json(one).names for name, one in checkpoint.catalogs().items()}
    assert all(len(sizes(state)[name]) == 4 for name in needed), "two batches', what the crash left, and what counts"
    StateBook(topology, layouts_in(checkpoint, topology), 9, checkpoint.last_manifest(), merge_nothing).close()
    assert {name: set(files) for name, files in sizes(state).items()} == needed


def merge_nothing(*_: object) -> NoReturn:
    raise NotImplementedError


class Killed(BaseException):
    """The process dies here: nothing is cleaned up."""


class Left(tempfile.TemporaryDirectory[str]):
    """A temporary folder that a killed process leaves behind."""

    def __exit__(self, *_: object) -> None:
        self._finalizer.detach()  # type: ignore[attr-defined]


def sizes(state: Path) -> dict[str, dict[str, int]]:
    """By operator, the files that count as its state."""
    return {operator.name: store_of(str(operator)).sizes() for operator in state.iterdir()}


def test_what_a_killed_rewrite_leaves_is_not_counted_and_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be as large as the state, and each start that is killed would leave as much."""
    state = folder / "checkpoint" / "springtide" / "state"
    before = sizes(state)

    def die(*_: Any) -> None:
        raise Killed

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryDirectory", Left)
            patch.setattr(piles, "written", die)
            with pytest.raises(Killed):
                start(folder)
        (left,) = (path for path in state.glob("*/*") if path.is_dir())
        assert sum(path.stat().st_size for path in left.iterdir()) > 1_000, "rows were being sorted"
        assert sizes(state) == before
    start(folder)
    assert not [path for path in state.glob("*/*") if path.is_dir()]
    assert all_counts(folder / "checkpoint") == expected(RECORDED)


def test_imported_state_of_an_earlier_version_is_rewritten(folder: Path) -> None:
    checkpoint = Checkpoint(folder / "checkpoint")
    manifest = checkpoint.last_manifest()
    assert manifest is not None
    checkpoint.remember(SEED, manifest["state"])
    shutil.rmtree(checkpoint.own / "manifests")
    shutil.rmtree(checkpoint.root / "spark")
    start(folder)
    documents = checkpoint.recall(SEED)
    assert documents is not None and all(document["hashing"] for document in documents.values())
    assert all_counts(folder / "checkpoint") == expected(RECORDED)


def test_a_damaged_file_of_the_state_that_is_to_be_rewritten_is_named(folder: Path) -> None:
    file = next((folder / "checkpoint" / "springtide" / "state" / "by_place").glob("00000001-*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    with pytest.raises(CheckpointError, match=f"state file {file} is damaged"):
        start(folder)
    file.write_bytes(whole)
    start(folder)
    assert all_counts(folder / "checkpoint") == expected(RECORDED)


# The secret


def without_old_secret(checkpoint: Checkpoint) -> None:
    """As a checkpoint that was made by this version: one secret, in its own file."""
    document = checkpoint.recall("state")
    assert document is not None
    document.pop("secret", None)
    checkpoint.remember("state", document)


def test_the_secret_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.own.mkdir(parents=True)
    secret = checkpoint.secret()
    assert len(bytes.fromhex(secret)) == 16
    assert checkpoint.secret() == Checkpoint(tmp_path).secret() == secret
    assert stat.S_IMODE((checkpoint.own / "secret.json").stat().st_mode) == 0o600
    (tmp_path / "other" / "springtide").mkdir(parents=True)
    assert Checkpoint(tmp_path / "other").secret() != secret


def test_the_secret_of_an_earlier_version_is_kept_and_nobody_else_may_read_it(folder: Path) -> None:
    before = stored_states(folder / "checkpoint")["by_name"].seeds
    start(folder)
    assert stored_states(folder / "checkpoint")["by_name"].seeds == before
    assert stat.S_IMODE((folder / "checkpoint" / "springtide" / "state.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [None, b"", b"{}", b"garbage", b'{"secret": 5}'])
def test_state_outlives_the_loss_of_the_secret(folder: Path, damage: bytes | None) -> None:
    checkpoint = start(folder, without_old_secret)
    first, file = hashings(checkpoint), checkpoint.own / "secret.json"
    file.unlink() if damage is None else file.write_bytes(damage)
    assert "with another secret" in " ".join(shown(folder, "by_name", "name 3", code=2).split())
    start(folder)
    assert hashings(checkpoint).isdisjoint(first)
    assert all_counts(folder / "checkpoint") == expected(RECORDED)
    assert count_of(folder, "name 3") == 14


@pytest.mark.spark
def test_a_run_goes_on_from_the_checkpoint_of_an_earlier_version(folder: Path, spark: Any) -> None:
    pytest.importorskip("pyspark")
    old.write_input(folder, 2, old.visits(100, 150))
    old.run(folder, spark)
    assert all_counts(folder / "checkpoint") == expected(old.visits(0, 150))
    assert count_of(folder, None) == old.expected("name", old.visits(0, 150))["null"]
