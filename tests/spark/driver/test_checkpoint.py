"""A checkpoint belongs to one topology and to one driver at a time, whatever was killed before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from springtide.errors import CheckpointError, DamageError
from springtide.model.plan import Plan
from springtide.model.topology import Topology

pytest.importorskip("pyspark")  # the package of the checkpoint is the one that needs it

from springtide.durable import read_json, write_atomic
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.fingerprint import compare, fingerprint
from springtide.spark.driver.manifests import MANIFESTS_TO_RETAIN


@dataclass(frozen=True)
class Trip:
    route: str
    fare: float


@dataclass(frozen=True)
class Rounded:
    route: str
    fare: int


def trip(draw: st.Draw) -> Trip:
    return Trip("r", 1.0)


def same(one: Trip) -> Trip:
    return one


def rounded(one: Trip) -> Rounded:
    return Rounded(one.route, round(one.fare))


def taxi(
    *, name: str = "taxi", key: str = "route", grouped: bool = False, parallelism: int | None = None, extra: bool = False,
    function: Callable[[Trip], object] = same, rate: float = 10, sink: Any = None,
) -> Topology:  # fmt: skip
    stream = st.source.generate(trip, rate=rate)
    if extra:
        stream = stream.filter(lambda one: True, name="extra")
    grouping = "round-robin" if grouped else None
    stream = stream.map(function, name="work", grouping=grouping, parallelism=parallelism)
    return stream.key_by(key).filter(bool, name="kept").to(sink or st.sink.files("out")).named(name)


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "cab"}, "it belongs to topology 'taxi'"),
    "graph": ({"extra": True}, "operator 'extra' is new; inputs of 'work' was ['source'], is ['extra']"),
    "schema": ({"function": rounded}, "schema of 'work' was"),
    "key": ({"key": "fare"}, "key of 'kept' was ['route'], is ['fare']"),
    "sink": ({"sink": st.sink.memory("out")}, "endpoint of 'out' was FilesSink, is MemorySink"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_graph_schema_or_key_is_refused_with_the_difference(what: str, tmp_path: Path) -> None:
    changes, words = DIFFERENT[what]
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.release()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path).acquire(taxi(**changes))
    assert words in str(caught.value)
    assert "Give a new checkpoint, or change the topology back" in str(caught.value)
    assert contents(tmp_path) == before, "nothing was changed"


def test_sources_in_another_order_are_refused(tmp_path: Path) -> None:
    """Spark's log of offsets knows them by their place: each would go on from where the other was."""
    flows = [
        st.source.generate(trip, rate=1, name=name).to(st.sink.discard(), name=f"{name}-out") for name in ("trips", "fares")
    ]
    checkpoint = Checkpoint(tmp_path)
    for _ in range(2):
        checkpoint.acquire(st.topology("taxi", *flows))
        checkpoint.release()
    with pytest.raises(
        CheckpointError, match="the sources, whose offsets Spark keeps by place, were trips, fares, are fares, trips"
    ):
        checkpoint.acquire(st.topology("taxi", *reversed(flows)))
    assert compare(fingerprint(st.topology("taxi", *flows)), fingerprint(st.topology("taxi", flows[1]))) == [
        "operator 'trips' is gone", "operator 'trips-out' is gone",
    ]  # fmt: skip


def test_a_missing_operator_is_named() -> None:
    assert "operator 'extra' is gone" in compare(fingerprint(taxi(extra=True)), fingerprint(taxi()))


@pytest.mark.parametrize("changes", [{"grouped": True}, {"parallelism": 3}, {"rate": 99}])
def test_grouping_parallelism_and_rate_may_change(changes: dict[str, Any], tmp_path: Path) -> None:
    for topology in (taxi(), taxi(**changes)):
        checkpoint = Checkpoint(tmp_path)
        checkpoint.acquire(topology)
        checkpoint.release()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def parts(document: dict[str, Any] | None, *names: str) -> dict[str, Any]:
    assert document is not None
    return {name: document[name] for name in names}


# One driver

HOLD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from spark.driver.test_checkpoint import taxi
from springtide.spark.driver.checkpoint import Checkpoint
checkpoint = Checkpoint(Path(sys.argv[1]))
checkpoint.acquire(taxi())
checkpoint.next_epoch()
print(checkpoint.epoch, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def another(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the checkpoint ``tmp_path``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(Path(__file__).parents[2])]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "1\n"
    yield child
    child.kill()
    child.communicate()


def test_a_second_driver_is_refused_with_the_process_that_holds_it(another: subprocess.Popen[str], tmp_path: Path) -> None:
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=f"is in use by process {another.pid} on .*; stop that run first"):
        Checkpoint(tmp_path).acquire(taxi())
    assert contents(tmp_path) == before


def test_a_killed_driver_lets_go_and_the_next_one_has_a_greater_epoch(another: subprocess.Popen[str], tmp_path: Path) -> None:
    another.kill()
    another.wait()
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    assert checkpoint.epoch == 2
    checkpoint.release()


def test_a_second_driver_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    """Two threads of a notebook, say. And the attempt must not loosen the first one's hold."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()} "):
            Checkpoint(tmp_path).acquire(taxi())
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(Path(__file__).parents[2])]
    other = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "CheckpointError" in other.stderr
    checkpoint.release()
    checkpoint.acquire(taxi())
    checkpoint.release()


def test_a_driver_that_was_overtaken_cannot_commit(tmp_path: Path) -> None:
    """As after a network file system lost the lock: the fencing token decides."""
    old = Checkpoint(tmp_path)
    old.acquire(taxi())
    old.next_epoch()
    old.commit({"batch": 0, "epoch": 1})
    old.release()
    new = Checkpoint(tmp_path)
    new.acquire(taxi())
    new.next_epoch()
    with pytest.raises(CheckpointError, match="taken over by another driver"):
        old.commit({"batch": 1, "epoch": 1})
    assert new.manifest(1) is None
    with pytest.raises(CheckpointError, match="taken over"):
        new.commit({"batch": 1, "epoch": 1})  # a batch of an older query of the same driver
    new.commit({"batch": 1, "epoch": 2})
    assert parts(new.last_manifest(), "batch", "epoch") == {"batch": 1, "epoch": 2}
    new.release()


# Files that a crash leaves


def test_a_torn_temporary_file_does_not_hurt(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    plan = Plan({"work": 2}, 2, {"work": 2})
    checkpoint.plans.write(0, plan)
    checkpoint.commit({"batch": 0, "epoch": 1, "receipts": []})
    for place in ("topology.json", "epoch.json", "plans/00000000.json", "manifests/00000000.json", "manifests/00000001.json"):
        file = checkpoint.own / place
        file.with_name(f".{file.name}.4711").write_text('{"batch": ')
    checkpoint.release()
    again = Checkpoint(tmp_path)
    again.acquire(taxi())
    again.next_epoch()
    assert again.epoch == 2
    assert again.plans.read(0) == plan
    assert again.manifest(1) is None
    assert parts(again.last_manifest(), "batch", "epoch", "receipts") == {"batch": 0, "epoch": 1, "receipts": []}
    again.release()


def test_a_document_is_whole_or_not_there(tmp_path: Path) -> None:
    """A writer that fails midway leaves the old document."""
    file = tmp_path / "one.json"
    write_atomic(file, {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_atomic(file, {"a": float("nan")})
    assert read_json(file) == {"a": 1}


def test_a_document_that_was_changed_is_refused(tmp_path: Path) -> None:
    """One digit, which is JSON as before."""
    file = tmp_path / "one.json"
    write_atomic(file, {"a": 1, "b": [0.1, "ü", None, {"c": 1e-300}]})
    assert read_json(file) == {"a": 1, "b": [0.1, "ü", None, {"c": 1e-300}]}
    file.write_text(file.read_text().replace('"a": 1', '"a": 2'))
    with pytest.raises(CheckpointError, match=r"one\.json does not match its checksum: it was changed from outside"):
        read_json(file)


def test_a_manifest_that_was_changed_lets_go_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    checkpoint.commit({"batch": 0, "epoch": 1})
    checkpoint.release()
    file = checkpoint.own / "manifests" / "00000000.json"
    file.write_text(file.read_text().replace('"epoch": 1', '"epoch": 7'))
    for _ in range(2):  # the second would find the lock taken
        with pytest.raises(CheckpointError, match=r"00000000\.json does not match its checksum"):
            checkpoint.acquire(taxi())


def test_a_document_from_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text('{"a": 1}')
    assert read_json(file) == {"a": 1}


@pytest.mark.parametrize("fault", ["changed", "gone"])
def test_offsets_that_are_not_those_of_the_last_batch_are_put_back(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would go on from them: with one digit less, records come twice; without the file, from the beginning, and the
    batches whose manifests are there would be passed over."""
    checkpoint, log = Checkpoint(tmp_path), tmp_path / "spark" / "offsets" / "0"
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    log.parent.mkdir(parents=True)
    log.write_text('v1\n{"batchTimestampMs":1}\n{"offset":42}')
    checkpoint.commit({"batch": 0, "epoch": 1})
    checkpoint.release()
    written = log.read_text()
    log.unlink()
    if fault == "changed":
        log.write_text(written.replace("42", "41"))
    checkpoint.acquire(taxi())
    checkpoint.release()
    assert log.read_text() == written
    assert f"{log} {'was changed' if fault == 'changed' else 'is gone or empty'}; it is put back" in caplog.text


def test_offsets_of_a_manifest_with_their_checksum_only_are_known(tmp_path: Path) -> None:
    checkpoint, log = Checkpoint(tmp_path), tmp_path / "spark" / "offsets" / "0"
    checkpoint.acquire(taxi())
    checkpoint.release()
    log.parent.mkdir(parents=True)
    log.write_text("123456789")  # whose CRC is 0xCBF43926
    write_atomic(checkpoint.own / "manifests" / "00000000.json", {"batch": 0, "epoch": 1, "offsets": 0xCBF43926})
    checkpoint.acquire(taxi())
    checkpoint.release()
    log.write_text("")
    with pytest.raises(CheckpointError, match=r"offsets/0 is gone or was changed since batch 0 was committed"):
        checkpoint.acquire(taxi())


def test_logs_that_a_loss_of_power_left_empty_are_mended(tmp_path: Path) -> None:
    """Batches 0, 1 and 2 are committed, 3 was begun; of what Spark wrote last the names are there, but not the content."""
    checkpoint, logs = Checkpoint(tmp_path), tmp_path / "spark"
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    for log in ("offsets", "commits"):
        (logs / log).mkdir(parents=True)
    texts = {number: f'v1\n{{"batchTimestampMs":{number}}}\n{{"offset":"{10 * number} ü"}}' for number in range(4)}
    for number in range(3):
        (logs / "offsets" / str(number)).write_text(texts[number], encoding="utf-8")
        checkpoint.commit({"batch": number, "epoch": 1})
        (logs / "commits" / str(number)).write_text("v1\n{}")
    (logs / "offsets" / "3").write_text(texts[3], encoding="utf-8")
    checkpoint.release()
    for lost in ("offsets/1", "offsets/2", "offsets/3", "commits/1", "commits/2"):
        (logs / lost).write_text("")
    checkpoint.acquire(taxi())
    assert checkpoint.begun() == 2, "batch 3 begins anew"
    found = {int(file.name): file.read_text(encoding="utf-8") for file in (logs / "offsets").iterdir()}
    assert found == {number: texts[number] for number in range(3)}
    commits = {file.name: file.read_text() for file in (logs / "commits").iterdir()}
    assert commits == dict.fromkeys("012", "v1\n{}"), "the batches have manifests, so they stay committed"
    checkpoint.release()


@pytest.mark.parametrize("damage", ["gone", "{", "{}", "[]", "null"])
@pytest.mark.parametrize("committed", [False, True])
def test_a_fingerprint_that_is_lost_is_made_anew_for_the_topology_that_was_run_last(
    tmp_path: Path, committed: bool, damage: str
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    if committed:
        checkpoint.commit({"batch": 0, "epoch": 1})
    checkpoint.release()
    file = checkpoint.own / "topology.json"
    written = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_text(damage)
    if committed:
        for _ in range(2):  # it is let go of
            with pytest.raises(
                DamageError, match=r"topology\.json is .*, but .* has batches that are committed\. .*1\. put that file"
            ):
                Checkpoint(tmp_path).acquire(taxi(extra=True))
    checkpoint.acquire(taxi())
    checkpoint.release()
    assert (file.read_bytes() == written) == committed, "the id is the same where something bears it"


@pytest.mark.parametrize("held_in", ["a manifest", "what was imported", "nothing"])
def test_a_declaration_that_is_gone_is_made_anew_only_where_there_is_no_state(tmp_path: Path, held_in: str) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    secret = checkpoint.keep_state({})
    if held_in == "a manifest":
        checkpoint.commit({"batch": 0, "epoch": 1, "state": {"count": {"runs": []}}})
    elif held_in == "what was imported":
        checkpoint.remember("seed", {"count": {"runs": []}})
    else:
        checkpoint.commit({"batch": 0, "epoch": 1, "state": {}})
    file = checkpoint.own / "state.json"
    written = file.read_bytes()
    file.unlink()
    if held_in == "nothing":
        assert checkpoint.keep_state({}) == secret
    else:
        with pytest.raises(CheckpointError, match=r"state\.json is gone, but the checkpoint has state, whose shards and"):
            checkpoint.keep_state({})
        file.write_bytes(written)
        assert checkpoint.keep_state({}) == secret
    checkpoint.release()


def test_a_plan_holds_until_the_next_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    plans = {0: Plan({"work": 1}, 1, {"work": 1}), 3: Plan({"work": 4}, 4, {"work": 2}, 50, 1.5)}
    for number, plan in plans.items():
        checkpoint.plans.write(number, plan)
    assert [checkpoint.plans.read(number) for number in (0, 2, 3, 9)] == [plans[0], plans[0], plans[3], plans[3]]
    checkpoint.release()


def test_old_manifests_go_and_the_last_one_stays(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    checkpoint.next_epoch()
    for number in range(MANIFESTS_TO_RETAIN + 5):
        checkpoint.commit({"batch": number, "epoch": 1})
    assert checkpoint.manifest(4) is None
    assert parts(checkpoint.manifest(5), "batch", "epoch") == {"batch": 5, "epoch": 1}
    assert parts(checkpoint.last_manifest(), "batch", "epoch") == {"batch": MANIFESTS_TO_RETAIN + 4, "epoch": 1}
    checkpoint.release()


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(CheckpointError, match="holds files but no checkpoint of Springtide; give an empty or new folder"):
        Checkpoint(tmp_path).acquire(taxi())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(CheckpointError, match="is a file; give a folder"):
        Checkpoint(tmp_path / "thesis.txt").acquire(taxi())
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


def test_what_a_run_remembers_outlives_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.acquire(taxi())
    started = time.time()
    checkpoint.remember("schedule", {"started": started})
    checkpoint.release()
    assert Checkpoint(tmp_path).recall("schedule") == {"started": started}
    assert Checkpoint(tmp_path).recall("floor") is None
