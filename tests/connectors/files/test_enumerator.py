"""Which files are read, in which batches: every record once, whatever comes when, and a replay as the first time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as strategies

from connectors.files.folders import NUMBER, Place, lines, numbers
from springtide.connectors.files import positions, seen
from springtide.connectors.files.listing import in_path
from springtide.errors import DamageError, RunError
from springtide.model.source import SourceUnavailable, Waiting

TIMES = strategies.integers(1, 5)
SIZES = strategies.integers(0, 30)
ACTION = strategies.one_of(
    strategies.tuples(strategies.just("add"), TIMES, SIZES),
    strategies.tuples(strategies.just("batch"), strategies.integers(1, 40), strategies.integers(1, 4)),
    strategies.tuples(strategies.just("restart"), strategies.just(0), strategies.just(0)),
    strategies.tuples(strategies.just("other"), strategies.just(0), strategies.just(0)),
)


def write(place: Place, number: int, at: int, first: int, size: int) -> None:
    if place.format == "parquet":
        place.folder.mkdir(exist_ok=True)
        file = place.folder / f"{number}.parquet"
        pq.write_table(pa.table({"n": range(first, first + size)}, schema=NUMBER), file, row_group_size=7)
        os.utime(file, (at, at))
    else:
        place.write(f"{number}.json", lines(range(first, first + size)), at)


@pytest.mark.parametrize("format", ["json", "parquet"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=strategies.lists(ACTION, max_size=25))
def test_every_record_is_read_once(format: str, actions: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files come in any order; the driver restarts, and another process lists too; the list is summarised all the time."""
    monkeypatch.setattr(seen, "MIN_TO_FORGET", 1)
    monkeypatch.setattr(positions, "MIN_CUT_BYTES", 40)
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root), format)
        place.folder.mkdir()
        enumerator, other = place.enumerator(), place.enumerator()
        position, read, written, files = enumerator.first(), list[int](), 0, 0
        for action, one, two in [*actions, *[("batch", 40, 2)] * (len(actions) * 2 + 2)]:
            if action == "add":
                write(place, files, one, written, two)
                written, files = written + two, files + 1
            elif action == "restart":
                enumerator = place.enumerator()
                enumerator.check(position)
            elif action == "other":
                other.end(position)
            else:
                end = enumerator.end(position)
                until = enumerator.limited(position, end, one)
                assert (until == position) == (end == position), "every batch makes progress"
                found = place.between(enumerator, position, until, two)
                again = place.enumerator()
                assert again.ranges(position, until, two) == enumerator.ranges(position, until, two), (
                    "as in the driver of before"
                )
                assert enumerator.count(position, until) == len(found) if format == "parquet" else True
                read += found
                position = until
                enumerator.committed(position)
        assert sorted(read) == list(range(written))


def test_the_oldest_files_are_read_first_and_whole(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name, at in (("c", 3), ("b", 1), ("a", 2), ("d", 2)):
        place.write(f"{name}.json", lines([at] * 10), at)
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    until = enumerator.limited(enumerator.first(), end, 25)
    parts = enumerator.ranges(enumerator.first(), until, 1)
    assert [file[0] for part in parts for file in part["files"]] == ["b.json", "a.json"]
    assert enumerator.count(until, end) == 20
    assert enumerator.waiting(until, end) == Waiting(20, files=2, bytes=180, exact=True)


def test_a_late_file_with_an_older_time_is_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("new.json", lines([1]), at=1_000_000)
    enumerator = place.enumerator()
    first = enumerator.end(enumerator.first())
    place.write("late.json", lines([2]), at=1)
    assert place.between(enumerator, first, enumerator.end(first), 1) == [2]


def test_max_files_bounds_a_batch(tmp_path: Path) -> None:
    place = Place(tmp_path, given={"max_files": 2})
    for number in range(5):
        place.write(f"{number}.json", lines([number]))
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    assert place.source.most is not None, "so that the limit is asked for"
    until = enumerator.limited(enumerator.first(), end, place.source.most)
    assert place.between(enumerator, enumerator.first(), until, 1) == [0, 1]


def test_the_records_of_a_large_file_are_estimated(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("large.json", lines([1_000_000] * 300_000))
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    waiting = enumerator.waiting(enumerator.first(), end)
    assert not waiting.exact and waiting.records == pytest.approx(300_000, rel=0.01)
    half = enumerator.limited(enumerator.first(), end, 90_000)
    read = place.between(enumerator, enumerator.first(), half, 2)
    assert len(read) == pytest.approx(90_000, rel=0.02), "large files of lines are cut"
    assert len(read) + len(place.between(enumerator, half, end, 3)) == 300_000


def test_a_file_without_a_known_number_makes_the_backlog_unknown(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    place.write("broken.parquet", b"PAR1 is not all", at=1_000)
    enumerator = place.enumerator()
    end = enumerator.end(enumerator.first())
    assert enumerator.count(enumerator.first(), end) is None, "None is never zero"
    assert enumerator.limited(enumerator.first(), end, 10) == end


def test_a_parquet_file_that_is_being_written_is_not_listed_yet(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    file = place.write("young.parquet", b"PAR1")
    os.utime(file)
    enumerator = place.enumerator()
    assert enumerator.end(enumerator.first()) == enumerator.first()


def test_a_file_that_grows_after_it_was_read_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for lenient in (False, True):
        place = Place(tmp_path, given={"on_data_loss": "go on" if lenient else "stop"})
        place.write("a.json", lines([1]))
        enumerator = place.enumerator()
        position = enumerator.end(enumerator.first())
        place.write("a.json", lines([1, 2]))
        if not lenient:
            with pytest.raises(RunError, match=r"a\.json changed after it was read: it had 9 bytes, and has 18; .* new file"):
                enumerator.end(position)
        else:
            assert enumerator.end(position) == position
            assert "changed after it was read" in caplog.text


def test_a_folder_is_not_listed_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing takes 2 s here: the next one comes 8 s later."""
    place = Place(tmp_path)
    place.write("a.json", lines([1]))
    enumerator, now, listed = place.enumerator(), [0.0], list[float]()
    monkeypatch.setattr(enumerator, "_clock", lambda: now[0])
    original = enumerator._folder.listed

    def slow() -> Any:
        listed.append(now[0])
        now[0] += 2.0
        return original()

    monkeypatch.setattr(enumerator._folder, "listed", slow)
    position = enumerator.first()
    for _ in range(40):
        position = enumerator.end(position)
        now[0] += 0.5
    assert listed == [0.0, 10.0, 20.0]


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name in ("_SUCCESS", ".a.json", "_temporary/1.json", "a.json._COPYING_"):
        place.write(name, lines([1]))
    place.write("day=1/b.json", lines([2]))
    assert numbers(place.everything()) == [2]


def test_a_folder_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(SourceUnavailable):
        place.enumerator().end({"next": 0, "at": 0, "list": 0})


# The list


def grown(place: Place, files: int) -> tuple[Any, Any]:
    enumerator = place.enumerator()
    position = enumerator.first()
    for number in range(files):
        place.write(f"{number}.json", lines([number]), at=number + 1)
        position = enumerator.end(position)
        enumerator.committed(position)
    return enumerator, position


def test_the_list_stays_small_while_a_folder_gains_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MIN_TO_FORGET", 20)
    place = Place(tmp_path)
    _enumerator, position = grown(place, 200)
    documents = list((tmp_path / "list").glob("*.json"))
    assert len(documents) < 60
    assert len(str(position)) < 100, "a position does not grow with the files"
    again = place.enumerator()
    again.check(position)
    assert again.end(position) == position, "nothing is read again"


def test_paths_of_files_that_were_removed_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MIN_TO_FORGET", 1)
    monkeypatch.setattr(seen, "AGE_TO_FORGET_US", 10 * 10**6)
    place = Place(tmp_path)
    enumerator, position = grown(place, 5)
    for number in range(5):
        (place.folder / f"{number}.json").unlink()
    for number in range(100, 105):
        place.write(f"{number}.json", lines([number]), at=number)
        position = enumerator.end(position)
        enumerator.committed(position)
    known = place.enumerator()
    known.check(position)
    assert not {"0.json", "1.json"} & known._seen.known.keys()
    assert "104.json" in known._seen.known


@pytest.mark.parametrize("harm", ["cut", "delete", "other", "all"])
def test_a_damaged_list_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    place = Place(tmp_path)
    _, position = grown(place, 3)
    first = tmp_path / "list" / "000000000000.json"
    if harm == "cut":
        first.write_bytes(first.read_bytes()[:20])
    elif harm == "delete":
        first.unlink()
    elif harm == "all":
        for file in (tmp_path / "list").glob("*.json"):
            file.unlink()
    else:
        for file in (tmp_path / "list").glob("*.json"):
            file.unlink()
        elsewhere = Place(tmp_path / "elsewhere")
        grown(elsewhere, 4)
        for file in (tmp_path / "elsewhere" / "list").glob("*.json"):
            file.rename(tmp_path / "list" / file.name)
        place.write("0.json", lines([0]))
    if harm == "other":  # another list with the same files is as good
        place.enumerator().check(position)
        (tmp_path / "list" / "000000000000.json").unlink()
    with pytest.raises(DamageError, match="list"):
        place.enumerator().check(position)


def test_a_damaged_list_is_made_anew_before_the_first_batch(tmp_path: Path) -> None:
    place = Place(tmp_path)
    grown(place, 2)
    (tmp_path / "list" / "000000000000.json").write_text("{}")
    enumerator = place.enumerator()
    enumerator.check(enumerator.first())
    assert place.between(enumerator, enumerator.first(), enumerator.end(enumerator.first()), 1) == [0, 1]


def test_the_list_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    place, other = Place(tmp_path / "one"), Place(tmp_path / "two")
    _, position = grown(place, 2)
    other.write("x.json", lines([1]))
    grown(other, 2)
    for file in (tmp_path / "one" / "list").glob("*.json"):
        file.unlink()
    for file in (tmp_path / "two" / "list").glob("*.json"):
        file.rename(tmp_path / "one" / "list" / file.name)
    with pytest.raises(DamageError, match="lists other files than this checkpoint has read"):
        place.enumerator().check(position)


def test_columns_in_paths() -> None:
    assert in_path("a=1/b=x%2Fy/c.json") == {"a": "1", "b": "x/y"}
    assert in_path("a=__HIVE_DEFAULT_PARTITION__/plain/c.json") == {"a": None}
