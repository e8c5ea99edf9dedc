"""The data plane in micro-batches: starts the query, finds why it ended, and cleans up for the next query after a failure."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from springtide.control.ports import Control, Failure
from springtide.control.supervisor import Supervisor
from springtide.errors import RecordError, RunError, SpringtideError
from springtide.model.ending import Ended, Ending
from springtide.model.source import Position, SourceUnavailable
from springtide.model.topology import Topology
from springtide.once import Once
from springtide.policy.group import Grouping
from springtide.spark.driver import closing, clusters, sources
from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.closing import Closed, Open
from springtide.spark.driver.crashes import Crashes
from springtide.spark.driver.last_batch import LastBatch
from springtide.spark.driver.pipeline import Pipeline
from springtide.spark.driver.published import Unpublished
from springtide.spark.driver.sinks import Sinks
from springtide.spark.driver.stalls import Stalls
from springtide.spark.driver.streams import Streams
from springtide.spark.driver.workers import Workers
from springtide.spark.private import failures, jvm, pool, query
from springtide.spark.shared import program as programs
from springtide.spark.shared.hashing import routing_seed
from springtide.spark.state import presence
from springtide.spark.state.book import StateBook
from springtide.spark.state.declared import layouts_in
from springtide.spark.state.rehash import rehash

log = logging.getLogger("springtide.spark")

AVAILABLE_NOW = (
    # else a query ends after one batch, even a repeated one, if a source (such as ticks) does not support the trigger
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled",
    "spark.sql.streaming.noDataMicroBatches.enabled",  # else an aggregating DataFrame does not emit its last windows
)
"""Settings of Spark for a query that ends when it has read all available records."""
TERMINATION_S = 60
"""Wait this long for a query's thread to end. Spark reports a query as inactive before that, and may still record an error."""
STALL_AFTER_S = 60.0
"""Warn of a task that makes no progress for this long, unless the run sets another limit."""


@dataclass
class RunOutcome:
    """The results of a run on the driver."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    restarts: int = 0
    ended: Ended = Ended.STOPPED
    open: dict[str, Open] | None = None  # by operator, the open windows and timers; None unless all records were processed
    given_up: int | None = None  # the batch that was cancelled to end the run
    unpublished: int | None = None  # the committed batch that a sink does not have, as it could not be reached


class BatchPlane:
    """Runs a topology on Spark until it is stopped, ends by itself, or fails for good: see ``control.ports.DataPlane``."""

    def __init__(
        self, topology: Topology, checkpoint: Checkpoint, control: Control, groupings: Mapping[str, Grouping],
        new_session: Callable[[], SparkSession], stop: threading.Event, clock: Callable[[], float] = time.time,
        opened: Callable[[SparkSession], None] = lambda _: None, state: str | None = None,
        stall_after_s: float = STALL_AFTER_S,
    ) -> None:  # fmt: skip
        """``opened`` gets the session, and each new session after the death of a JVM. ``state``: the URI for state, None for
        its present location. ``stall_after_s``: when to warn of a task without progress."""
        self._topology, self._checkpoint, self._control = topology, checkpoint, control
        self._groupings, self._new_session, self._stop, self._clock = groupings, new_session, stop, clock
        self._opened = opened
        places, dead = programs.staging_of(topology, str(checkpoint.own), checkpoint.identity)
        self._layouts = layouts_in(checkpoint, topology, state)
        presence.check(checkpoint, self._layouts)
        self._workers = Workers(checkpoint.own / "workers")
        seed = routing_seed(checkpoint.secret())
        self._program = programs.compile_topology(
            topology, groupings, places, dead, self._layouts, seed=seed, workers=str(self._workers.root)
        )
        self._crashes = Crashes(self._program)
        self._stalls = Stalls(self._program, self._workers, stall_after_s, self._running, self._stages)
        self._last_batch = LastBatch(
            checkpoint, self._program, self._workers, self._stalls, stall_after_s, lambda: self._end_due() is not None
        )
        self._timed = {name: layout for name, layout in self._layouts.items() if any(layout.timers)}
        letters = programs.dead_letter_sink(topology, str(checkpoint.own))
        self._sinks = Sinks(
            topology,
            letters,
            {n: place for n, place in {**places, "": dead}.items() if place is not None},
            over=lambda: self._end_due() is not None,
        )
        self._streams = Streams(topology, checkpoint)
        self._session: SparkSession | None = None
        self._jvm_lock: Any = None
        self._runner: BatchRunner | None = None
        self._state: StateBook | None = None
        self._pipeline: Pipeline | None = None
        self._query: StreamingQuery | None = None
        self._frame: DataFrame | None = None  # the input of the query
        self._halt = threading.Event()  # once set, the query starts no further batch
        self._ends: Mapping[str, Position] = {}  # where the sources ended when a query for all available records began
        self._committed_before = 0  # records, by earlier runs
        self._confirming = False
        self._end: float | None = None  # deadline of the run, by time.monotonic
        self._left_open: dict[str, Open] | None = None

    def run(self, ending: Ending) -> RunOutcome:
        """Process records, also across failures, until the run is over."""
        self._end = None if ending.duration_s is None else time.monotonic() + ending.duration_s
        supervisor = Supervisor(self, self._stop)
        ended = supervisor.run(ending)
        if not ended.is_complete:
            self._raise_if_unfinished()
        self._log_end(ended)
        tables = {name: table for name in self._sinks.memory if (table := self._sinks.received(name)) is not None}
        unpublished = self._sinks.publications.unpublished
        return RunOutcome(tables, supervisor.restarts, ended, self._left_open, self._last_batch.given_up, unpublished)

    def carry(self, ending: Ending) -> Ended | None:
        """Run a query to its end; advance time to the last watermark if all is processed. None: another query has to follow."""
        before = self._batches
        try:
            return self._run_query(ending)
        except SpringtideError:
            raise
        except Exception as error:  # the supervisor decides whether to start another query
            raise self._failure(error, self._batches > before) from error

    def _run_query(self, ending: Ending) -> Ended | None:
        if self._session is None:
            self.open()
        unreachable = self._begin_sources(ending)
        if unreachable is not None:
            return unreachable
        try:
            query_ = self._start(ending)
        except Unpublished:
            return self._end_due() or Ended.STOPPED
        ended = self._watch(query_, ending)
        if ended is Ended.AVAILABLE and self._needs_confirmation():
            return None
        if ended.is_complete:
            self._left_open, interrupted = self._close()
            ended = (self._end_due() or Ended.STOPPED) if interrupted else ended
        self._flush()
        return ended

    def _flush(self) -> None:
        """Make all committed output visible. Spark may not have logged the last commit, if the query was stopped."""
        if self._runner is not None and self._runner.last_committed >= 0:
            self._checkpoint.logs.commit(self._runner.last_committed)
            self._runner.roll(round(self._clock() * 1e6), every=True)

    @property
    def _batches(self) -> int:
        return self._runner.batches if self._runner else 0

    def _running(self) -> int | None:
        return self._runner.running if self._runner else None

    def _stages(self) -> tuple[str, ...]:
        if self._session is None or self._query is None:
            return ()
        with contextlib.suppress(Exception):  # the JVM may have died; the supervisor detects that by itself
            return query.running_stages(self._session, str(self._query.runId))
        return ()

    # Beginning

    def open(self) -> None:
        """Start Spark."""
        self._streams.check()
        session = self._new_session()
        self._jvm_lock = jvm.hold_jvm_lock(session, self._checkpoint.jvm_lock)
        self._session = session
        self._committed_before = sum((self._checkpoint.last_manifest() or {}).get("sources", {}).values())
        self._opened(session)

    def _begin_sources(self, ending: Ending) -> Ended | None:
        """Wait until all sources can be reached. Returns a reason to end the run before."""
        waiting = Once()
        while True:
            try:
                self._streams.begin(at_once=ending.available_now)
                return None
            except SourceUnavailable as error:
                if waiting.begins():
                    log.warning("a source cannot be reached (%s); the run waits for it", error)
            ended = self._end_due()
            if ended is not None:
                return ended
            self._stop.wait(1.0)

    def _start(self, ending: Ending) -> StreamingQuery:
        """A query from the checkpoint, under a new epoch."""
        session = self._session
        assert session is not None
        self._halt = threading.Event()
        self._checkpoint.next_epoch()
        self._workers.begin(self._checkpoint.epoch)
        self._sinks.prepare(session, self._checkpoint)
        program = self._program.with_sinks(self._sinks.publications.in_tasks())
        rehash(self._checkpoint, self._layouts)
        done, failure = self._batches, self._runner.failure if self._runner else None
        self._pipeline = pipeline = Pipeline(session, program, self._checkpoint.epoch)
        pipeline.aside = self._crashes.document()
        last = self._checkpoint.last_manifest()
        catalogs = self._checkpoint.catalogs()
        self._state = StateBook(self._topology, self._layouts, self._checkpoint.epoch, last, pipeline.merge_state, catalogs)
        self._runner = BatchRunner(
            self._topology, session, self._checkpoint, pipeline, self._sinks, self._control, self._streams, self._halt,
            self._state,
        )  # fmt: skip
        self._runner.batches, self._runner.failure = done, failure
        ticking = self._ticking()
        if ending.available_now:
            for name in AVAILABLE_NOW:
                session.conf.set(name, "true")
        self._ends = self._streams.ends(self._last_committed) if ending.available_now else {}
        self._frame = sources.stream(session, self._topology, self._streams, ticking)
        if clusters.is_local(session):
            pool.fill(session)
        self._query = query.start_query(
            self._frame, self._topology.name, self._checkpoint.spark_location, self._runner, ending.available_now
        )
        started = self._query
        self._streams.follow(lambda: query.last_progress(started))
        return started

    def _ticking(self) -> bool:
        """Whether the query also runs batches without records, for timers. Spark's offset log then has one more source, so the
        first batch decides it."""
        timed = bool(self._timed)
        if self._checkpoint.begun() < 0:
            self._checkpoint.remember("ticks", {"ticks": timed})
        ticks = bool((self._checkpoint.recall("ticks") or {"ticks": False})["ticks"])
        if timed and not ticks:
            root = self._checkpoint.root
            log.warning("checkpoint %s was begun without timers: the new ones fire only in batches with records", root)
        return ticks

    # Watching

    def _watch(self, query_: StreamingQuery, ending: Ending) -> Ended:
        """Wait until the query ends, or end it between two batches; returns the reason."""
        while query_.isActive:
            ended = self._due(ending)
            if ended is not None:
                self._halt.set()
                return self._finish(query_, ended)
            self._stalls.look()
            self._streams.look()
            if self._runner is not None:
                self._runner.roll(round(self._clock() * 1e6))
            self._stop.wait(0.1)
        with contextlib.suppress(StreamingQueryException):  # it is raised below, with its cause
            query_.awaitTermination(TERMINATION_S)
        assert self._runner is not None
        if query_.exception() is not None:
            raise self._runner.fatal or RuntimeError(str(query_.exception()))
        if not (ending.available_now and query.found_nothing_new(query_)):
            raise RuntimeError(
                "Spark ended the query without an error before it had read everything: something stopped it. Spark does so"
                " itself when a copy of this checkpoint is started in the same application"
            )
        self._streams.check_read(self._ends, self._last_committed)
        return Ended.AVAILABLE

    def _due(self, ending: Ending) -> Ended | None:
        """The reason to end the run now; None if there is none."""
        ended = self._end_due()
        if ended is not None:
            return ended
        if ending.batches is not None and self._batches >= ending.batches:
            return Ended.BATCHES
        return Ended.EXHAUSTED if self._exhausted() else None

    def _end_due(self) -> Ended | None:
        """The reason to end the run now, even if records wait; None if there is none."""
        if self._stop.is_set():
            return Ended.STOPPED
        return Ended.DURATION if self._end is not None and time.monotonic() >= self._end else None

    def _exhausted(self) -> bool:
        return self._streams.are_exhausted(self._last_committed)

    @property
    def _last_committed(self) -> int:
        assert self._runner is not None
        return self._runner.last_committed

    def _needs_confirmation(self) -> bool:
        """Whether another query has to confirm that no records are available: once, if this run has read none and the number
        of arrived records is not known for every source."""
        assert self._runner is not None
        read = sum(self._runner.committed.values()) > self._committed_before
        if self._streams.are_all or self._confirming or read:
            return False
        self._confirming = True
        self._retire()
        return True

    # Ending

    def _finish(self, query_: StreamingQuery, ended: Ended) -> Ended:
        """Let the running batch end; the refusal of the next batch ends the query. Returns why the run ended: it is incomplete
        if the batch was given up."""
        runner = self._runner
        assert runner is not None
        patient = ended.is_complete  # a complete run has no deadline of its own
        if self._last_batch.outwait(runner, lambda: query_.isActive and not runner.is_idle(0.1), query_.stop, patient):
            query_.stop()
        elif patient:
            ended = self._end_due() or Ended.STOPPED
        if runner.fatal is not None:
            raise runner.fatal
        return ended

    def _close(self) -> Closed:
        """Advance time to the last watermark, unless the run has to end before."""
        if not self._timed or self._checkpoint.last_manifest() is None:
            return Closed({})
        assert self._state is not None
        now_us = round(self._clock() * 1e6)
        closed = closing.close(
            self._checkpoint, self._state, self._timed, self._run_without_records, now_us, lambda: self._end_due() is not None
        )
        return closed._replace(open={name: waiting for name, waiting in closed.open.items() if waiting})

    def _run_without_records(self, batch: int) -> bool:
        """Run a closing batch; False if it was given up."""
        assert self._runner is not None and self._frame is not None
        return closing.run(self._runner, self._frame, batch, self._last_batch)

    def _log_end(self, ended: Ended) -> None:
        log.info("the run ended: %s, after %d batches", ended, self._batches)
        none = self._runner is not None and not self._batches
        waiting = sum(backlog or 0 for backlog in self._streams.backlogs(self._last_committed).values()) if none else 0
        if waiting:
            log.warning("the run ended (%s) before its first batch; %s records wait", ended, f"{waiting:,}")
        for name, left_open in (self._left_open or {}).items():
            log.info(
                "operator %(name)r keeps %(windows)d windows and %(timers)d timers open, the first until %(first)s",
                {"name": name, **left_open.to_json()},
            )

    def _raise_if_unfinished(self) -> None:
        """Raise if the run ends while its query fails."""
        failure = self._runner.failure if self._runner else None
        if failure is not None and (self._timed or not self._exhausted()):  # with timers there is more than records to process
            raise RunError(f"the run ended while its query was failing: {failures.cause_of(failure)}") from failure

    # Failing

    def _failure(self, error: Exception, progressed: bool) -> Failure:
        """Clean up after a failed query and describe the failure. Raises if the failure ends the run for good."""
        self._retire()
        if self._runner is not None and self._runner.fatal is not None:
            raise self._runner.fatal
        if self._runner is not None:
            self._runner.failure = error
        broken, missing = failures.failed_record(error), failures.missing_module(error)
        if broken:
            raise RecordError(f"{broken}; nothing of the batch was committed") from error
        if (final := failures.final_error(error)) is not None:
            raise RunError(final) from error
        if missing:
            raise RunError(
                f"No module named {missing!r} on the executors; ship it with --py-files (py_files=), or install it there"
            ) from error
        alive = self._session is not None and jvm.is_alive(self._session)
        died = None
        if alive and failures.worker_died(error):  # if the JVM or an executor died, the workers' deaths incriminate no record
            died = self._crashes.note(self._workers.dead(self._runner.latest if self._runner else None))
        self._workers.kill()  # hanging workers of the old query
        if not alive:
            self._unlock()
            jvm.forget_dead_jvm()
            self._session = None
        mended = died is not None and self._crashes.set_aside() is not None
        if mended:
            log.warning("%s; that record goes to the dead letters, and the batch is processed again without it", died)
        return Failure(
            failures.cause_of(error, died), progressed=progressed, mended=mended, part="query" if alive else "JVM",
            way_out=self._crashes.remedy() if died else "",
        )  # fmt: skip

    def _retire(self) -> None:
        """End the old query for good."""
        if self._runner is None:
            return
        self._last_batch.retire(self._runner)
        with contextlib.suppress(Exception):  # the JVM may be dead, and the query with it
            if self._query is not None:
                self._query.stop()
        self._end_merges()

    def close(self, stop_session: bool = True) -> None:
        """Release the checkpoint and the sources, and end the session with ``stop_session``."""
        self._streams.close()
        self._sinks.publications.close()
        self._end_merges()
        self._workers.end()
        self._unlock()
        if not stop_session:
            return
        if self._session is not None and jvm.is_alive(self._session):
            self._session.stop()
        else:
            jvm.forget_dead_jvm()

    def _unlock(self) -> None:
        """Release the JVM's lock of the checkpoint: the JVM may outlive its context."""
        if self._jvm_lock is not None:
            with contextlib.suppress(Exception):  # a dead JVM has released the lock
                self._jvm_lock.close()
            self._jvm_lock = None

    def _end_merges(self) -> None:
        if self._state is not None and self._pipeline is not None:
            self._state.close()
            self._pipeline.cancel_merges()
