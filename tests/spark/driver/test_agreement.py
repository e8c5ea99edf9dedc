"""At a start Spark's logs, the manifests and the documents of a checkpoint agree, are mended, or are refused by name."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from springtide.errors import CheckpointError, DamageError

pytest.importorskip("pyspark")  # the package of the checkpoint is the one that needs it

from springtide.durable import write_atomic
from springtide.spark.driver.agreement import Found, Mending, is_note_void, mendings_of, refusal_of
from springtide.spark.driver.begun import Begun
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.editions import Editions
from springtide.spark.private.logs import Logs, SourceLogEntry, are_offsets, is_commit


@dataclass(frozen=True)
class Number:
    n: int
    k: str


def number(draw: st.Draw) -> Number:
    return Number(draw.index, f"k{draw.index % 7}")


def topology(folder: Path, sink: Any = None) -> st.Topology:
    return st.source.generate(number, rate=1).to(sink or st.sink.files(folder / "out"), name="out").named("agree")


def handed_on(folder: Path) -> st.Topology:
    return topology(folder, st.sink.foreach(lambda frame, batch: None))


def offsets(batch: int) -> str:
    """Of a generated source, and of a source of files that has a log."""
    return f'v1\n{{"batchTimestampMs":{batch}}}\n{{"next": {10 * (batch + 1)}}}\n{{"logOffset":{batch}}}'


COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'

# Decisions


def agreed(last: int, *, begun: bool = False, commits: int | None = None) -> Found:
    """A checkpoint whose parts agree. ``begun``: the batch after the last one was begun, and is not committed."""
    logged, committed = range(last + 1 + begun), range(last + 1)
    entries = {f"1/{batch}": batch for batch in logged}
    return Found(
        last,
        {batch: offsets(batch) for batch in committed[-2:]},
        {f"1/{batch}": batch for batch in committed},
        {batch: offsets(batch) for batch in logged},
        dict.fromkeys(committed if commits is None else range(commits + 1), COMMIT),
        entries,
        Begun(logged[-1], 1, offsets(logged[-1]), entries) if logged else None,
    )


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("last", [-1, 0, 1, 7])
def test_parts_that_agree_are_left_as_they_are(last: int, begun: bool) -> None:
    found = agreed(last, begun=begun)
    assert refusal_of(found) is None and mendings_of(found) == []


def test_a_commit_that_spark_has_not_logged_yet_is_no_fault() -> None:
    found = agreed(7, commits=6)
    assert refusal_of(found) is None and mendings_of(found) == []


AHEAD: dict[str, tuple[dict[str, Any], str]] = {
    "commits": ({"commits": {7: COMMIT}}, "Spark's log of commits"),
    "offsets": ({"commits": {}, "offsets": {7: offsets(7), 8: offsets(8)}}, "Spark's offsets/8"),
    "begun": ({"commits": {}, "offsets": {}, "begun": Begun(8, 1, offsets(8))}, r"begun\.json"),
    "published": ({"commits": {}, "published": {"/out/part-7": 7}}, "the published file /out/part-7"),
}


@pytest.mark.parametrize("witness", AHEAD)
@pytest.mark.parametrize("last", [-1, 6])
def test_a_batch_that_something_knows_to_be_committed_needs_its_manifest(witness: str, last: int) -> None:
    changes, words = AHEAD[witness]
    fault = refusal_of(replace(agreed(last), **changes))
    assert fault is not None and fault.file == "springtide/manifests/00000007.json"
    assert re.search(f"is gone: {words}.* knows that batch 7 was committed, but", fault.differs)


def test_logs_that_are_older_than_the_manifests_are_refused() -> None:
    older = agreed(5, begun=True)
    fault = refusal_of(replace(agreed(8), offsets=older.offsets, commits=older.commits, entries=older.entries))
    assert fault is not None and fault.file == "spark/offsets/8"
    assert "batch 8 is committed, but Spark's logs end with batch 6" in fault.differs


def test_logs_of_another_checkpoint_are_refused() -> None:
    foreign = {batch: offsets(batch + 1) for batch in range(9)}
    fault = refusal_of(replace(agreed(8), offsets=foreign))
    assert fault is not None and fault.file == "spark/offsets/8" and "another checkpoint's" in fault.differs


@pytest.mark.parametrize("text", [None, "", "v1", offsets(3)])
@pytest.mark.parametrize("batch", [6, 7])
def test_offsets_of_a_committed_batch_are_put_back_from_its_manifest(batch: int, text: str | None) -> None:
    """Also where the batch after it was begun: Spark reads the last two."""
    for found in (agreed(7), agreed(7, begun=True)):
        damaged = {number: text for number, text in found.offsets.items() if number != batch}
        if text is not None:
            damaged[batch] = text
        damaged_found = replace(found, offsets=damaged)
        assert refusal_of(damaged_found) is None
        (mending,) = mendings_of(damaged_found)
        assert mending == Mending(f"spark/offsets/{batch}", offsets(batch), mending.reason) and mending.reason is not None


def test_offsets_of_which_a_manifest_has_only_the_checksum_are_refused() -> None:
    found = replace(agreed(7), recorded={7: zlib.crc32(offsets(7).encode())})
    assert refusal_of(found) is None and mendings_of(found) == []
    fault = refusal_of(replace(found, offsets={**found.offsets, 7: offsets(6)}))
    assert fault is not None and fault.file == "spark/offsets/7"


@pytest.mark.parametrize("text", [None, "", offsets(3)])
@pytest.mark.parametrize("hands_on", [False, True])
def test_offsets_of_a_begun_batch_are_put_back_from_the_note_of_it(hands_on: bool, text: str | None) -> None:
    found = replace(agreed(7, begun=True), hands_on=hands_on)
    damaged = {number: text for number, text in found.offsets.items() if number != 8} | ({} if text is None else {8: text})
    found = replace(found, offsets=damaged)
    assert refusal_of(found) is None
    (mending,) = mendings_of(found)
    assert (mending.file, mending.text) == ("spark/offsets/8", offsets(8)) and mending.reason is not None


def test_offsets_that_no_note_confirms_are_planned_anew_with_the_logs_of_their_sources() -> None:
    """As after a clean stop: the batch was refused. One digit of them could have changed."""
    found = replace(agreed(7, begun=True), begun=Begun(7, 1, offsets(7)))
    assert refusal_of(found) is None
    assert mendings_of(found) == [Mending("spark/offsets/8", None, None), Mending("spark/sources/1/8", None, None)]


def test_offsets_that_may_have_been_handed_on_are_kept() -> None:
    """By an older version, which made no note, or where the note is damaged."""
    found = replace(agreed(7, begun=True), begun=None, hands_on=True)
    assert refusal_of(found) is None and mendings_of(found) == []
    torn = replace(found, offsets={**found.offsets, 8: "v1"}, begun_is_damaged=True)
    fault = refusal_of(torn)
    assert fault is not None and fault.file == "spark/offsets/8"


def test_a_source_log_of_a_committed_batch_is_needed() -> None:
    found = agreed(7)
    for entries, words in (({**found.entries, "1/5": 99}, "was changed"), ({"1/7": 7}, "is gone")):
        fault = refusal_of(replace(found, entries=entries))
        assert fault is not None and fault.file.startswith("spark/sources/1/") and words in fault.differs


def test_a_source_log_that_a_later_compaction_holds_is_not_needed() -> None:
    found = agreed(7, begun=True)
    begun = Begun(8, 1, offsets(8), {"1/8.compact": 8})
    found = replace(found, begun=begun, entries={"1/8.compact": 8})
    assert refusal_of(found) is None and mendings_of(found) == []


@pytest.mark.parametrize("hands_on", [False, True])
def test_a_begun_batch_whose_source_log_is_damaged_begins_anew_unless_it_was_handed_on(hands_on: bool) -> None:
    found = agreed(7, begun=True)
    found = replace(found, entries={**found.entries, "1/8": 99}, hands_on=hands_on)
    fault, removed = refusal_of(found), [(mending.file, mending.text) for mending in mendings_of(found)]
    if hands_on:
        assert fault is not None and fault.file == "spark/sources/1/8" and "handed to a sink" in fault.differs
    else:
        assert fault is None and removed == [("spark/offsets/8", None), ("spark/sources/1/8", None)]
        assert is_note_void(found), "the next offsets of this batch are others"


def test_a_start_that_a_source_of_another_kind_keeps_is_never_removed() -> None:
    """The first offsets of a source like Kafka, which is not asked for them again."""
    text = 'v1\n{"batchTimestampMs":0}\n{"topic":{"0":5}}'
    found = Found(-1, {}, None, {0: text}, {}, {"0/0": None})
    assert mendings_of(found) == [Mending("spark/offsets/0", None, None)]


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", "v3\n{}", "v1\n[]", 'v1\n{"nextBatchWatermarkMs":"x"}', "\x00\x01"])
def test_a_commit_that_spark_cannot_read_is_written_anew_or_removed(text: str) -> None:
    found = agreed(7)
    (mending,) = mendings_of(replace(found, commits={**found.commits, 7: text}))
    assert (mending.file, mending.text) == ("spark/commits/7", COMMIT)
    (mending,) = mendings_of(replace(found, commits={7: text}))
    assert (mending.file, mending.text) == ("spark/commits/7", None), "Spark replays the batch, whose manifest is there"


def test_files_of_logs_are_told_from_others() -> None:
    assert is_commit(COMMIT) and is_commit("v1\n{}")
    assert are_offsets(offsets(3)) and are_offsets('v1\n{"batchTimestampMs":1}\n-\n{"next": 1}')
    assert not are_offsets('v1\n{"batchTimestampMs":1}') and not are_offsets('v1\n{"batchTimestampMs":"1"}\n{}')


def test_what_a_batch_published_before_it_was_taken_back_is_no_fault() -> None:
    """It is run again, with the same offsets and plan, and its files have the same names."""
    assert refusal_of(replace(agreed(7, begun=True), published={"/out/part-8": 8})) is None
    assert refusal_of(replace(agreed(7), published={"/out/part-8": 8})) is not None


# Folders


class Life:
    """A checkpoint whose batches are logged as Spark does: offsets and a source's log before the batch, the commit after."""

    def __init__(self, root: Path, made: Callable[[Path], st.Topology] = topology) -> None:
        self.root, self.topology = root / "checkpoint", made(root)
        self.checkpoint = Checkpoint(self.root)
        self.logs = self.root / "spark"

    def start(self) -> Life:
        self.checkpoint = Checkpoint(self.root)
        self.checkpoint.acquire(self.topology)
        self.checkpoint.next_epoch()
        return self

    def first(self) -> Life:
        self.start()
        self.checkpoint.remember("schedule", {"started": 1234.5})
        self.checkpoint.remember("ticks", {"ticks": True})
        self._write("metadata", '{"id":"f0b28d78-28cd-4112-8d33-3a54ea574183"}')
        return self

    def plan(self, batch: int) -> None:
        name = f"{batch}.compact" if batch % 4 == 2 else str(batch)
        self._write(f"sources/1/{name}", f'v1\n{{"path":"file:///{batch}"}}')
        self._write(f"offsets/{batch}", offsets(batch))

    def begin(self, batch: int) -> None:
        self.plan(batch)
        self.checkpoint.begin(batch, handed_on=False)

    def run(self, batch: int) -> None:
        self.begin(batch)
        self.commit(batch)
        self._write(f"commits/{batch}", COMMIT)

    def commit(self, batch: int) -> None:
        self.checkpoint.commit({"batch": batch, "epoch": self.checkpoint.epoch, "receipts": [], "sources": {}})

    def stop(self) -> Path:
        self.checkpoint.release()
        return self.root

    def _write(self, file: str, text: str) -> None:
        (self.logs / file).parent.mkdir(parents=True, exist_ok=True)
        (self.logs / file).write_text(text)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path).first()
    yield life
    life.checkpoint.release()


def test_manifests_name_their_batch_and_the_one_before(life: Life) -> None:
    for batch in range(3):
        life.run(batch)
    files = [life.checkpoint.own / "manifests" / f"{batch:08d}.json" for batch in range(3)]
    documents = [json.loads(file.read_text()) for file in files]
    assert [document["previous"] for document in documents] == [None, documents[0]["crc32"], documents[1]["crc32"]]
    life.stop()
    life.start()
    life.run(3)
    assert json.loads((life.checkpoint.own / "manifests" / "00000003.json").read_text())["previous"] == documents[2]["crc32"]


def test_manifests_of_two_histories_are_refused(life: Life) -> None:
    for batch in range(3):
        life.run(batch)
    life.stop()
    file = life.checkpoint.own / "manifests" / "00000001.json"
    document = {name: value for name, value in json.loads(file.read_text()).items() if name != "crc32"}
    write_atomic(file, {**document, "epoch": 7})
    with pytest.raises(DamageError, match=r"00000002\.json names a predecessor .* histories are mixed\. .*1\. put back both"):
        life.start()


def test_a_manifest_under_another_number_is_refused(life: Life) -> None:
    for batch in range(2):
        life.run(batch)
    life.stop()
    folder = life.checkpoint.own / "manifests"
    shutil.copy(folder / "00000000.json", folder / "00000001.json")
    with pytest.raises(DamageError, match=r"00000001\.json is the manifest of batch 0"):
        life.start()


@pytest.mark.parametrize("damage", ["gone", "{", "{}"])
def test_an_older_manifest_that_is_damaged_is_ignored(life: Life, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    for batch in range(4):
        life.run(batch)
    life.stop()
    file = life.checkpoint.own / "manifests" / "00000001.json"
    file.unlink() if damage == "gone" else file.write_text(damage)
    life.start()
    assert [manifest["batch"] for manifest in life.checkpoint.manifests.readable()] == [3, 2, 0]
    assert caplog.text.count(file.name) == (damage != "gone")


def test_the_last_manifest_that_is_deleted_is_named(life: Life) -> None:
    """State would go on from batch 2, and Spark from batch 3."""
    for batch in range(4):
        life.run(batch)
    life.stop()
    (life.checkpoint.own / "manifests" / "00000003.json").unlink()
    for _ in range(2):  # it is let go of, and nothing was changed
        with pytest.raises(DamageError, match=r"manifests/00000003\.json is gone: .* batch 3 .* 1\. put that file back"):
            life.start()


def test_checkpoints_of_before_go_on(life: Life) -> None:
    """Without a chain, checksums of source logs, and a note of the batch that was begun."""
    for batch in range(3):
        life.run(batch)
    life.plan(3)
    life.stop()
    (life.checkpoint.own / "begun.json").unlink()
    for file in (life.checkpoint.own / "manifests").iterdir():
        document = json.loads(file.read_text())
        write_atomic(file, {name: document[name] for name in ("batch", "epoch", "receipts", "sources", "offsets")})
    life.start()
    assert (life.logs / "sources" / "1" / "3").exists(), "which of them are committed is not known"
    life.run(3)
    assert set((life.checkpoint.last_manifest() or {})["logs"]) == {"1/2.compact", "1/3"}


def test_only_what_follows_the_last_compaction_is_checked(life: Life) -> None:
    for batch in range(8):
        life.run(batch)
    assert set((life.checkpoint.last_manifest() or {})["logs"]) == {"1/6.compact", "1/7"}
    life.stop()
    for name in ("0", "1", "2.compact", "3", "4", "5"):
        (life.logs / "sources" / "1" / name).unlink()  # as Spark does by itself
    life.start()


@pytest.mark.parametrize("harm", ["gone", "damaged", "older"])
def test_no_epoch_comes_twice(life: Life, harm: str) -> None:
    file = life.checkpoint.own / "epoch.json"
    older = file.read_text()
    for _ in range(3):
        life.stop()
        life.start()
    life.run(0)
    assert life.checkpoint.epoch == 4
    life.stop()
    staged = Path(life.topology.sinks[0].sink.path) / "_springtide" / f"out-{life.checkpoint.identity}" / "epoch-000009"  # type: ignore[union-attr]
    staged.mkdir(parents=True)
    file.unlink() if harm == "gone" else file.write_text("{}" if harm == "damaged" else older)
    life.start()
    assert life.checkpoint.epoch == 10


def test_documents_are_for_their_owner_only(life: Life) -> None:
    life.run(0)
    modes = {file.name: file.stat().st_mode & 0o777 for file in life.checkpoint.own.rglob("*.json")}
    assert set(modes) >= {"topology.json", "epoch.json", "begun.json", "00000000.json"} and set(modes.values()) == {0o600}


def test_a_published_file_of_a_batch_without_a_manifest_is_refused(life: Life) -> None:
    """As after a backup of the whole checkpoint was restored: that batch would be published again, with other records."""
    life.run(0)
    life.stop()
    out = Path(life.topology.sinks[0].sink.path)  # type: ignore[union-attr]
    out.mkdir()
    (out / f"out-{life.checkpoint.identity}-00000005-1-0-00000.parquet").write_text("")
    (out / "out-000000000000-00000009-1-0-00000.parquet").write_text("another checkpoint's")
    with pytest.raises(DamageError, match=r"manifests/00000005\.json is gone: the published file .*-00000005-1-0-0"):
        life.start()


# Every file, every harm


def flipped(content: bytes) -> bytes:
    at = len(content) * 2 // 3
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "flip": flipped,
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "delete": lambda _: None,
    "garbage": lambda content: random.Random(1).randbytes(len(content)),
    "object": lambda _: b"{}",
    "list": lambda _: b"[]",
    "null": lambda _: b"null",
}
LAST = 4
"""The last committed batch, from 0; the next batch has begun."""


def seen(root: Path) -> dict[str, str]:
    """What a run goes on from: what Spark reads, the last manifest, and what is settled."""
    names = [f"spark/offsets/{batch}" for batch in (LAST, LAST + 1)]
    names += [f"spark/sources/1/{name}" for name in ("2.compact", "3", "4", "5")]
    names += [f"springtide/{name}.json" for name in ("topology", "schedule", "ticks", f"manifests/{LAST:08d}")]
    return {name: (root / name).read_text(errors="replace") for name in names if (root / name).exists()}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Life:
    life = Life(tmp_path_factory.mktemp("pristine")).first()
    for batch in range(LAST + 1):
        life.run(batch)
    life.begin(LAST + 1)
    life.checkpoint.remember("floor", {"floor_s": 0.1})
    life.checkpoint.remember("policy", {"policy": "p", "state": {}})
    life.stop()
    return life


@pytest.mark.parametrize("harm", HARMS)
def test_any_single_damaged_file_is_mended_or_refused_by_name(
    pristine: Life, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    whole = seen(pristine.root)
    anew = {name: text for name, text in whole.items() if not name.endswith(("offsets/5", "1/5"))}
    refused = set()
    for file in sorted(path for path in pristine.root.rglob("*") if path.is_file()):
        place = tmp_path / "checkpoint"
        shutil.copytree(pristine.root, place)
        damaged = place / file.relative_to(pristine.root)
        content = HARMS[harm](file.read_bytes())
        damaged.unlink() if content is None else damaged.write_bytes(content)
        checkpoint = Checkpoint(place)
        try:
            checkpoint.acquire(pristine.topology)
            checkpoint.next_epoch()
            assert seen(place) in (whole, anew), f"{harm} of {file}"
            assert checkpoint.epoch > 1
            _ = (
                checkpoint.recall("floor"),
                checkpoint.recall("policy"),
                checkpoint.plans.read(LAST + 1),
                list(checkpoint.manifests.readable()),
            )
        except CheckpointError as error:
            refused.add(str(file.relative_to(pristine.root)))
            told = str(error)
        else:
            told = f"{damaged}: 1. put that file back"
        finally:
            checkpoint.release()
            shutil.rmtree(place)
        assert str(damaged) in told and "1. put that file back" in told, f"{harm} of {file}"
    logs = {"spark/sources/1/2.compact", "spark/sources/1/3", "spark/sources/1/4"}
    assert refused == {"springtide/manifests/00000004.json", *logs}, "all else is mended, or not needed"


def test_a_query_without_an_id_gets_a_new_one(life: Life) -> None:
    """Spark does not start from logs without it."""
    life.run(0)
    life.stop()
    (life.logs / "metadata").unlink()
    life.start()
    assert json.loads((life.logs / "metadata").read_text())["id"]


def test_what_hadoop_keeps_beside_a_mended_file_goes(life: Life) -> None:
    life.run(0)
    life.stop()
    (life.logs / "offsets" / "0").write_text("")
    (life.logs / "offsets" / ".0.crc").write_text("the checksum of something else")
    life.start()
    assert not (life.logs / "offsets" / ".0.crc").exists()


def test_the_note_of_a_refused_batch_is_made_where_batches_are_handed_on(tmp_path: Path) -> None:
    life = Life(tmp_path, handed_on).first()
    life.run(0)
    life.begin(1)
    life.stop()
    (life.logs / "offsets" / "1").write_text(offsets(1).replace("20", "90"))
    life.start()
    assert (life.logs / "offsets" / "1").read_text() == offsets(1)
    life.stop()


def test_new_entries_of_a_source_log_are_read_once(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    checksum = Logs.entry_checksum

    def counted(self: Logs, entry: SourceLogEntry) -> int | None:
        read.append(entry.name)
        return checksum(self, entry)

    monkeypatch.setattr(Logs, "entry_checksum", counted)
    for batch in range(4):
        life.run(batch)
    assert [read.count(name) for name in ("1/0", "1/1", "1/2.compact", "1/3")] == [1, 1, 1, 1]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not an archive", b"\x00" * 100])
def test_knowledge_that_is_damaged_is_learned_anew(tmp_path: Path, content: bytes) -> None:
    editions = Editions(tmp_path)
    (tmp_path / "00000001.npz").write_bytes(content)
    assert editions.load(1) is None


# On Spark


RESTORED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a deleted manifest": (
        lambda checkpoint, _: max((checkpoint / "springtide" / "manifests").iterdir()).unlink(),
        r"manifests/{last:08d}\.json is gone: .* knows that batch {last} was committed,"
        r" but the last manifest is that of batch {before}\.",
    ),
    "an older folder springtide": (
        lambda checkpoint, backup: swap(checkpoint / "springtide", backup / "springtide"),
        r"manifests/{last:08d}\.json is gone: .* knows that batch {last} was committed,"
        r" but the last manifest is that of batch {backup}\.",
    ),
    "an older folder spark": (
        lambda checkpoint, backup: swap(checkpoint / "spark", backup / "spark"),
        r"spark/offsets/{last} is gone: batch {last} is committed, but Spark's logs end with batch \d",
    ),
}


def swap(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


@pytest.mark.spark
def test_a_run_goes_on_from_its_last_batch_or_is_refused_with_the_ways_out(spark: Any, tmp_path: Path) -> None:
    """Four batches of 20 records, with a backup after the first, then what people do to folders; and 60 records more."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    counted = st.source.generate(number, rate=1e6, limit=140, max_records=20).key_by("k").count(name="count")
    counting = counted.to(st.sink.files(out, format="json")).named("counting")

    def go_on(**options: Any) -> None:
        st.run(counting, spark=spark, runs=tmp_path / "runs", checkpoint=checkpoint, policy="static", max_slots=2, **options)

    def last_manifest() -> int:
        return max(int(file.stem) for file in (checkpoint / "springtide" / "manifests").iterdir())

    go_on(batches=1)
    backup = last_manifest()
    shutil.copytree(checkpoint, tmp_path / "backup")
    go_on(batches=3)
    shutil.copytree(checkpoint, tmp_path / "whole")
    last = last_manifest()  # a run may add a batch before it ends
    numbers = {"last": last, "before": last - 1, "backup": backup}
    for harm, words in RESTORED.values():
        harm(checkpoint, tmp_path / "backup")
        with pytest.raises(
            CheckpointError,
            match=f"{words.format(**numbers)}.* 1\\. put that file back from a copy; 2\\. export the state with",
        ):
            go_on()
        swap(checkpoint, tmp_path / "whole")
    go_on()
    rows = [json.loads(line) for file in out.glob("*.json") for line in file.read_text().splitlines()]
    assert {key: max(row["count"] for row in rows if row["k"] == key) for key in ("k0", "k6")} == {"k0": 20, "k6": 20}
    assert len(rows) == 7 * 7, "seven batches with seven keys each"
