"""Sinks outside the file system: staged by tasks, published after the commit, exactly once, and waited for while away."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from springtide.errors import CheckpointError
from springtide.model.publisher import Guarantee, Mark
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

from spark.driver.sqlite_sink import SqliteSink
from springtide.spark.driver.manifests import Manifests
from springtide.spark.driver.published import Expected, Publications, disagreement

LIMIT = 2_000
BAD = 7


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(-1 - draw.index if draw.index < BAD else draw.index)


WANTED = list(range(BAD, LIMIT))


@dataclass
class Job:
    """A topology that can be started again and again."""

    root: Path
    spark: Any
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    trouble: tuple[int, int, str] = (-1, -1, "")

    @property
    def sink(self) -> SqliteSink:
        return SqliteSink(self.root / "out.db", self.guarantee, self.trouble)

    def topology(self) -> Topology:
        source = st.source.generate(number, rate=1e6, limit=LIMIT, max_records=500)
        return source.to(self.sink, name="out", grouping="round-robin").named("numbers")

    def run(self, **options: Any) -> st.Result:
        return st.run(
            self.topology(), spark=self.spark, checkpoint=self.root / "checkpoint", runs=self.root / "runs", max_slots=3,
            policy="static", settings={"degree": 3}, **options,
        )  # fmt: skip

    def staged(self) -> list[Path]:
        return sorted((self.root / "checkpoint" / "springtide" / "staged" / "out").rglob("*.parquet"))

    def letters(self) -> list[dict[str, Any]]:
        files = (self.root / "checkpoint" / "springtide" / "dead").glob("*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def job(spark: Any, tmp_path: Path) -> Job:
    return Job(tmp_path, spark)


def dies(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, when: Callable[[], bool], after: bool = False) -> None:
    """The query fails at this place, once, as at a crash, whose next start is that of the supervisor."""
    original, struck = getattr(place, name), []

    def wrapped(*args: Any, **named: Any) -> Any:
        if not after and not struck and when():
            struck.append(1)
            raise RuntimeError("struck")
        result = original(*args, **named)
        if after and not struck and when():
            struck.append(1)
            raise RuntimeError("struck")
        return result

    monkeypatch.setattr(place, name, wrapped)


def test_records_are_published_once_and_refused_ones_are_dead_letters(job: Job) -> None:
    result = job.run()
    assert job.sink.rows() == WANTED
    assert result.summary["rows_failed"] == BAD and result.summary["rows_out"] == len(WANTED)
    assert sorted(json.loads(letter["record"])["n"] for letter in job.letters()) == list(range(-BAD, 0))
    assert {letter["operator"] for letter in job.letters()} == {"out"}
    assert result.summary["unpublished_batch"] is None


@pytest.mark.parametrize("step", ["after the commit", "between two parts", "after the publication"])
def test_a_crash_at_any_step_of_a_publication_neither_loses_nor_repeats(
    step: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    second = lambda: len(calls) > 1 or bool(calls.append(1))  # noqa: E731
    if step == "after the commit":
        dies(monkeypatch, Publications, "publish", second)
    elif step == "between two parts":
        job.trouble = (1, 1, "error")
    else:
        dies(monkeypatch, Publications, "publish", second, after=True)
    result = job.run()
    assert result.summary["restarts"] == 1
    assert job.sink.rows() == WANTED


def test_a_run_waits_for_a_sink_that_is_away_and_says_so_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.sink.away.touch()
    threading.Timer(6.0, job.sink.away.unlink).start()
    with caplog.at_level(logging.WARNING, "springtide.spark"):
        job.run()
    said = [record.getMessage() for record in caplog.records if "sink 'out'" in record.getMessage()]
    assert said == [
        "sink 'out' cannot be reached (the database is away); the run waits for it, nothing is lost",
        "sink 'out' can be reached again",
    ]
    assert job.sink.rows() == WANTED


@pytest.mark.parametrize("ending", ["duration", "stopped"])
def test_a_run_that_waits_for_a_sink_ends_in_time_and_the_next_publishes_the_rest(ending: str, job: Job) -> None:
    job.trouble, stop = (1, 1, "away"), threading.Event()
    if ending == "stopped":
        threading.Thread(target=lambda: (_until(job.sink.away.exists), stop.set()), daemon=True).start()
    begin = time.monotonic()
    result = job.run(stop=stop, **({"duration": 10} if ending == "duration" else {}))
    assert time.monotonic() - begin < 10 + 20
    assert result.summary["ended"] == ending and result.summary["unpublished_batch"] == 1
    assert result.summary["given_up_batch"] is None
    assert 0 < len(job.sink.rows()) < len(WANTED)
    job.sink.away.unlink()
    job.run()
    assert job.sink.rows() == WANTED


def _until(there: Callable[[], bool]) -> None:
    while not there():
        time.sleep(0.05)


def test_a_damaged_part_is_computed_again(job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    original, struck = Manifests.add, []

    def add(self: Manifests, manifest: Any) -> None:
        original(self, manifest)
        if manifest["batch"] == 1 and not struck:
            struck.append(1)
            job.staged()[-1].write_bytes(b"x")

    monkeypatch.setattr(Manifests, "add", add)
    job.run()
    assert job.sink.rows() == WANTED
    assert "computed again" in caplog.text and "bytes, not" in caplog.text


def test_at_least_once_publishes_the_last_batch_again_and_loses_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.guarantee = Guarantee.AT_LEAST_ONCE
    calls: list[int] = []
    dies(monkeypatch, Publications, "publish", lambda: len(calls) > 1 or bool(calls.append(1)), after=True)
    job.run()
    rows = job.sink.rows()
    assert sorted(set(rows)) == WANTED and len(rows) > len(WANTED)


def test_a_sink_that_is_ahead_of_its_checkpoint_is_refused(job: Job) -> None:
    job.run(batches=2)
    import sqlite3

    with sqlite3.connect(job.sink.file) as database:
        database.execute("UPDATE mark SET batch = 99")
    with pytest.raises(
        CheckpointError, match=r"is at batch 99, but the last batch of the checkpoint is .: the checkpoint is older"
    ):
        job.run()


@pytest.mark.parametrize(
    ("mark", "expected", "wrong"),
    [
        (None, Expected(-1, True, -1, -1, None), None),
        (Mark(-1), Expected(-1, True, -1, -1, None), None),
        (None, Expected(4, True, 4, 3, None), None),  # Spark logged the commit: the batch is published
        (None, Expected(4, False, 4, 3, None), "is gone"),
        (None, Expected(4, False, 3, 3, None), None),  # the last batch has no output for the sink
        (Mark(3), Expected(4, False, 4, 3, None), None),
        (Mark(4, False), Expected(4, False, 4, 3, None), None),
        (Mark(4), Expected(4, False, 4, 3, None), None),
        (Mark(3, False), Expected(4, False, 4, 3, None), "is at a part of batch 3"),
        (Mark(2), Expected(4, False, 4, 3, None), "the sink lost output"),
        (Mark(2), Expected(4, False, 4, None, None), None),
        (Mark(3), Expected(4, True, 4, 3, None), "the sink lost output"),
        (Mark(4, False), Expected(4, True, 4, 3, None), "the sink lost output"),
        (Mark(5), Expected(4, True, 4, 3, None), "the checkpoint is older"),
        (Mark(5), Expected(4, True, 4, 3, 5), None),  # the commit of 5 was taken back
        (Mark(6), Expected(4, True, 4, 3, 5), "the checkpoint is older"),
    ],
)
def test_a_mark_has_to_fit_the_checkpoint(mark: Mark | None, expected: Expected, wrong: str | None) -> None:
    found = disagreement(mark, expected)
    assert (found is None) == (wrong is None), found
    assert wrong is None or wrong in (found or "")
