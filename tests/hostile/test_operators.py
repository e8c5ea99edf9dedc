"""Operators that hang, exit, or kill their process, on real Spark: the message names the operator and the record, the run
ends in a bounded time, and what was not committed is done by the next start."""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import springtide as st
from springtide.errors import RunError

pytest.importorskip("pyspark")

from springtide.control import supervisor
from springtide.spark.driver import last_batch

pytestmark = pytest.mark.spark

FAST = 1_000_000.0
"""Records/s: all that there will be are there when the query starts."""
BAD = 17
STALL_S = 1.5


@dataclass(frozen=True)
class Number:
    n: int
    k: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index, draw.index % 5)


@dataclass(frozen=True)
class At:
    """Passes records on, and does something to the process at some of them."""

    do: Callable[[], object]
    bad: tuple[int, ...] = (BAD,)

    def __call__(self, one: Number) -> Number:
        if one.n in self.bad:
            self.do()
        return one


@dataclass(frozen=True)
class Unless:
    """A filter that kills its process at a record."""

    bad: int

    def __call__(self, one: Number) -> bool:
        if one.n == self.bad:
            leave()
        return True


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    if BAD in batch.column("n").to_pylist():
        leave()
    return batch


class Count(st.Processor):
    """Counts the records of a key, and cannot count those of key 2."""

    count = st.value(int, default=0)

    def process(self, key: int, records: list[Number], state: st.State) -> Iterator[Number]:
        if key == 2:
            leave()
        state.count += len(records)
        yield Number(state.count, key)


class Alarmed(st.Processor):
    """Sets a timer for each key, which hangs when it comes, unless it is ``mended``."""

    mended = False
    last = st.value(int, default=0)

    def process(self, key: int, records: list[Number], state: st.State) -> Iterator[Number]:
        state.last = records[-1].n
        state.set_timer(datetime.datetime.fromtimestamp(0, datetime.UTC))
        return iter(())

    def on_timer(self, key: int, timer: st.Timer, state: st.State) -> Iterator[Number]:
        if not self.mended:
            sleep()
        yield Number(state.last, key)


class Mended(Alarmed):
    mended = True


def same(one: Number) -> Number:
    return one


def sleep() -> None:
    time.sleep(10**6)


def backtrack() -> None:
    """Holds the interpreter's lock for longer than anybody will wait: no other thread of the process runs."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def leave() -> None:
    os._exit(3)


def read_address_zero() -> None:
    ctypes.string_at(0)


def be_killed() -> None:
    """As the kernel does to a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def give_up() -> None:
    sys.exit("enough")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.01,))


def job(work: Callable[[Number], Number], out: Path, **options: Any) -> st.Topology:
    """The 50 records in one task, so that a record's place is its number."""
    numbers = st.source.generate(number, rate=FAST, limit=50, name="numbers")
    return numbers.map(work, name="work", **options).to(st.sink.files(out, format="json")).named("hostile")


def run(topology: st.Topology, spark: Any, tmp_path: Path, **options: Any) -> st.Result:
    return st.run(
        topology, spark=spark, runs=tmp_path / "runs", checkpoint=tmp_path / "checkpoint", max_slots=4, policy="static",
        settings={"degree": 1}, **options,
    )  # fmt: skip


def ends_within_s(pid: int, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not psutil.pid_exists(pid)


def read(folder: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def seen(folder: Path) -> list[int]:
    return sorted(row["n"] for row in read(folder))


def letters(tmp_path: Path) -> list[dict[str, Any]]:
    return read(tmp_path / "checkpoint" / "springtide" / "dead")


class StopWhenWarned(logging.Handler):
    """Ends a run, as Ctrl-C does, as soon as it is warned of an operator without progress."""

    def __init__(self) -> None:
        super().__init__()
        self.stop, self.at = threading.Event(), 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if "s in operator" in record.getMessage() and not self.stop.is_set():
            self.at = time.monotonic()
            self.stop.set()


@pytest.fixture
def warned() -> Iterator[StopWhenWarned]:
    handler = StopWhenWarned()
    logging.getLogger("springtide").addHandler(handler)
    yield handler
    logging.getLogger("springtide").removeHandler(handler)


@pytest.mark.parametrize("hang", [sleep, backtrack])
def test_a_hang_is_named_the_run_ends_in_time_and_the_next_start_does_the_batch_again(
    hang: Callable[[], object], spark: Any, tmp_path: Path, warned: StopWhenWarned, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    result = run(job(At(hang), out), spark, tmp_path, stop=warned.stop, stall_after=STALL_S)
    assert time.monotonic() - warned.at < 20
    assert f"operator 'work', at record {BAD} of task 0 of batch 0" in caplog.text
    assert re.search(r"no progress for \d+ s in operator", caplog.text)
    assert "batch 0 made no progress" in caplog.text and "was given up" in caplog.text
    assert result.summary["given_up_batch"] == 0
    assert seen(out) == [], "nothing of it was committed"
    pid = int(re.search(r"ended process (\d+)", caplog.text)[1])  # type: ignore[index]
    assert ends_within_s(pid, 5.0)
    again = run(job(same, out), spark, tmp_path)
    assert seen(out) == list(range(50))
    assert again.summary["given_up_batch"] is None


def test_a_timer_that_hangs_after_the_last_record_is_named_and_the_run_ends_in_time(
    spark: Any, tmp_path: Path, warned: StopWhenWarned, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes in a batch that follows the query's last one, when the run brings time to the last watermark."""

    def alarms(processor: type[Alarmed]) -> st.Topology:
        numbers = st.source.generate(number, rate=FAST, limit=50, name="numbers").watermark("n")
        called = numbers.key_by("k").stateful(processor, shards=4, name="alarms")
        return called.to(st.sink.files(tmp_path / "out", format="json")).named("hostile")

    result = run(alarms(Alarmed), spark, tmp_path, stop=warned.stop, stall_after=STALL_S)
    assert time.monotonic() - warned.at < 20
    assert re.search(r"in operator 'alarms', at call 0 of task \d of batch \d", caplog.text)
    assert result.summary["given_up_batch"] is not None and result.summary["ended"] == "stopped"
    assert seen(tmp_path / "out") == []
    run(alarms(Mended), spark, tmp_path)
    assert seen(tmp_path / "out") == [45, 46, 47, 48, 49]


@pytest.mark.parametrize("die", [leave, read_address_zero, be_killed])
def test_the_message_names_the_operator_and_the_record_that_killed_its_worker(
    die: Callable[[], object], spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GIVE_UP_AFTER", 1)
    with pytest.raises(RunError) as raised:
        run(job(At(die), tmp_path / "out"), spark, tmp_path)
    assert f"in operator 'work', at record {BAD} of task 0 of batch 0" in str(raised.value)
    assert "on_crash='dead-letter'" in str(raised.value)
    if die is read_address_zero:
        assert "of Segmentation fault in " in str(raised.value)
    assert seen(tmp_path / "out") == []


def test_what_sys_exit_raises_is_the_fate_of_its_record(spark: Any, tmp_path: Path) -> None:
    run(job(At(give_up), tmp_path / "out"), spark, tmp_path)
    assert seen(tmp_path / "out") == [n for n in range(50) if n != BAD]
    assert [(one["operator"], one["error"]) for one in letters(tmp_path)] == [("work", "SystemExit: enough")]


def test_records_that_kill_their_worker_go_to_the_dead_letters_and_the_rest_is_exact(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two in one operator, and one in the operator behind it, whose records are one fewer then: all in one batch."""
    bad, worse = (3, BAD), 30
    numbers = st.source.generate(number, rate=FAST, limit=50, name="numbers")
    worked = numbers.map(At(leave, bad), name="work", on_crash="dead-letter", on_error="stop")
    after = worked.filter(Unless(worse), name="after", grouping="round-robin", on_crash="dead-letter")
    result = run(after.to(st.sink.files(tmp_path / "out", format="json")).named("hostile"), spark, tmp_path)
    assert seen(tmp_path / "out") == [n for n in range(50) if n not in (*bad, worse)]
    put_aside = sorted((json.loads(one["record"])["n"], one["operator"], one["error"]) for one in letters(tmp_path))
    killed = "Crashed: this record killed its Python worker 4 times"
    assert put_aside == [(3, "work", killed), (BAD, "work", killed), (worse, "after", killed)]
    assert caplog.text.count("that record goes to the dead letters") == 3, "once for each"
    assert result.summary["rows_failed"] == 3
    assert "in operator 'work', at record 3 of task 0 of batch 0; that record goes to the dead letters" in caplog.text


def test_of_a_batch_or_a_key_that_kills_its_worker_all_records_go_to_the_dead_letters(spark: Any, tmp_path: Path) -> None:
    numbers = st.source.generate(number, rate=FAST, limit=50, name="numbers")
    chunked = numbers.map_batches(whole, name="chunked", on_crash="dead-letter", grouping="round-robin", parallelism=2)
    counted = numbers.key_by("k").stateful(Count(), name="counted", on_crash="dead-letter")
    flows = [chunked.to(st.sink.files(tmp_path / "chunked", format="json"), name="chunks"),
             counted.to(st.sink.files(tmp_path / "counted", format="json"), name="counts")]  # fmt: skip
    run(st.topology("hostile", *flows), spark, tmp_path, grouping="round-robin")
    by_operator: dict[str, list[int]] = {"chunked": [], "counted": []}
    for one in letters(tmp_path):
        by_operator[one["operator"]].append(json.loads(one["record"])["n"])
    assert BAD in by_operator["chunked"]
    assert sorted(seen(tmp_path / "chunked") + by_operator["chunked"]) == list(range(50))
    assert sorted(by_operator["counted"]) == list(range(2, 50, 5))
    assert sorted((row["k"], row["n"]) for row in read(tmp_path / "counted")) == [(0, 10), (1, 10), (3, 10), (4, 10)]


JOB = """
import time
from dataclasses import dataclass
import springtide as st

@dataclass(frozen=True)
class Number:
    n: int

def number(draw: st.Draw) -> Number:
    return Number(draw.index)

def work(one: Number) -> Number:
    if one.n == 17:
        time.sleep(10**6)
    return one

job = st.source.generate(number, rate=1e6, limit=50).map(work).to(st.sink.files("out")).named("job")
"""


@pytest.mark.crash
def test_sigterm_ends_a_process_whose_operator_hangs(tmp_path: Path) -> None:
    """With exit code 0, a summary, and no process left behind."""
    (tmp_path / "job.py").write_text(JOB)
    command = [
        str(Path(sys.executable).with_name("springtide")),
        "run",
        "job.py",
        "--stall-after",
        "1s",
        "--json",
        "--max-slots",
        "2",
    ]
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        wait_for(lambda: "s in operator 'work', at record 17 of task 0" in log.read_text(), process)
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        begun = time.monotonic()
        summary = json.loads(process.communicate(timeout=60)[0])
        assert time.monotonic() - begun < 30
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log.read_text()
    assert summary["given_up_batch"] == 0
    assert "batch 0 made no progress" in log.read_text()
    assert psutil.wait_procs(family, timeout=10)[1] == []


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str], patience_s: float = 120.0) -> None:
    end = time.monotonic() + patience_s
    while not there():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < end, f"not within {patience_s:.0f} s"
        time.sleep(0.1)


@dataclass(frozen=True)
class Waits:
    """A sql operator's function, which runs in the driver: says that it has begun, and waits until it may go on."""

    folder: Path

    def __call__(self, frame: Any) -> Any:
        (self.folder / "begun").touch()
        end = time.monotonic() + 60
        while not (self.folder / "go on").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return frame


def test_a_function_that_hangs_in_the_driver_is_left_behind_and_commits_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can end it in this process."""
    monkeypatch.setattr(last_batch, "CANCEL_S", 1.0)
    stop = threading.Event()

    def end_it() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=end_it, daemon=True).start()
    numbers = st.source.generate(number, rate=FAST, limit=50, name="numbers")
    counted = numbers.sql(Waits(tmp_path), schema=Number, name="sql")
    result = run(counted.to(st.sink.files(tmp_path / "out")).named("hostile"), spark, tmp_path, stop=stop, stall_after=1.0)
    assert result.summary["given_up_batch"] == 0
    assert "no task runs, so a sink or the driver is at work" in caplog.text
    (stopping,) = (thread for thread in threading.enumerate() if thread.name == "springtide-stop")
    (tmp_path / "go on").touch()
    stopping.join(timeout=30)
    assert not stopping.is_alive()
    assert list((tmp_path / "checkpoint" / "springtide" / "manifests").iterdir()) == []
