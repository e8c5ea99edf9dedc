"""How chunks of segments are looked into: what stays mapped, what is tried, and what is not even opened."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from springtide.policy.group.shards import shards_of
from springtide.spark.state import lookup, segment, sound
from springtide.spark.state.lookup import Identities
from springtide.spark.state.segment import OWN, Damage, Segment

SHARDS = 16
SCHEMA = pa.schema([*OWN, pa.field("key.text", pa.string())])


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_mapped_chunks", segment._MappedChunks())


def rows(hashes: list[int], text: str = "x" * 1000, two: list[int] | None = None) -> pa.RecordBatch:
    count = len(hashes)
    columns = [hashes, two or [7] * count, [False] * count, [0] * count, [text] * count]
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def spread_hashes(count: int) -> list[int]:
    return [number * (2**64 // count) for number in range(count)]


def written(path: Path, batch: pa.RecordBatch) -> Segment:
    segment.written(path, [batch], SCHEMA, SHARDS)
    return Segment(str(path))


def supports_attributes(folder: Path) -> bool:
    probe = folder / "probe"
    probe.touch()
    try:
        os.setxattr(probe, sound.ATTRIBUTE, b"x")
    except OSError:
        return False
    return True


def flipped(path: Path, at: int = 5_000) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(bytes(body))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The chunks whose checksums are tried from now on."""
    tried: list[int] = []
    check = Segment.check

    def watched(self: Segment, number: int, body: Any) -> None:
        tried.append(number)
        check(self, number, body)

    monkeypatch.setattr(Segment, "check", watched)
    return tried


def test_what_this_node_wrote_is_not_tried_when_looked_into_and_a_merge_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supports_attributes(tmp_path):
        pytest.skip("this file system has no attributes")
    monkeypatch.setattr(segment, "CHUNK_BYTES", 20_000)
    made = written(tmp_path / "a.state", rows(spread_hashes(200)))
    assert len(made.chunks) > 2
    tried = counted(monkeypatch)
    for number in range(len(made.chunks)):
        made.look(number)
    assert tried == []
    made.read(1)
    assert tried == [1]


def test_what_one_worker_tried_the_next_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supports_attributes(tmp_path):
        pytest.skip("this file system has no attributes")
    monkeypatch.setattr(segment, "CHUNK_BYTES", 20_000)
    path = tmp_path / "a.state"
    made = written(path, rows(spread_hashes(200)))
    os.removexattr(path, sound.ATTRIBUTE)
    tried = counted(monkeypatch)
    made.look(0)
    made.look(2)
    made.remember()
    assert tried == [0, 2]
    another = Segment(str(path))
    for number in range(3):
        another.look(number)
    assert tried == [0, 2, 1]


def test_a_file_that_was_changed_is_tried_again_and_so_is_a_copy(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.state", tmp_path / "b.state"
    written(path, rows(spread_hashes(200)))
    shutil.copy2(path, copy)  # with its time and its attributes
    status = path.stat()
    with copy.open("r+b") as file:
        file.seek(5_000)
        file.write(b"\x00\x01\x02")
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    flipped(path)
    for damaged in (path, copy):
        with pytest.raises(Damage, match=r"the checksum of chunk 0, shards 0 to 15, is wrong"):
            Segment(str(damaged)).look(0)


def test_without_attributes_every_worker_tries_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refused)
    monkeypatch.setattr(os, "getxattr", refused)
    made = written(tmp_path / "a.state", rows(spread_hashes(200)))
    tried = counted(monkeypatch)
    made.look(0)
    made.remember()
    Segment(made.path).look(0)
    assert tried == [0, 0]


def test_what_stays_mapped_is_bounded_and_the_longest_unused_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [written(tmp_path / f"{name}.state", rows(spread_hashes(100))) for name in "abc"]
    monkeypatch.setattr(segment, "MAPPED_BYTES", int(2.5 * segments[0].chunks[0].length))
    layout = [one.look(0) for one in segments[:2]]
    assert segments[0].look(0) is layout[0], "it is there"
    segments[2].look(0)
    assert segments[0].look(0) is layout[0]
    assert segments[1].look(0) is not layout[1], "and this one was not looked at for longest"


def test_obsolete_segments_are_unmapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, elsewhere = (written(tmp_path / name, rows(spread_hashes(10))) for name in ("old", "new", "elsewhere"))
    elsewhere.path = "/another/operator/elsewhere"
    chunks = [one.look(0) if one is not elsewhere else segment._mapped_chunks.of(one) for one in (old, new, elsewhere)]
    segment._mapped_chunks.keep_only(str(tmp_path), {new.path})
    assert new.look(0) is chunks[1]
    assert segment._mapped_chunks.of(elsewhere) is chunks[2]
    assert old.look(0) is not chunks[0]


def found(segments: list[Segment], one: list[int], two: list[int]) -> list[bool]:
    keys = segment.keys_in(rows(one))
    identities = Identities(np.array(one, dtype=np.uint64), np.array(two, dtype=np.uint64), keys)
    known = lookup.newest(segments, identities, SCHEMA, lambda part: part)[1]
    return [bool(one) for one in known]


def test_segments_without_the_shards_that_are_asked_for_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = spread_hashes(SHARDS)
    mine, other = written(tmp_path / "a", rows(hashes[::2])), written(tmp_path / "b", rows(hashes[1::2]))
    monkeypatch.setattr(other, "look", lambda number: pytest.fail("it has none of these shards"))
    assert found([other, mine], hashes[::2], [7] * 8) == [True] * 8


def test_a_segment_of_before_which_does_not_say_what_it_has_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = written(path, rows(spread_hashes(10)))
    whole, trailer = path.read_bytes(), struct.Struct("<II8s")
    length, _, magic = trailer.unpack(whole[-trailer.size :])
    start = len(whole) - trailer.size - length
    document = json.loads(whole[start : -trailer.size])
    del document["present"]
    index = json.dumps(document).encode()
    path.write_bytes(whole[:start] + index + trailer.pack(len(index), zlib.crc32(index), magic))
    assert Segment(str(path)).present.all() and not made.present.all()
    assert found([Segment(str(path))], spread_hashes(10), [7] * 10) == [True] * 10


def test_keys_that_agree_in_half_of_their_identity_are_told_apart(tmp_path: Path) -> None:
    same = 2**63
    made = written(tmp_path / "a", rows([same - 1, same, same, same, same + 1], two=[7, 1, 2, 4, 7]))
    assert found([made], [same, same, same, same, same], [1, 2, 3, 4, 5]) == [True, True, False, True, False]
    alone = written(tmp_path / "b", rows([same, same], two=[1, 2]))
    assert found([alone], [same, same, same + 1], [2, 3, 0]) == [True, False, False]
    assert shards_of(np.array([same], dtype=np.uint64), SHARDS).tolist() == [8]
