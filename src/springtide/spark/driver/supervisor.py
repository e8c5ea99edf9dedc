"""The driver of a run: starts the query, restarts it when it fails, and ends it between two batches."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from springtide.control.ports import Control
from springtide.errors import DamageError, RecordError, RunError, SpringtideError, TopologyError
from springtide.model.endpoints import GenerateSource
from springtide.model.plan import Plan
from springtide.model.topology import Topology
from springtide.policy.group import Grouping
from springtide.spark.driver import closing, clusters, sources
from springtide.spark.driver.batch import BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.closing import Closed, Open
from springtide.spark.driver.crashes import DIED, Crashes, where
from springtide.spark.driver.ending import Ended, Ending
from springtide.spark.driver.pipeline import Pipeline
from springtide.spark.driver.sinks import Sinks
from springtide.spark.driver.stalls import Stalls
from springtide.spark.driver.workers import Workers
from springtide.spark.private import internals, pool
from springtide.spark.shared import program as programs
from springtide.spark.shared.hashing import routing_seed
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state import presence
from springtide.spark.state.book import StateBook
from springtide.spark.state.declared import kept_in
from springtide.spark.state.rehash import rehash
from springtide.spark.task import generate
from springtide.spark.task.worker import BATCH_PROPERTY

log = logging.getLogger("springtide.spark")

GIVE_UP_AFTER = 3
"""Failures in a row, without a batch in between, after which a query is given up."""
BACKOFF_S = (1.0, 2.0, 4.0)
AVAILABLE_NOW = (
    # else a query with a source that does not know the trigger, as ticks do not, ends after one batch, even a repeated one
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled",
    "spark.sql.streaming.noDataMicroBatches.enabled",  # else a DataFrame that aggregates keeps windows that are over
)
"""What Spark has to be told of a query that ends with what is there."""
TERMINATION_S = 60
"""Wait this long for a query's thread to end. Spark calls a query inactive before that, and may still record an error."""
STALL_AFTER_S = 60.0
"""Warn of a task that makes no progress for this long, unless the run sets another limit."""
END_PATIENCE_S = 10.0
"""A batch that makes no progress for this long is given up when the run has to end. Ten seconds is a third of what Kubernetes
gives a process between SIGTERM and SIGKILL; a batch that is given up is processed again by the next start."""
CANCEL_S = 10.0
"""How long a cancelled batch may take to end; Spark interrupts its tasks within milliseconds."""
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""What a traceback ends with: any exception, with whatever name."""


@dataclass
class Outcome:
    """What is left on the driver after a run."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    restarts: int = 0
    ended: Ended = Ended.STOPPED
    open: dict[str, Open] | None = None  # by operator, what stays open; None unless all records were processed
    given_up: int | None = None  # the batch that was cancelled for the run to end


class SourceActuator:
    """Carries a plan's read limit and source width to generated sources, by a file that they read."""

    def __init__(self, checkpoint: Checkpoint, topology: Topology) -> None:
        self._sources = topology.sources
        self._file = checkpoint.source_control

    def apply(self, plan: Plan) -> None:
        share = None if plan.read_limit is None else max(1, plan.read_limit // len(self._sources))
        for source in self._sources:
            own = source.source.max_records if isinstance(source.source, GenerateSource) else None
            limit = min((most for most in (share, own) if most is not None), default=None)
            generate.Control(limit, plan.widths.get(source.name, 1)).write(self._file(source.name))


def check(topology: Topology) -> None:
    """Refuse what cannot run, and functions that cannot reach the workers, before Spark starts."""
    generate.ship_loaded_modules()
    for operator in topology:
        carried = operator.source.make if isinstance(operator.source, GenerateSource) else operator.function
        carried = operator.state.function if operator.state is not None else carried
        if carried is None:
            continue
        try:
            cloudpickle.dumps(carried)
        except Exception as error:  # noqa: BLE001  pickling runs user code, which may raise anything
            raise TopologyError(
                f"operator {operator.name!r}: its function cannot be sent to the workers ({type(error).__name__}: {error});"
                " keep connections, locks and open files out of it, or open them inside the function"
            ) from None


class Driver:
    """Runs a topology on Spark until it is told to stop, ends by itself, or fails for good."""

    def __init__(
        self, topology: Topology, checkpoint: Checkpoint, control: Control, groupings: Mapping[str, Grouping],
        new_session: Callable[[], SparkSession], stop: threading.Event, clock: Callable[[], float] = time.time,
        opened: Callable[[SparkSession], None] = lambda _: None, state: str | None = None,
        stall_after_s: float = STALL_AFTER_S,
    ) -> None:  # fmt: skip
        """``opened`` is told of the session, and of every one that follows it after its JVM died. ``state``: the URI where
        state shall lie, None for where it does. ``stall_after_s``: when to warn of a task without progress."""
        self._topology, self._checkpoint, self._control = topology, checkpoint, control
        self._groupings, self._new_session, self._stop, self._clock = groupings, new_session, stop, clock
        self._opened = opened
        places, dead = programs.staging_of(topology, str(checkpoint.own), checkpoint.identity)
        self._kept = kept_in(checkpoint, topology, state)
        presence.check(checkpoint, self._kept)
        self._workers = Workers(checkpoint.own / "workers")
        seed = routing_seed(checkpoint.secret())
        self._program = programs.compile_topology(
            topology, groupings, places, dead, self._kept, seed=seed, workers=str(self._workers.root)
        )
        self._crashes = Crashes(self._program)
        self._stalls = Stalls(self._program, self._workers, stall_after_s, self._running, self._stages)
        self._end_patience_s = min(END_PATIENCE_S, stall_after_s)
        self._timed = {name: kept for name, kept in self._kept.items() if any(kept.timers)}
        letters = programs.dead_letter_sink(topology, str(checkpoint.own))
        self._sinks = Sinks(topology, letters, {n: place for n, place in {**places, "": dead}.items() if place is not None})
        self._started: float | None = None  # when the schedule of generated sources did
        self._session: SparkSession | None = None
        self._jvm_lock: Any = None
        self._runner: BatchRunner | None = None
        self._state: StateBook | None = None
        self._pipeline: Pipeline | None = None
        self._query: StreamingQuery | None = None
        self._frame: DataFrame | None = None  # what the query reads
        self._halt = threading.Event()  # no batch of the query starts any more
        self._came: dict[str, int] = {}  # by generated source, the records that had come when the query began
        self._committed_before = 0  # records, by earlier runs
        self._confirming = False
        self._end: float | None = None  # when the run is to be over, by time.monotonic
        self._left_open: dict[str, Open] | None = None
        self.restarts = 0
        self._given_up: int | None = None

    def run(self, ending: Ending) -> Outcome:
        """Start, watch, and restart on failure; returns when the run is over."""
        self._end = None if ending.duration_s is None else time.monotonic() + ending.duration_s
        ended: Ended | None = None
        failures = 0
        while ended is None and not self._stop.is_set():
            before = self._batches
            try:
                ended = self._run_query(ending)
            except SpringtideError:
                raise
            except Exception as error:  # noqa: BLE001  whatever ended the query, the supervisor decides what follows
                failures = 1 if self._batches > before else failures + 1
                failures = self._recover(error, failures)
        ended = ended or Ended.STOPPED
        if not ended.is_complete:
            self._raise_if_unfinished()
        self._log_end(ended)
        tables = {name: table for name in self._sinks.memory if (table := self._sinks.received(name)) is not None}
        return Outcome(tables, self.restarts, ended, self._left_open, self._given_up)

    def _run_query(self, ending: Ending) -> Ended | None:
        """Run a query to its end, and bring time to the last watermark if all is processed. None: another one shall follow."""
        if self._session is None:
            self.open()
        ended = self._watch(self._start(ending), ending)
        if ended is Ended.AVAILABLE and self._looks_again():
            return None
        if not ended.is_complete:
            return ended
        self._left_open, interrupted = self._close()
        return (self._over() or Ended.STOPPED) if interrupted else ended

    @property
    def _batches(self) -> int:
        return self._runner.batches if self._runner else 0

    def _running(self) -> int | None:
        return self._runner.running if self._runner else None

    def _stages(self) -> tuple[str, ...]:
        if self._session is None or self._query is None:
            return ()
        with contextlib.suppress(Exception):  # the JVM may have died, which the supervisor finds out by itself
            return internals.running_stages(self._session, str(self._query.runId))
        return ()

    def open(self) -> None:
        """Start Spark."""
        session = self._new_session()
        self._jvm_lock = internals.hold_jvm_lock(session, self._checkpoint.jvm_lock)
        self._session = session
        self._check_schedule()
        self._committed_before = sum((self._checkpoint.last_manifest() or {}).get("sources", {}).values())
        self._opened(session)

    def close(self, stop_session: bool) -> None:
        """Let go of the checkpoint, and of the session if it is ours."""
        self._end_merges()
        self._workers.end()
        self._unlock()
        if not stop_session:
            return
        if self._session is not None and internals.is_alive(self._session):
            self._session.stop()
        else:
            internals.forget_dead_jvm()

    def _unlock(self) -> None:
        """Have the JVM let go of the checkpoint: it may live on though its context has stopped."""
        if self._jvm_lock is not None:
            with contextlib.suppress(Exception):  # it may be dead, and then holds nothing
                self._jvm_lock.close()
            self._jvm_lock = None

    def _start(self, ending: Ending) -> StreamingQuery:
        """A query from the checkpoint, under a new epoch."""
        session = self._session
        assert session is not None
        self._halt = threading.Event()
        self._checkpoint.next_epoch()
        self._workers.begin(self._checkpoint.epoch)
        self._sinks.prepare(session, self._checkpoint)
        rehash(self._checkpoint, self._kept)
        done, failure = self._batches, self._runner.failure if self._runner else None
        self._pipeline = pipeline = Pipeline(session, self._program, self._checkpoint.epoch)
        pipeline.aside = self._crashes.document()
        last = self._checkpoint.last_manifest()
        catalogs = self._checkpoint.catalogs()
        self._state = StateBook(self._topology, self._kept, self._checkpoint.epoch, last, pipeline.merge_state, catalogs)
        self._runner = BatchRunner(
            self._topology, session, self._checkpoint, pipeline, self._sinks, self._control, self._backlog, self._halt,
            self._state,
        )  # fmt: skip
        self._runner.batches, self._runner.failure = done, failure
        ticking = self._ticking()
        if ending.available_now:
            for name in AVAILABLE_NOW:
                session.conf.set(name, "true")
        if ending.available_now or not self._generated:
            self._start_schedule()
        self._came = self._scheduled()
        self._frame = sources.stream(
            session, self._topology, self._checkpoint.schedule, self._checkpoint.source_control, ticking
        )  # fmt: skip
        if clusters.is_local(session):
            pool.fill(session)
        self._query = internals.start_query(
            self._frame, self._topology.name, self._checkpoint.spark_location, self._runner, ending.available_now
        )
        return self._query

    def _ticking(self) -> bool:
        """Whether there are batches without records too: timers come when nothing else does. Spark's log of offsets has one
        more source then, from its first batch on."""
        timed = bool(self._timed)
        if self._checkpoint.begun() < 0:
            self._checkpoint.remember("ticks", {"ticks": timed})
        ticks = bool((self._checkpoint.recall("ticks") or {"ticks": False})["ticks"])
        if timed and not ticks:
            root = self._checkpoint.root
            log.warning("checkpoint %s was begun without timers: those that there are now come with records only", root)
        return ticks

    def _watch(self, query: StreamingQuery, ending: Ending) -> Ended:
        """Wait until the query ends, or end it between two batches; says why it ended."""
        while query.isActive:
            ended = self._due(ending)
            if ended is not None:
                self._halt.set()
                return self._finish(query, ended)
            self._stalls.look()
            self._stop.wait(0.1)
        with contextlib.suppress(StreamingQueryException):  # it is raised below, with its cause
            query.awaitTermination(TERMINATION_S)
        if query.exception() is not None:
            self._raise(query)
        if not (ending.available_now and internals.found_nothing_new(query)):
            raise RuntimeError(
                "Spark ended the query without an error before it had read everything: something stopped it. Spark does so"
                " itself when a copy of this checkpoint is started in the same application"
            )
        self._check_committed()
        return Ended.AVAILABLE

    def _due(self, ending: Ending) -> Ended | None:
        """Why the run is to end now, if it is."""
        over = self._over()
        if over is not None:
            return over
        if ending.batches is not None and self._batches >= ending.batches:
            return Ended.BATCHES
        return Ended.EXHAUSTED if self._exhausted() else None

    def _over(self) -> Ended | None:
        """Why the run is to end now, whatever waits; None while it is not."""
        if self._stop.is_set():
            return Ended.STOPPED
        return Ended.DURATION if self._end is not None and time.monotonic() >= self._end else None

    def _check_committed(self) -> None:
        """Fail if records of a generated source wait that had come when the query began."""
        assert self._runner is not None
        for name, came in self._came.items():
            committed = self._runner.committed.get(name, 0)
            if committed < came:
                raise RuntimeError(
                    f"the query ended as if it had read all, but of source {name!r} {committed:,} records are committed, and"
                    f" {came:,} had come when it began"
                )

    def _looks_again(self) -> bool:
        """Whether another query shall confirm that nothing is there: once, if the run has read no record, and a source does not
        tell by itself how many there are."""
        assert self._runner is not None
        counted = all(isinstance(source.source, GenerateSource) for source in self._topology.sources)
        if counted or self._confirming or sum(self._runner.committed.values()) > self._committed_before:
            return False
        self._confirming = True
        self._retire()
        return True

    def _close(self) -> Closed:
        """Bring time to the last watermark, unless the run is to end before."""
        if not self._timed or self._checkpoint.last_manifest() is None:
            return Closed({})
        assert self._state is not None
        now_us = round(self._clock() * 1e6)
        closed = closing.close(
            self._checkpoint, self._state, self._timed, self._run_without_records, now_us, lambda: self._over() is not None
        )
        return closed._replace(open={name: one for name, one in closed.open.items() if one})

    def _run_without_records(self, batch: int) -> bool:
        """Run a closing batch; False if it was given up.

        It runs in a thread of its own: this one watches it, as timers may hang, and has local properties of the caller's.
        """
        runner, frame = self._runner, self._frame
        assert runner is not None and frame is not None
        context, ended, failures = frame.sparkSession.sparkContext, threading.Event(), list[BaseException]()
        tag = f"springtide-closing-{uuid.uuid4().hex[:8]}"

        def close() -> None:
            try:
                context.addJobTag(tag)
                context.setLocalProperty(BATCH_PROPERTY, str(batch))
                runner.close(internals.empty_like(frame), batch)
            except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits
                failures.append(error)
            finally:
                ended.set()

        threading.Thread(target=close, name="springtide-closing", daemon=True).start()
        if not self._outwait(lambda: not ended.wait(0.1), lambda: context.cancelJobsWithTag(tag), patient=True):
            return False
        if failures:
            raise failures[0]
        return True

    def _log_end(self, ended: Ended) -> None:
        waiting = self._backlog(self._runner.committed) if self._runner else None
        log.info("the run ended: %s, after %d batches", ended, self._batches)
        if waiting and not self._batches:
            log.warning("the run ended (%s) before its first batch; %s records wait", ended, f"{waiting:,}")
        for name, one in (self._left_open or {}).items():
            told = one.to_json()
            log.info(
                "operator %r keeps %d windows and %d timers open, the first until %s",
                name, told["windows"], told["timers"], told["first"],
            )  # fmt: skip

    def _finish(self, query: StreamingQuery, ended: Ended) -> Ended:
        """The running batch goes to its end; the next one is refused, and that ends the query. Says why the run ended: a batch
        that was given up leaves it incomplete."""
        runner = self._runner
        assert runner is not None
        patient = ended.is_complete  # nobody waits for the end of such a run, unless it is to be over as well
        if self._outwait(lambda: query.isActive and not runner.is_idle(0.1), query.stop, patient):
            query.stop()
        elif patient:
            ended = self._over() or Ended.STOPPED
        if runner.fatal is not None:
            raise runner.fatal
        return ended

    def _outwait(self, is_running: Callable[[], bool], cancel: Callable[[], object], patient: bool) -> bool:
        """Wait for the running batch; once the run is to be over, as long as the batch makes progress, and then cancel it.
        Returns whether it came to its end. ``patient``: the run is not to be over yet."""
        told = None if patient else time.monotonic()
        while is_running():
            self._stalls.look()
            told = told or (time.monotonic() if self._over() else None)
            if told is not None and min(self._stalls.still_s, time.monotonic() - told) >= self._end_patience_s:
                self._give_up(cancel)
                return False
        return True

    def _give_up(self, cancel: Callable[[], object]) -> None:
        """Cancel the running batch, and end the workers that do not notice it."""
        runner = self._runner
        assert runner is not None
        batch, done = runner.running, runner.batches
        runner.given_up = True
        cancelling = threading.Thread(target=_suppressed, args=(cancel,), name="springtide-stop", daemon=True)
        cancelling.start()
        cancelling.join(CANCEL_S)  # it waits for the batch
        killed = self._workers.kill()
        if not runner.is_idle(0.0):  # a sink's or a sql operator's function hangs in this process, where nothing can end it
            self._checkpoint.next_epoch()  # so that it cannot commit any more
        if batch is None or runner.batches > done:
            return
        self._given_up, runner.failure = batch, None  # it hangs, and whatever failed before it got there has been logged
        ended = "".join(f"; ended process {w.pid} {where(self._program, w.batch, w.place)}" for w in killed)
        log.warning(
            "batch %d made no progress for %.0f s and was given up, so that the run can end%s. Nothing of it is committed; the"
            " next start processes it again", batch, self._end_patience_s, ended,
        )  # fmt: skip

    def _raise_if_unfinished(self) -> None:
        """A run that ends while its query fails is no success."""
        failure = self._runner.failure if self._runner else None
        if failure is not None and (self._timed or not self._exhausted()):  # with timers, more than records is to be processed
            raise RunError(f"the run ended while its query was failing: {cause_of(failure)}") from failure

    def _raise(self, query: StreamingQuery) -> None:
        assert self._runner is not None
        if self._runner.fatal is not None:
            raise self._runner.fatal
        raise RuntimeError(str(query.exception()))

    def _recover(self, error: Exception, failures: int) -> int:
        """Back off, and let go of the session if its JVM died. Returns the failures to count on from: none, if the record
        that caused them is put aside."""
        self._retire()
        if self._runner is not None and self._runner.fatal is not None:
            raise self._runner.fatal
        if self._runner is not None:
            self._runner.failure = error
        broken = re.search(r"springtide\.errors\.RecordError: (.+)", str(error))
        if broken:  # a generator fails on the same record every time
            raise RecordError(f"{broken[1]}; nothing of the batch was committed") from error
        missing = re.search(r"No module named '([\w.]+)'", str(error))
        if missing:
            raise RunError(
                f"No module named {missing[1]!r} on the executors; ship it with --py-files (py_files=), or install it there"
            ) from error
        alive = self._session is not None and internals.is_alive(self._session)
        died = None
        if alive and DIED in str(error):  # workers that went with their JVM, or with an executor, say nothing of a record
            died = self._crashes.note(self._workers.dead(self._runner.latest if self._runner else None))
        self._workers.kill()  # those of the old query that hang, which no task waits for any more
        if died is not None and self._crashes.put_aside():
            log.warning("%s; that record goes to the dead letters, and the batch is processed again without it", died)
            failures = 0
        else:
            cause = cause_of(error, died)
            if failures > GIVE_UP_AFTER:
                way_out = f"; {self._crashes.way_out()}" if died else ""
                raise RunError(f"the query failed {failures} times in a row, the last time with {cause}{way_out}") from error
            wait = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
            log.warning("the %s failed (%s); starting again in %.0f s", "query" if alive else "JVM", cause, wait)
            self._stop.wait(wait)
        self.restarts += 1
        if not alive:
            self._unlock()
            internals.forget_dead_jvm()
            self._session = None
        return failures

    def _retire(self) -> None:
        """End the old query for good: a batch of it that still ran would commit what the next epoch sweeps away."""
        if self._runner is None:
            return
        self._runner.retire()
        told = None
        while not self._runner.is_idle(1.0):  # also when the JVM died: its batch may be in a commit
            told = told or (time.monotonic() if self._over() else None)
            if told is not None and time.monotonic() - told > self._end_patience_s:
                self._checkpoint.next_epoch()  # it hangs, and the run has to end; so that it cannot commit any more
                break
        with contextlib.suppress(Exception):  # the JVM may be dead, and the query with it
            if self._query is not None:
                self._query.stop()
        self._end_merges()

    def _end_merges(self) -> None:
        if self._state is not None and self._pipeline is not None:
            self._state.close()
            self._pipeline.cancel_merges()

    def _check_schedule(self) -> None:
        """Refuse batches without a schedule: a new one would hold records back for as long as the checkpoint is old."""
        source = next(iter(self._generated), None)
        if source is not None and self._schedule_start() is None and self._checkpoint.begun() >= 0:
            raise DamageError(
                self._checkpoint.schedule,
                f"is gone, which says when the schedule of source {source!r} began, but the checkpoint has batches",
                ways_out(PUT_BACK, ANEW),
            )

    def _start_schedule(self) -> None:
        """Start it now, if it has not started: a run that is to process what is there now has nothing to wait for."""
        if self._schedule_start() is None:
            self._checkpoint.remember("schedule", {"started": self._clock()})

    def _schedule_start(self) -> float | None:
        """When the schedule of generated sources started, for ever; None before the first batch of this checkpoint."""
        if self._started is None and (stored := self._checkpoint.recall("schedule")) is not None:
            self._started = float(stored["started"])
        return self._started

    @property
    def _generated(self) -> dict[str, GenerateSource]:
        return {one.name: one.source for one in self._topology.sources if isinstance(one.source, GenerateSource)}

    def _scheduled(self) -> dict[str, int]:
        """By generated source, how many records have come."""
        started = self._schedule_start()
        elapsed_s = 0.0 if started is None else self._clock() - started
        return {name: generate.scheduled(source, elapsed_s) for name, source in self._generated.items()}

    def _backlog(self, committed: Mapping[str, int]) -> int | None:
        """Records that came and are not committed; None where a source cannot tell."""
        came = self._scheduled()
        if len(came) < len(self._topology.sources):
            return None
        return max(0, sum(count - committed.get(name, 0) for name, count in came.items()))

    def _exhausted(self) -> bool:
        """Whether every source was generated to its end and all of it is committed."""
        assert self._runner is not None
        for source in self._topology.sources:
            total = total_of(source.source)
            if total is None or self._runner.committed.get(source.name, 0) < total:
                return False
        return True


def total_of(source: Any) -> int | None:
    """How many records a source will ever bring; None when that is not known."""
    if not isinstance(source, GenerateSource):
        return None
    known = [total for total in (source.limit, source.rate.total) if total is not None]
    return min(known, default=None)


def _suppressed(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the JVM may be dead, and the query with it
        call()


def cause_of(error: Exception, died: str | None = None) -> str:
    """The line that tells most of Spark's long messages: what a Python worker raised, or the last one that names an error.
    ``died``: what is known of workers that died meanwhile, which may be the cause."""
    before, _, worker = str(error).rpartition("PythonException: ")
    raised = _RAISED.findall(worker) if before else []
    if raised:
        return str(raised[-1][:500])  # of a chain, the last is what the others led to
    if died is not None:
        return died
    if DIED in str(error):
        return "the death of a Python worker outside of the operators, or on a node that cannot write to the checkpoint"
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]  # Py4J puts a colon before the error
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (named or [line for line in lines if line] or [type(error).__name__])[-1 if named else 0][:500]
