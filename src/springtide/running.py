"""``springtide.run``: a topology, a policy, a checkpoint and a run folder, put together."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import pyarrow as pa

from springtide.control.decider import Decider, InThread
from springtide.control.executors import Executors
from springtide.control.fleet import Limits
from springtide.control.intake import Intake
from springtide.control.loop import ControlLoop
from springtide.control.monitor import Monitor
from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plane.spec import Spec, make
from springtide.control.planner import SlotLimit
from springtide.control.plans import Goals, Plans, World
from springtide.control.routing import Routing
from springtide.control.sharding import Sharding
from springtide.control.switch import FILE, FileSwitch, Mode
from springtide.errors import OptionError, RunError, SetupError, SpringtideError, TopologyError, nearest
from springtide.model.duration import seconds
from springtide.model.ending import Ending
from springtide.model.endpoints import GenerateSource
from springtide.model.report import BatchReport
from springtide.model.snapshot import Snapshot
from springtide.model.topology import AUTO, Kind, Topology
from springtide.policy import registry
from springtide.policy.batch.read_limit import ReadLimit, floor_s
from springtide.policy.batch.shedding import Shedding
from springtide.policy.chosen import named, refuse_simulated
from springtide.policy.group import Grouping
from springtide.policy.scale import ScalePolicy
from springtide.policy.shard import Sharder
from springtide.policy.trial import fault_of
from springtide.record.folder import RunFolder
from springtide.record.plots import draw
from springtide.record.summary import Totals
from springtide.record.trace import Trace

log = logging.getLogger("springtide")

LEAST_FLOOR_S = 0.05
"""No batch of Spark's was ever seen to take less; the floor of a topology is measured as it runs."""

EXECUTORS = ("elastic", "fixed", "spark")

Watch = Callable[[Snapshot, float], None]
"""Told of every snapshot, with the seconds since the start; for views."""


@dataclass(frozen=True)
class Result:
    """What a run left: its summary (as ``springtide run --json`` prints it), its folder, and what memory sinks kept."""

    summary: Mapping[str, Any]
    folder: Path
    plots: tuple[Path, ...] = ()
    _tables: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)

    def table(self, name: str) -> pa.Table:
        """What the memory sink of that name received."""
        if name not in self._tables:
            raise OptionError(f"no memory sink {name!r} received anything; {nearest(name, self._tables)}")
        return self._tables[name]


def run(
    topology: Topology, *, policy: str = "tide", settings: Mapping[str, object] | None = None,
    grouping: str = "tide", grouping_settings: Mapping[str, object] | None = None, target: str | float | None = None,
    max_slots: int = 8, trigger: str | float = 0.0, interval: str | float = 1.0,
    checkpoint: str | os.PathLike[str] | None = None, runs: str | os.PathLike[str] = "runs",
    duration: str | float | None = None, batches: int | None = None, available_now: bool = False,
    master: str | None = None, conf: Mapping[str, str] | None = None, py_files: Sequence[str] = (),
    archives: Sequence[str] = (), spark: object = None, seed: int = 0, watch: Watch | None = None,
    stop: threading.Event | None = None, guards: Sequence[str] = (), dry_run: bool = False,
    shed_after: str | float | None = None, queue_limit: int | None = None,
    executors: str | None = None, min_executors: int = 1, grant: str | None = None, managers: str = "",
    sharding: str | Sharder = "balance", state: str | None = None, stall_after: str | float = 60.0,
) -> Result:  # fmt: skip
    """Run a topology on Spark until it ends, ``duration`` or ``batches`` are over, or SIGTERM or Ctrl-C come.

    ``policy`` with its ``settings`` grants degrees, every ``interval``; ``grouping`` serves operators that leave it open, and
    ``grouping_settings`` hold wherever it is chosen;
    ``target`` is the latency that batches are sized for; ``trigger`` the least time between batches; ``checkpoint`` is
    where a later run goes on (default: in the run's folder). ``guards`` stand between the policy and the plan; a ``dry_run``
    records what the policy would do, and does nothing. ``shed_after`` and ``queue_limit`` leave out records that are older than
    that when their batch starts, and the oldest when more than so many wait; they are counted as ``rows_shed``.
    ``executors`` of a cluster are ``elastic``: asked for and released as slots are granted, ``min_executors`` at least;
    ``fixed``; or left to ``spark``'s own dynamic allocation. The default is elastic, but fixed for a session that is handed in.
    ``grant``: hierarchical control, in which every operator has a manager of its own that asks the policy, and this policy,
    such as ``token-bucket``, says which requests are granted; ``managers``: their times, such as ``operators=10s, settle=30s``.
    ``sharding``: which task has a shard of a stateful operator: ``balance``, such as ``balance:theta=1.1``, or ``fixed``.
    ``state``: where the state of stateful operators lies, for ever: a URI such as ``s3://bucket/folder`` (default: in the
    checkpoint). ``stall_after``: a task that has made no progress for this long is warned of, with its operator and record.
    Everything that can be wrong is checked before Spark starts.
    """
    if not isinstance(topology, Topology):
        raise TopologyError(
            f"run({topology!r}): that is {type(topology).__name__}, not a topology; end it with .to(sink).named(...)"
        )
    target_s = None if target is None else seconds(target, "target")
    trigger_s, interval_s = seconds(trigger, "trigger"), seconds(interval, "interval")
    if interval_s <= 0:
        raise OptionError(f"interval={interval!r} is not allowed; it is above 0")
    refuse_simulated(policy)
    names = tuple(operator.name for operator in topology.scalable)
    spec = Spec(policy, settings or {}, tuple(guards), names, seed, grant, managers)
    scaler = make(spec)
    groupings = _groupings(topology, grouping, grouping_settings or {})
    shedding = _shedding(topology, shed_after, queue_limit)
    stall_after_s = seconds(stall_after, "stall_after")
    if stall_after_s <= 0:
        raise OptionError(f"stall_after={stall_after!r}: give a duration above 0, such as 60s")
    ending_s = None if duration is None else seconds(duration, "duration")
    bounds = SlotLimit(max_slots)
    sharder = named("shard", sharding) if isinstance(sharding, str) else sharding
    dynamic = _check_executors(executors, min_executors, max_slots)
    _need_spark()
    from springtide.spark.driver import checks, clusters, room
    from springtide.spark.driver import session as sessions
    from springtide.spark.driver.arrivals import SourceActuator
    from springtide.spark.driver.checkpoint import Checkpoint
    from springtide.spark.driver.plane import BatchPlane
    from springtide.spark.shared.hashing import hashing_mark, routing_seed
    from springtide.spark.state import store

    checks.check(topology)
    if spark is not None:
        sessions.check(spark, dynamic)
    else:
        sessions.check_settings(conf or {}, (*py_files, *archives), dynamic)
    _check_target(target_s, None)
    if state is not None:
        state = store.checked(state)
        if not topology.stateful:
            raise OptionError(f"state={state!r}: topology {topology.name!r} has no stateful operator; leave it out")
        store.check_writable(state)
    room.check(room.needs(topology, None if checkpoint is None else Path(checkpoint), Path(runs)))
    held = Checkpoint(Path(checkpoint)) if checkpoint is not None else None
    if held is not None:
        held.acquire(topology)
    try:
        _check_target(target_s, held.recall("floor") if held else None)
        folder = RunFolder.create(Path(runs), topology.name, time.time())
    except BaseException:
        if held is not None:
            held.release()
        raise
    if held is None:
        held = Checkpoint(folder.path / "checkpoint")
        held.acquire(topology)
    stop = stop or threading.Event()
    totals, trace = Totals(topology, grouping, target_s), Trace()
    journal = _Journal(folder, totals, trace)
    switch = FileSwitch(folder.path / FILE, Mode.DRY_RUN if dry_run else Mode.ON)
    decider = Decider(
        RemotePolicy(spec, Patience.of(interval_s)) if spec.movable else InThread(scaler.policy), record=journal.decision,
        clock=time.monotonic, seed=seed, state=scaler.state or _recalled(held, scaler.policy, names), switch=switch,
        save=lambda state: held.remember("policy", {"policy": repr(scaler.policy), "state": state}),
    )  # fmt: skip
    try:
        hashing = hashing_mark(routing_seed(held.secret()))
        routing = Routing(topology, groupings, held.editions, hashing=hashing)
        managed = Executors(time.monotonic, journal.decision, None if grant is None else named("grant", grant))
        plans = Plans(
            topology, Goals(bounds, target_s, trigger_s, interval_s), decider,
            World(Monitor(topology), journal, managed, [SourceActuator(held, topology)]),
            intake=Intake(ReadLimit(target_s) if target_s is not None else None, shedding, trigger_s), routing=routing,
            sharding=Sharding(topology, sharder),
        )  # fmt: skip
        loop = ControlLoop(plans, decider, time.monotonic, interval_s)

        def new_session() -> Any:
            if spark is not None:
                return sessions.adopt(spark, dynamic)
            return sessions.create(
                master or sessions.local_master(max_slots), f"springtide-{topology.name}", dynamic=dynamic,
                conf=conf, py_files=py_files, archives=archives, log=folder.path / "spark.log",
            )  # fmt: skip

        employed = contextlib.ExitStack()  # ends the threads of the cluster in use

        def opened(session: Any) -> None:
            employed.close()  # of a session whose driver died
            wanted = executors or ("elastic" if spark is None else "fixed")
            elastic = wanted == "elastic" and not clusters.is_local(session)
            cores = clusters.cores_each(session) if elastic else 1
            limits = Limits(min_executors, math.ceil(max_slots / cores), cores)
            caching = bool(topology.stateful) and store.is_uri(held.state_root())
            cluster = clusters.cluster_of(session, elastic)
            employed.callback(cluster.close)
            managed.employ(cluster, limits, elastic, caching)

        driver = BatchPlane(topology, held, plans, groupings, new_session, stop, opened=opened, state=state,
                            stall_after_s=stall_after_s)  # fmt: skip
        folder.write_run({"topology": topology.name, "graph": str(topology), "stages": dict(topology.stages),
                          "policy": policy, "settings": dict(settings or {}), "guards": list(guards), "dry_run": dry_run,
                          "grouping": grouping,
                          "grouping_settings": dict(grouping_settings or {}), "target_s": target_s,
                          "max_slots": max_slots, "checkpoint": str(held.root)})  # fmt: skip
        with _signals(stop), _watching(loop, watch):
            try:
                _open(driver, folder)
                loop.start()
                outcome = driver.run(Ending(ending_s, batches, available_now))
            finally:
                with contextlib.ExitStack() as endings:  # the last first, each whatever becomes of the others
                    endings.callback(driver.close, stop_session=spark is None)
                    endings.callback(employed.close)
                    endings.callback(journal.close)
                    endings.callback(routing.close)
                    loop.stop()
        floor = floor_s(list(journal.recent))
        if floor is not None:
            held.remember("floor", {"floor_s": floor})
    finally:
        decider.close()
        held.release()
    summary = totals.document(policy, str(folder.path))
    summary["restarts"] = outcome.restarts
    summary["ended"] = str(outcome.ended)
    summary["open"] = None if outcome.open is None else {name: one.to_json() for name, one in outcome.open.items()}
    summary["given_up_batch"] = outcome.given_up
    summary["control_restarts"] = decider.restarts
    seen = managed.fleet.executor_seconds if managed.fleet else 0.0
    summary["executor_seconds"] = round(seen, 1) or None  # in one process there are none
    summary["violation_ratio"] = totals.violation_ratio
    folder.write_summary(summary)
    return Result(summary, folder.path, tuple(draw(trace.points(), folder.path)), outcome.tables)


def _check_executors(executors: str | None, least: int, most: int) -> bool:
    """Refuse what cannot be; tells whether Spark's dynamic allocation may be on."""
    if executors is not None and executors not in EXECUTORS:
        raise OptionError(f"executors={executors!r} is not allowed; {nearest(executors, EXECUTORS)}")
    if not 1 <= least <= most:
        raise OptionError(f"min_executors={least} is not allowed; it is from 1 to max_slots, which is {most}")
    return executors == "spark"


def _shedding(topology: Topology, shed_after: str | float | None, queue_limit: int | None) -> Shedding | None:
    """What is to be left out; refused where the age of records is not known."""
    if shed_after is None and queue_limit is None:
        return None
    for source in topology.sources:
        if queue_limit is not None and not isinstance(source.source, GenerateSource):
            raise OptionError(
                f"queue_limit={queue_limit}: source {source.name!r} does not say how many records wait, only generated ones do;"
                " give shed_after instead, the age that records may have"
            )
        if getattr(source.source, "created", None) is None and not isinstance(source.source, GenerateSource):
            raise OptionError(
                f"source {source.name!r} does not say when records were created, so none is too old; give created="
            )
        if any(reader.kind is Kind.SQL for reader in topology.consumers[source.name]):
            raise OptionError(f"source {source.name!r} is read by a sql operator, inside Spark, where no record is left out")
    return Shedding(None if shed_after is None else seconds(shed_after, "shed_after"), queue_limit)


def _recalled(held: Any, policy: ScalePolicy, operators: Sequence[str]) -> Mapping[str, Any] | None:
    """What the same policy, with the same parameters, learned in an earlier run of this checkpoint; not if it is damaged."""
    document = held.recall("policy")
    if document is None or document.get("policy") != repr(policy) or not isinstance(document.get("state"), dict):
        return None
    if (fault := fault_of(policy, document["state"], operators)) is not None:
        log.warning("what policy %s learned in this checkpoint is damaged (%s); it begins anew", policy.name, fault)
        return None
    return dict(document["state"])


def _open(driver: Any, folder: RunFolder) -> None:
    """Start Spark. Whatever keeps it from starting is told in a line, with the file that has the rest."""
    from springtide.spark.private.failures import cause_of

    try:
        driver.open()
    except SpringtideError:
        raise
    except Exception as error:
        raise RunError(f"Spark did not start: {cause_of(error)} ({folder.path / 'spark.log'} has more)") from error


class _Fold(Protocol):
    """Takes in batches one by one, in memory that does not grow with them."""

    def add(self, report: BatchReport) -> None: ...


class _Journal:
    """The run folder, written by a thread of its own so that no batch waits for it.

    The same thread adds each batch to ``folds``, so that the end of a run need not read what was written: a line has 27 kB,
    and a month has millions.
    """

    def __init__(self, folder: RunFolder, *folds: _Fold) -> None:
        self._folder, self._folds = folder, folds
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-journal")
        self.recent: deque[tuple[int, float]] = deque(maxlen=1_000)  # records and seconds of batches

    def batch(self, report: BatchReport) -> None:
        self.recent.append((report.rows_in, report.duration_s))
        for fold in self._folds:
            self._write(fold.add, report)
        self._write(self._folder.batch, report)

    def decision(self, entry: Mapping[str, object]) -> None:
        self._write(self._folder.decision, entry)

    def _write(self, write: Callable[[Any], None], entry: object) -> None:
        self._writer.submit(write, entry).add_done_callback(_log_loss)

    def close(self) -> None:
        self._writer.shutdown(wait=True)


def _log_loss(written: Future[None]) -> None:
    if written.exception() is not None:
        log.error("an entry of the run's folder is lost: %s", written.exception())


def _groupings(topology: Topology, default: str, settings: Mapping[str, object]) -> dict[str, Grouping]:
    """A grouping object for every operator that is not chained."""
    registry.create("group", default, settings)
    chosen = {o.name: default if o.grouping == AUTO else o.grouping for o in topology if o.grouping is not None}
    for name, grouping in chosen.items():
        kind = registry.find("group", grouping)
        if getattr(kind, "needs_key", False) and not (topology[name].key or topology[name].by):
            raise OptionError(f"operator {name!r}: grouping {grouping!r} needs a key; write by=column, or .key_by(column)")
        if getattr(kind, "simulator_only", False):
            raise OptionError(f"operator {name!r}: grouping {grouping!r} is a bound, for `springtide simulate` alone")
    given = {name: settings if name == default else {} for name in chosen.values()}
    return {name: registry.create("group", grouping, given[grouping]) for name, grouping in chosen.items()}


def _need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise SetupError("pyspark is not installed; pip install 'springtide[spark]'")


def _check_target(target_s: float | None, measured: Mapping[str, Any] | None) -> None:
    if target_s is None:
        return
    floor = float(measured["floor_s"]) if measured else LEAST_FLOOR_S
    if target_s < floor:
        origin = "as measured in this checkpoint" if measured else "the least that Spark was ever measured at"
        raise OptionError(
            f"target {target_s * 1000:.0f} ms is below the floor of a batch, {floor * 1000:.0f} ms, {origin}; raise the target"
        )


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C finish the batch; a second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def finish(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in before:
        signal.signal(number, finish)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _watching(loop: ControlLoop, watch: Watch | None) -> Iterator[None]:
    """Show every new snapshot while the run goes on."""
    if watch is None:
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def show() -> None:
        while not over.wait(0.5):
            if loop.snapshot is not None:
                watch(loop.snapshot, time.monotonic() - started)

    thread = threading.Thread(target=show, name="springtide-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)
