"""What the driver learns of workers that hang or die, without Spark: pages, stalls, and records that are put aside."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

import springtide as st

pytest.importorskip("pyspark")  # programs are in the package that needs it

from springtide.spark.driver.crashes import Crashes
from springtide.spark.driver.stalls import Stalls
from springtide.spark.driver.workers import Worker, Workers
from springtide.spark.shared import progress
from springtide.spark.shared.program import Program, Staging, compile_topology
from springtide.spark.shared.progress import NOWHERE, RecordPlace

PLACE = RecordPlace(level=1, gate=0, task=3, step=1, operator=1, index=17)

WORKER = """
import ctypes, os, sys, time
from springtide.spark.shared.progress import INDEX, page_of
page = page_of(sys.argv[1], 5)
with page.task(batch=12, level=1, gate=0, task=3), page.operator(1):
    page.numbers[INDEX] = 17
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "die": os._exit(1)
    if sys.argv[2] == "fault": ctypes.string_at(0)
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def worker(root: Path, then: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), then], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> str:
    """Let a worker pass the next point; what it says then."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    made = Workers(tmp_path / "workers")
    made.begin(5)
    return made


@pytest.mark.parametrize("then", ["die", "fault", "kill"])
def test_the_page_of_a_worker_tells_where_it_is_and_outlives_it(then: str, workers: Workers) -> None:
    with worker(workers.root, then) as process:
        (alive,) = workers.busy(12)
        assert alive == Worker(socket.gethostname(), process.pid, 12, PLACE, alive=True)
        assert workers.dead(12) == []
        if then == "kill":
            process.kill()
        go_on(process) if then != "kill" else process.wait()
        process.wait()
        (dead,) = workers.dead(12)
        assert (dead.place, dead.alive) == (PLACE, False)
        assert workers.dead(13) == [], "another batch's"
        if then == "fault":
            assert dead.fault is not None
            assert dead.fault.startswith("Segmentation fault in ")


def test_a_worker_whose_task_ended_is_not_busy_and_its_death_is_nobodys_fault(workers: Workers) -> None:
    with worker(workers.root, "end") as process:
        assert go_on(process) == "done\n"
        assert workers.busy(12) == []
        process.kill()
        process.wait()
        assert workers.dead(12) == []


def test_the_pages_of_workers_that_ended_are_removed_once_nobody_needs_them(workers: Workers) -> None:
    with worker(workers.root, "end") as idle, worker(workers.root, "die") as dying:
        assert go_on(idle) == "done\n"
        go_on(dying)
        for process in (idle, dying):
            process.kill()
            process.wait()
        assert workers.busy(12) == []
        (left,) = workers.dead(12)
        assert left.pid == dying.pid, "its batch may fail, and it is why"
        assert workers.busy(13) == []
        assert list((workers.root / "5").iterdir()) == []


def test_pages_are_readable_by_their_owner_alone_and_go_with_their_epoch(workers: Workers) -> None:
    with worker(workers.root, "end"):
        modes = {oct(file.stat().st_mode & 0o777) for file in (workers.root / "5").iterdir()}
        assert modes == {"0o600"}
        workers.begin(6)
        assert workers.busy(12) == []
        assert [folder.name for folder in workers.root.iterdir()] == ["6"]
    workers.end()
    assert not workers.root.exists()


def test_only_a_python_worker_of_spark_is_ended(workers: Workers) -> None:
    """This one says where it is as they do, but Spark's daemon has not forked it."""
    with worker(workers.root, "end") as process:
        assert workers.kill() == []
        assert process.poll() is None


@pytest.mark.parametrize(
    ("name", "content"), [("host-17", b""), ("host-17", b"\1" * 20), ("host", b"\1" * 72), ("x-y", b"\1" * 72)]
)
def test_what_is_no_page_is_ignored(name: str, content: bytes, workers: Workers) -> None:
    (workers.root / "5" / name).write_bytes(content)
    assert workers.busy(12) == []


def test_without_a_folder_a_worker_works_and_nobody_sees_where(tmp_path: Path) -> None:
    page = progress.page_of(str(tmp_path / "not there"), 1)
    with page.task(1, 1, 0, 0), page.operator(3):
        page.numbers[progress.INDEX] = 7
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Item:
    n: int


def item(draw: st.Draw) -> Item:
    return Item(draw.index)


def work(one: Item) -> Item:
    return one


@pytest.fixture
def program() -> Program:
    """Operators 0, a source, 1 ``work``, 2 ``careless``, whose records may be put aside, 3 ``careful`` likewise, 4 a sink."""
    worked = st.source.generate(item, rate=1.0, name="items").map(work)
    careless = worked.map(work, name="careless", on_crash="dead-letter").map(work, name="careful", on_crash="dead-letter")
    return compile_topology(careless.to(st.sink.discard()).named("job"), {}, {}, Staging("nowhere", "parquet"))


@dataclass
class Scene:
    """A run as ``Stalls`` sees it."""

    now: float = 0.0
    batch: int | None = 12
    seen: list[Worker] = field(default_factory=list)
    stages: tuple[str, ...] = ()

    def busy(self, batch: int) -> list[Worker]:
        assert batch == self.batch
        return self.seen

    def watched(self, program: Program) -> Stalls:
        workers = cast(Workers, self)
        return Stalls(program, workers, 60.0, lambda: self.batch, lambda: self.stages, lambda: self.now)

    def look(self, stalls: Stalls, *times: float) -> None:
        for self.now in times:
            stalls.look()


AT_17 = Worker("node", 4711, 12, PLACE, alive=True)


def test_a_record_that_takes_longer_than_the_limit_is_told_of_once(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(seen=[AT_17])
    stalls = scene.watched(program)
    scene.look(stalls, 0.0, 30.0, 59.9)
    assert caplog.messages == []
    scene.look(stalls, 61.0, 62.0, 200.0)
    (said,) = caplog.messages
    assert said.startswith("no progress for 61 s in operator 'work', at record 17 of task 3 of batch 12; process 4711 on node")
    assert stalls.still_s == pytest.approx(200.0)
    scene.seen = [replace(AT_17, place=replace(PLACE, index=18))]
    scene.look(stalls, 201.0)
    assert stalls.still_s == 0.0
    scene.look(stalls, 261.0)
    assert len(caplog.messages) == 2, "another record, another warning"


def test_a_worker_that_moves_is_not_told_of(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    stalls = scene.watched(program)
    for now in range(0, 300, 20):
        scene.seen = [replace(AT_17, place=replace(PLACE, index=now))]
        scene.look(stalls, float(now))
    assert caplog.messages == []


def test_a_batch_that_stands_still_outside_of_operators_is_told_of_with_its_stages(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(stages=("stage 4 (sql), 1 of 2 tasks done",))
    stalls = scene.watched(program)
    scene.look(stalls, 0.0, 30.0)
    scene.stages = ("stage 4 (sql), 0 of 3 tasks done",)
    scene.look(stalls, 50.0, 70.0)
    assert caplog.messages == [], "a task has ended meanwhile"
    scene.look(stalls, 110.0, 120.0)
    (said,) = caplog.messages
    assert (
        said == "batch 12 has made no progress for 60 s, outside of any operator; its tasks: stage 4 (sql), 0 of 3 tasks done"
    )


def test_between_two_batches_nothing_stands_still(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(batch=None)
    stalls = scene.watched(program)
    scene.look(stalls, 0.0, 1000.0)
    assert (stalls.still_s, caplog.messages) == (0.0, [])


def dead(place: RecordPlace, times: int = 1, batch: int = 12) -> list[Worker]:
    return [Worker("node", pid, batch, place, alive=False) for pid in range(times)]


CARELESS = replace(PLACE, operator=2, index=4)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (PLACE, "in operator 'work', at record 17 of task 3 of batch 12"),
        (replace(PLACE, index=NOWHERE), "in operator 'work', before a record of task 3 of batch 12"),
        (replace(PLACE, operator=NOWHERE), "in task 3 of batch 12 (stage 1), outside of any operator"),
    ],
)
def test_a_death_is_told_with_its_place(place: RecordPlace, words: str, program: Program) -> None:
    assert Crashes(program).note(dead(place)) == f"the death of a Python worker {words}"
    assert Crashes(program).note(dead(place, 3)) == f"the death of 3 Python workers {words}"
    assert Crashes(program).note([]) is None


def test_a_record_is_put_aside_after_two_deaths_if_its_operator_allows_it(program: Program) -> None:
    counted = Crashes(program)
    counted.note(dead(CARELESS))
    assert counted.set_aside() is None, "it may be the kernel's choice, when memory is short"
    counted.note(dead(CARELESS))
    assert counted.set_aside() == CARELESS
    assert counted.document() == '{"batch": 12, "places": [[1, 0, 3, 2, 4, 2]]}'
    counted.note(dead(PLACE, 4))
    assert counted.set_aside() is None, "on_crash of 'work' is 'stop'"
    counted.note(dead(replace(CARELESS, index=NOWHERE), 9))
    assert counted.set_aside() is None, "which record it is is not known"


def test_no_more_than_a_hundred_records_of_a_batch_are_put_aside(program: Program) -> None:
    counted = Crashes(program)
    for index in range(100):
        counted.note(dead(replace(CARELESS, index=index), 2))
        assert counted.set_aside() is not None
    counted.note(dead(replace(CARELESS, index=100), 2))
    assert counted.set_aside() is None
    assert counted.remedy() == "100 records of this batch are already set aside, which is the limit; mend the operator"


def test_of_several_deaths_the_record_with_the_most_is_put_aside(program: Program) -> None:
    counted = Crashes(program)
    counted.note(dead(replace(CARELESS, task=9)) + dead(CARELESS, 2))
    assert counted.set_aside() == CARELESS


def test_records_whose_index_another_one_shifts_are_no_longer_put_aside(program: Program) -> None:
    """A task goes through its records again in the same order, so what follows is found again."""
    counted = Crashes(program)
    later_stage, later_step = replace(CARELESS, level=2), replace(CARELESS, step=9, operator=3)
    other_task, before = replace(CARELESS, task=0), replace(CARELESS, index=1)
    for place in (before, other_task, later_step, later_stage):
        counted.note(dead(place, 2))
        counted.set_aside()
    assert set(counted._aside) == {before, other_task, later_step, later_stage}
    counted.note(dead(CARELESS, 2))
    assert counted.set_aside() == CARELESS
    assert set(counted._aside) == {before, other_task, CARELESS}


def test_what_was_put_aside_is_of_its_batch_alone(program: Program) -> None:
    counted = Crashes(program)
    counted.note(dead(CARELESS, 2))
    counted.set_aside()
    counted.note(dead(replace(CARELESS, index=5), 2, batch=13))
    counted.set_aside()
    assert counted.document() == '{"batch": 13, "places": [[1, 0, 3, 2, 5, 2]]}'
