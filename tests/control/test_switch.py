"""Switching the control flow while it runs: by a file in the run's folder, and the command that writes it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import springtide as st
from control.rig import Memory, Steps, line, rig
from control.test_loop import batch
from springtide.cli.control import control
from springtide.control.planner import SlotLimit
from springtide.control.switch import FILE, FileSwitch, FixedMode, Mode, read, write
from springtide.errors import OptionError
from springtide.model.report import StateReport
from springtide.policy.scale.scripted import Scripted
from springtide.record.folder import RunFolder


@dataclass(frozen=True)
class Key:
    key: int


def ask(*words: str) -> Result:
    return CliRunner().invoke(control, list(words))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a run under way."""
    RunFolder(tmp_path).write_run({"topology": "line", "dry_run": False})
    return tmp_path


# The switch


@pytest.mark.parametrize("begun", Mode)
def test_while_nobody_has_switched_the_mode_is_that_of_the_start(begun: Mode, tmp_path: Path) -> None:
    assert FileSwitch(tmp_path / FILE, begun).mode() is begun
    assert FixedMode(begun).mode() is begun


def test_a_switch_tells_what_the_file_says_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    switch = FileSwitch(tmp_path / FILE)
    for mode in (Mode.OFF, Mode.DRY_RUN, Mode.ON, Mode.OFF):
        write(tmp_path / FILE, mode)
        assert switch.mode() is mode
        assert switch.mode() is mode
    (tmp_path / FILE).unlink()
    assert switch.mode() is Mode.ON, "as it began"
    assert not caplog.records
    assert os.listdir(tmp_path) == [], "nothing is left beside it"


@pytest.mark.parametrize("content", [b"of\n", b"", b"on off", b"\xff\xfe\x00", b"ON", b"off" * 10_000])
def test_what_is_no_mode_changes_nothing_and_is_told_once(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    switch = FileSwitch(path)
    write(path, Mode.DRY_RUN)
    switch.mode()
    path.write_bytes(content)
    assert [switch.mode() for _ in range(3)] == [Mode.DRY_RUN] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"the mode stays dry-run: {str(path)!r}: mode ")
    assert "Allowed: dry-run, off, on" in record.message
    write(path, Mode.OFF)
    assert switch.mode() is Mode.OFF
    path.write_bytes(content)
    assert switch.mode() is Mode.OFF
    assert len(caplog.records) == 2, "after it was right, what is wrong is told again"


def test_what_cannot_be_read_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).mkdir()
    switch = FileSwitch(tmp_path / FILE, Mode.OFF)
    assert [switch.mode(), switch.mode()] == [Mode.OFF, Mode.OFF]
    (record,) = caplog.records
    assert "cannot be read: Is a directory" in record.message


def test_a_mode_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / FILE, Mode.OFF)
    assert (tmp_path / FILE).read_text() == "off\n"
    assert read(tmp_path / FILE) is Mode.OFF
    with pytest.raises(OptionError, match=r"gone/control' cannot be written: No such file or directory; it stays as it is"):
        write(tmp_path / "gone" / FILE, Mode.ON)
    (tmp_path / "taken").mkdir()
    with pytest.raises(OptionError, match="taken' cannot be written: Is a directory"):
        write(tmp_path / "taken", Mode.ON)
    assert sorted(os.listdir(tmp_path)) == [FILE, "taken"]


# The command


def test_the_command_switches_and_tells_the_mode(run_dir: Path) -> None:
    assert ask(str(run_dir)).output == "on\n"
    for mode in ("off", "dry-run", "on"):
        switched = ask(str(run_dir), mode)
        assert (switched.exit_code, switched.output) == (0, f"{mode}\n")
        assert FileSwitch(run_dir / FILE).mode() == mode
        assert ask(str(run_dir)).output == f"{mode}\n"
    assert json.loads(ask(str(run_dir), "off", "--json").stdout) == {"run_dir": str(run_dir), "mode": "off"}


def test_a_run_that_began_dry_is_dry_until_it_is_switched(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_run({"dry_run": True})
    assert ask(str(tmp_path)).output == "dry-run\n"
    ask(str(tmp_path), "on")
    assert ask(str(tmp_path)).output == "on\n"


def test_wrong_words_and_folders_are_named_and_nothing_is_written(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong = ask(str(run_dir), "of")
    assert wrong.exit_code == 2
    assert "mode 'of' does not exist; did you mean 'off' or 'on'? Allowed: dry-run, off, on" in wrong.output
    assert not (run_dir / FILE).exists()
    other = tmp_path_factory.mktemp("other")
    for folder in (other, other / "none"):
        wrong = ask(str(folder), "off")
        assert wrong.exit_code == 2
        assert f"{str(folder)!r} is not a run's folder" in wrong.output
    assert os.listdir(other) == []


def test_a_run_that_has_ended_is_not_switched(run_dir: Path) -> None:
    RunFolder(run_dir).write_summary({"batches": 1})
    wrong = ask(str(run_dir), "off")
    assert wrong.exit_code == 2
    assert f"the run of {str(run_dir)!r} has ended, so 'off' would switch nothing" in wrong.output
    assert not (run_dir / FILE).exists()


def test_a_file_that_was_spoilt_is_told_and_can_be_mended(run_dir: Path) -> None:
    (run_dir / FILE).write_text("perhaps")
    wrong = ask(str(run_dir))
    assert wrong.exit_code == 2
    assert "mode 'perhaps' does not exist" in wrong.output
    assert ask(str(run_dir), "on").output == "on\n"
    assert ask(str(run_dir)).output == "on\n"


def test_while_it_is_off_shards_stay_where_they_are(tmp_path: Path) -> None:
    """A batch in which one shard had nearly all of the work moves shards; not while control is off."""
    keyed = st.source.generate(lambda draw: Key(draw.index), rate=1, schema=Key).key_by("key")
    topology = keyed.count(name="count", shards=4, parallelism=2).to(st.sink.discard()).named("counts")
    clock, memory, file = Steps(), Memory(), tmp_path / FILE
    loop = rig(
        topology, Scripted("* 0:2"), bounds=SlotLimit(8), read_limit=None, trigger_s=0.25, interval_s=1.0,
        clock=clock, actuators=[memory], journal=memory, switch=FileSwitch(file),
    )  # fmt: skip
    late_report = replace(
        batch(5), state={"count": StateReport(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, seconds={0: 5.0, 1: 4.0, 2: 0.1, 3: 0.1})}
    )
    before = loop.current().shards
    write(file, Mode.OFF)
    clock.now += 1.0
    loop.cycle()
    loop.report(late_report)
    assert loop.current().shards == before
    write(file, Mode.ON)
    clock.now += 1.0
    loop.cycle()
    assert loop.current().shards != before


def test_the_loop_obeys_the_switch_and_records_it(tmp_path: Path) -> None:
    """At 1 s the script wants 3, at 3 s 2, at 5 s 4, at 7 s 5; off from 3 to 4 s, dry from 5 to 6 s."""
    clock, memory, file = Steps(), Memory(), tmp_path / FILE
    loop = rig(
        line(), Scripted("first 0:1 1:3 3:2 5:4 7:5"), bounds=SlotLimit(8), read_limit=None, trigger_s=0.25, interval_s=1.0,
        clock=clock, actuators=[memory], journal=memory, switch=FileSwitch(file),
    )  # fmt: skip
    seen = []
    for mode in (Mode.ON, Mode.OFF, Mode.DRY_RUN, Mode.ON):
        write(file, mode)
        for _ in range(2):
            loop.report(batch(5))
            clock.now += 1.0
            loop.cycle()
            seen.append(loop.current().degrees["first"])
    assert seen == [3, 3, 3, 3, 3, 3, 5, 5]
    assert loop.snapshot is not None and loop.snapshot.at == 8.0, "what is measured is taken also while it is off"
    shown_entries = [(entry["at_s"], entry.get("control"), entry.get("dry_run")) for entry in memory.decisions]
    assert [one for one in shown_entries if one[1] or one[2]] == [
        (3.0, Mode.OFF, None), (5.0, Mode.DRY_RUN, None), (5.0, None, True), (7.0, Mode.ON, None),
    ]  # fmt: skip
