"""Why runs end, with stand-ins for Spark's queries: what is an end, what is a failure, and what closing batches log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import springtide as st
from springtide.connectors.generate import GenerateSource
from springtide.errors import RunError
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from spark.driver.test_streams import Tap, tapped
from springtide.control import supervisor
from springtide.model.ending import Ended, Ending
from springtide.spark.driver import closing
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.closing import Closed, Open
from springtide.spark.driver.plane import BatchPlane
from springtide.spark.driver.workers import Worker
from springtide.spark.private.logs import COMMIT, Logs
from springtide.spark.shared.progress import RecordPlace


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def generated(**options: Any) -> Topology:
    return st.source.generate(number, **{"rate": 400.0, **options}).to(st.sink.discard()).named("numbers")


def by_spark(folder: Path) -> Topology:
    """A source that Spark reads, of which only Spark knows whether it has more."""
    return st.source.dataframe(lambda session: folder, schema=Number).to(st.sink.discard()).named("numbers")


@dataclass
class Query:
    """A query that ends by itself after it was asked some times. ``late``: an error that is known once its thread has ended."""

    looks: int = 0
    nothing_new: bool = True
    late: str | None = None
    _error: str | None = None

    @property
    def isActive(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    @property
    def _jsq(self) -> Any:
        return SimpleNamespace(streamingQuery=lambda: SimpleNamespace(noNewData=lambda: self.nothing_new))

    def awaitTermination(self, timeout: float) -> bool:
        self._error = self.late
        return True

    def exception(self) -> str | None:
        return self._error

    def stop(self) -> None:
        self.looks = 0


@dataclass
class Runner:
    """What a driver knows of the batches."""

    committed: dict[str, int] = field(default_factory=dict)
    last_committed: int = -1
    batches: int = 0
    failure: Exception | None = None
    fatal: None = None
    latest: int | None = None
    running: int | None = None

    def is_idle(self, _: float) -> bool:
        return True

    def roll(self, now: int, every: bool = False) -> None: ...

    def retire(self) -> None: ...


class Driver(BatchPlane):
    """A driver whose queries are given to it."""

    def __init__(self, topology: Topology, folder: Path, queries: Callable[[], Query], runner: Any) -> None:
        checkpoint = Checkpoint(folder / "checkpoint")
        checkpoint.acquire(topology)
        self.ending = threading.Event()
        control: Any = None
        super().__init__(topology, checkpoint, control, {}, SimpleNamespace, self.ending, clock=lambda: 1_000.0)
        for stream in self._streams._all.values():
            if isinstance(stream.source, GenerateSource):
                stream.enumerator = stream.source.enumerator({"started": 999.0}, lambda: 1_000.0)
        committed = vars(runner)
        vars(self._streams)["_positions"] = lambda _: {name: {"next": n} for name, n in committed["committed"].items()}
        self._session = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
        self._queries, self._runner = queries, runner
        self.starts = 0

    def _start(self, ending: Ending) -> Any:
        self.starts += 1
        self._ends = self._streams.ends(self._last_committed) if ending.available_now else {}
        return self._queries()


Drive = Callable[[Topology, Callable[[], Query], Runner], Driver]


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    """Makes drivers, each with a checkpoint of its own."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))
    made: list[Driver] = []

    def make(topology: Topology, queries: Callable[[], Query], runner: Runner) -> Driver:
        made.append(Driver(topology, tmp_path / str(len(made)), queries, runner))
        return made[-1]

    yield make
    for driver in made:
        driver._checkpoint.release()


NOW = Ending(available_now=True)


@pytest.mark.parametrize("ending", [NOW, Ending(), Ending(duration_s=60.0)])
def test_a_query_that_ends_without_an_error_and_a_reason_has_failed(drive: Drive, ending: Ending) -> None:
    """As one that was stopped from elsewhere, or whose thread died. It is started again, and in the end the run fails."""
    driver = drive(generated(), lambda: Query(nothing_new=False), Runner())
    with pytest.raises(RunError, match=r"failed 4 times in a row.*Spark ended the query without an error before it had read"):
        driver.run(ending)
    assert driver.starts == 4


def test_an_error_that_spark_notes_late_is_no_end(drive: Drive) -> None:
    driver = drive(generated(), lambda: Query(late="java.io.IOException: No space left"), Runner())
    with pytest.raises(RunError, match="No space left"):
        driver.run(NOW)


def test_records_that_had_come_and_are_not_committed_are_no_end(drive: Drive) -> None:
    """400 had come, and the query ends as if there were nothing: the run fails, and says so."""
    driver = drive(generated(), Query, Runner({"source": 10}))
    with pytest.raises(RunError, match="390 records of source 'source' are not committed that had arrived"):
        driver.run(NOW)


def test_a_run_goes_on_where_a_query_left_records(drive: Drive) -> None:
    runner = Runner()

    def query() -> Query:
        runner.committed = {"source": min(400, runner.committed.get("source", -200) + 200)}
        runner.batches += 1
        return Query()

    driver = drive(generated(), query, runner)
    assert driver.run(NOW).ended is Ended.AVAILABLE
    assert (driver.starts, runner.committed) == (3, {"source": 400})


def test_a_second_query_confirms_that_there_is_nothing(drive: Drive, tmp_path: Path) -> None:
    """Files do not say how many records they hold. A run that has read some needs no second look."""
    empty = drive(by_spark(tmp_path), Query, Runner())
    assert (empty.run(NOW).ended, empty.starts) == (Ended.AVAILABLE, 2)
    some = drive(by_spark(tmp_path), Query, Runner({"source": 5}, batches=1))
    assert (some.run(NOW).ended, some.starts) == (Ended.AVAILABLE, 1)


@pytest.mark.parametrize(
    ("ending", "options", "wanted"),
    [
        (Ending(duration_s=0.0), {}, Ended.DURATION),
        (Ending(batches=3), {}, Ended.BATCHES),
        (Ending(batches=4), {"limit": 50}, Ended.EXHAUSTED),
    ],
)
def test_a_run_says_why_it_ended(drive: Drive, ending: Ending, options: dict[str, Any], wanted: Ended) -> None:
    driver = drive(generated(**options), lambda: Query(looks=10**9), Runner({"source": 50}, batches=3))
    outcome = driver.run(ending)
    assert outcome.ended is wanted and outcome.open == ({} if wanted is Ended.EXHAUSTED else None)


def test_a_run_that_is_stopped_says_so_also_before_it_began(drive: Drive) -> None:
    driver = drive(generated(), lambda: Query(looks=10**9), Runner())
    threading.Timer(0.2, driver.ending.set).start()
    assert driver.run(Ending()).ended is Ended.STOPPED
    assert driver.run(Ending()).ended is Ended.STOPPED
    assert driver.starts == 1


def test_a_run_waits_for_a_source_that_is_away_at_its_beginning(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tap = Tap(away=True)
    driver = drive(tapped(tap).to(st.sink.discard()).named("tapped"), lambda: Query(looks=10**9), Runner(batches=3))
    assert driver.run(Ending(duration_s=0.0)).ended is Ended.DURATION
    assert driver.starts == 0
    waits: list[float] = []

    def comes_back(seconds: float) -> bool:
        waits.append(seconds)
        tap.away = len(waits) < 5
        return False

    caplog.clear()
    monkeypatch.setattr(driver._stop, "wait", comes_back)
    assert driver.run(Ending(batches=3)).ended is Ended.BATCHES
    assert (driver.starts, len(waits)) == (1, 5)
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "a source cannot be reached (nobody listens); the run waits for it"
    ]


def test_a_run_that_is_stopped_while_its_end_fails_is_no_success(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records are processed, but windows that are due were not told."""
    numbers = st.source.generate(number, rate=400.0, limit=50).watermark("n")
    windows = numbers.key_by("n").window("1s", count=st.agg.count()).to(st.sink.discard()).named("windows")
    driver = drive(windows, lambda: Query(looks=10**9), Runner({"source": 50}, batches=3))

    def fail() -> Closed:
        driver.ending.set()
        raise RuntimeError("the closing batch failed")

    monkeypatch.setattr(driver, "_close", fail)
    with pytest.raises(RunError, match="the closing batch failed"):
        driver.run(Ending())


@dataclass
class Busy(Runner):
    """A runner in the middle of batch 3. ``polls``: how often it is asked before the batch ends, or somebody gives it up."""

    committed: dict[str, int] = field(default_factory=lambda: {"source": 50})
    batches: int = 3
    running: int | None = 3
    polls: int = 20
    given_up: bool = False
    asked: Callable[[], None] = lambda: None
    close: Callable[..., Any] = lambda *_: None

    def is_idle(self, _: float) -> bool:
        self.asked()
        self.polls -= 1
        return self.polls <= 0 or self.given_up


STILL: Any = SimpleNamespace(look=lambda: None, still_s=3_600.0)
"""Nothing has moved for an hour."""


def impatient(driver: Driver) -> Driver:
    """Batches that make no progress are given up at the first look, and none makes progress."""
    driver._stalls = driver._last_batch._stalls = STILL
    driver._last_batch._patience_s = 0.0
    return driver


def test_a_slow_last_batch_is_given_up_only_once_somebody_waits_for_the_end(drive: Drive) -> None:
    slow = impatient(drive(generated(limit=50), lambda: Query(looks=10**9), Busy()))
    outcome = slow.run(Ending())
    assert (outcome.ended, outcome.given_up) == (Ended.EXHAUSTED, None)
    stopped = impatient(drive(generated(limit=50), lambda: Query(looks=10**9), runner := Busy()))
    runner.asked = stopped.ending.set
    outcome = stopped.run(Ending())
    assert (outcome.ended, outcome.given_up) == (Ended.STOPPED, 3)


def test_a_slow_closing_batch_is_given_up_only_once_somebody_waits_for_the_end(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = impatient(drive(generated(), Query, runner := Busy(given_up=True)))
    context = SimpleNamespace(addJobTag=lambda _: None, setLocalProperty=lambda *_: None, cancelJobsWithTag=lambda _: None)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    driver._frame, ends = frame, threading.Event()
    monkeypatch.setattr(closing, "empty_like", lambda _: None)
    runner.close = lambda *_: ends.wait(60.0)
    threading.Timer(0.5, ends.set).start()
    assert driver._run_without_records(4)
    ends.clear()
    threading.Timer(0.3, driver.ending.set).start()
    assert not driver._run_without_records(5)
    ends.set()


@dataclass
class Hung(Runner):
    """A runner whose batch never ends; ``looks``: how often a driver may ask."""

    looks: int = 20

    def is_idle(self, _: float) -> bool:
        self.looks -= 1
        if self.looks < 0:
            pytest.fail("the driver waits for a batch that hangs, though its run is over")
        return False


@pytest.mark.parametrize("ending", [Ending(duration_s=0.0), Ending()], ids=["duration", "stop"])
def test_a_failed_query_whose_batch_hangs_ends_with_the_run(drive: Drive, ending: Ending) -> None:
    """Its batch cannot commit any more: the epoch is a later one."""
    following = iter([Query(late="java.io.IOException: No space left"), Query(looks=10**9)])

    def query() -> Query:
        found = next(following)
        if found.late is None:
            vars(driver)["_runner"] = Runner(failure=hung.failure)
        elif ending.duration_s is None:
            driver.ending.set()
        return found

    driver = impatient(drive(generated(), query, hung := Hung()))
    epoch = driver._checkpoint.epoch
    with pytest.raises(RunError, match=r"the run ended while its query was failing: .*No space left"):
        driver.run(ending)
    assert driver._checkpoint.epoch == epoch + 1


@pytest.mark.parametrize(("error", "counted"), [("Python worker exited unexpectedly (crashed)", 1), ("Connection refused", 0)])
def test_workers_that_die_with_their_jvm_say_nothing_of_the_record_they_were_at(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, error: str, counted: int
) -> None:
    driver = drive(generated(), Query, Runner(latest=3))
    place = RecordPlace(level=0, gate=0, task=0, step=1, operator=0, index=7)
    noted: list[Worker] = []
    monkeypatch.setattr(driver._workers, "dead", lambda batch: [Worker("host", 1, batch, place, alive=False)])
    monkeypatch.setattr(driver._crashes, "note", lambda dead: noted.extend(dead))
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.0,))
    driver._failure(RuntimeError(error), progressed=False)
    assert len(noted) == counted


OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5000,"conf":{"a":"b"}}\n{"next":400}\n-'


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Those of a checkpoint whose batch 7 is committed."""
    for log in ("offsets", "commits"):
        (tmp_path / "spark" / log).mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "7").write_text(OFFSETS)
    (tmp_path / "spark" / "commits" / "6").write_text('v1\n{"nextBatchWatermarkMs":3}')
    return Logs(tmp_path / "spark")


def test_a_closing_batch_has_the_offsets_of_the_last_one_at_another_time(logs: Logs, tmp_path: Path) -> None:
    assert logs.begin_after(7, 9_000) == 8
    before, after = (text.split("\n") for text in (OFFSETS, (tmp_path / "spark" / "offsets" / "8").read_text()))
    assert after == [before[0], before[1].replace("5000", "9000"), *before[2:]]
    logs.commit(8)
    for batch in (7, 8):  # a query that is stopped may leave out the commit of its last batch
        assert (tmp_path / "spark" / "commits" / str(batch)).read_text() == 'v1\n{"nextBatchWatermarkMs":3}'
    assert logs.begin_after(8, 4_000) == 9
    assert json.loads((tmp_path / "spark" / "offsets" / "9").read_text().split("\n")[1])["batchTimestampMs"] == 9_001


def test_a_batch_that_spark_has_begun_is_taken_as_it_is(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "spark" / "offsets" / "8").write_text("as Spark wrote it")
    assert logs.begin_after(7, 9_000) == 8
    assert (tmp_path / "spark" / "offsets" / "8").read_text() == "as Spark wrote it"


def test_the_first_commit_is_as_spark_writes_it(logs: Logs, tmp_path: Path) -> None:
    logs.commit(0)
    assert (tmp_path / "spark" / "commits" / "0").read_text() == COMMIT


def test_what_is_due_is_what_the_clocks_have_passed() -> None:
    assert Open(1, 0, 10, None).is_due(10, 0) and not Open(1, 0, 10, None).is_due(9, 99)
    assert Open(0, 1, None, 5).is_due(None, 5) and not Open(0, 1, None, 5).is_due(99, 4)
    assert not Open(0, 0, None, None) and Open(0, 1, None, 5)


@dataclass
class Time:
    """An operator whose watermark moves by one a batch until it is at 10, and whose timers are ``called`` in such a batch."""

    called: Callable[[int, Open], Open]
    watermark_now: int = 8
    open: Open = Open(1, 1, 10, None)  # noqa: RUF009  it is frozen
    ran: int = 0

    def watermark(self, _: str) -> int:
        return self.watermark_now

    def last_watermark(self, _: str) -> int:
        return 10

    def run(self, _: int) -> bool:
        self.ran += 1
        self.open = self.called(self.watermark_now, self.open)
        self.watermark_now = min(10, self.watermark_now + 1)
        return True


def closed(
    time: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped: Callable[[], bool] = lambda: False,
    spark_state: bool = False,
) -> Closed:
    kept: Any = None
    monkeypatch.setattr(closing, "waiting", lambda *_: time.open)
    monkeypatch.setattr(Logs, "begin_after", lambda self, after, at_ms: after + 1)
    monkeypatch.setattr(Logs, "commit", lambda self, batch: None)
    (tmp_path / "spark" / ("state" if spark_state else "sources")).mkdir(parents=True)
    checkpoint = Checkpoint(tmp_path)
    monkeypatch.setattr(checkpoint, "last_manifest", lambda: {"batch": 7})
    monkeypatch.setattr(checkpoint, "check_fence", lambda epoch: None)
    return closing.close(checkpoint, time, {"keep": kept}, time.run, 0, stopped)


def once_due(watermark: int, waiting: Open) -> Open:
    return Open(0, 0, None, None) if waiting.event is not None and waiting.event <= watermark else waiting


def test_time_is_advanced_batch_by_batch_until_nothing_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(once_due)
    assert closed(time, tmp_path, monkeypatch) == Closed({"keep": Open(0, 0, None, None)})
    assert time.ran == 3


def test_a_timer_that_never_comes_does_not_keep_a_run_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a key whose time to live is over and that no merge has let go yet."""
    time = Time(lambda _, waiting: waiting)
    assert closed(time, tmp_path, monkeypatch).open == {"keep": time.open}
    assert time.ran == 3


def test_timers_that_set_each_other_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(lambda _, waiting: Open(0, waiting.timers + 1, 1, None))
    monkeypatch.setattr(closing, "MAX_CLOSING_BATCHES", 20)
    closed(time, tmp_path, monkeypatch)
    assert time.ran == 20 and "timers of 'keep' are still due" in caplog.text


def test_time_stands_still_once_the_run_is_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(once_due)
    assert closed(time, tmp_path, monkeypatch, stopped=lambda: time.ran == 1) == Closed({"keep": time.open}, interrupted=True)
    assert time.ran == 1


def test_no_batch_is_added_where_spark_has_state_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(once_due)
    assert closed(time, tmp_path, monkeypatch, spark_state=True).open == {"keep": time.open}
    assert time.ran == 0 and "has state of Spark's own" in caplog.text
