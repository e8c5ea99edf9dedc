"""The data plane of a run: Spark in micro-batches."""

from __future__ import annotations

import contextlib
import math
import threading
from pathlib import Path
from typing import Any

from springtide.control.executors import Executors
from springtide.control.fleet import Limits
from springtide.control.plans import Plans
from springtide.control.ports import Actuator
from springtide.errors import OptionError, RunError, SpringtideError
from springtide.model.topology import Topology
from springtide.options import PlaceOptions, SparkOptions
from springtide.running.checks import Job
from springtide.spark.driver import checks, clusters, owners, room
from springtide.spark.driver import session as sessions
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.plane import BatchPlane, RunOutcome
from springtide.spark.driver.streams import SourceActuator
from springtide.spark.private.failures import cause_of
from springtide.spark.shared.hashing import hashing_mark, routing_seed
from springtide.spark.state import store


def check_session(topology: Topology, spark: SparkOptions) -> None:
    """Refuse functions that cannot be pickled for the workers, and a session with unsuitable settings."""
    checks.check(topology)
    if spark.spark is not None:
        sessions.check(spark.spark, spark.dynamic)
    else:
        sessions.check_settings(spark.conf or {}, (*spark.py_files, *spark.archives), spark.dynamic)


def checked_state(topology: Topology, places: PlaceOptions) -> str | None:
    """The new location of state, None to leave it in place. Refuses locations that the run cannot write to."""
    state = None if places.state is None else store.checked(places.state)
    if state is not None:
        if not topology.stateful:
            raise OptionError(f"state={state!r}: topology {topology.name!r} has no stateful operator; leave it out")
        store.check_writable(state)
    room.check(room.needs(topology, places.checkpoint, places.runs))
    owners.check(owners.claims(topology), owners.identity_of(places.checkpoint))
    return state


def acquired(root: Path, topology: Topology) -> Checkpoint:
    """The checkpoint, locked; the caller releases it."""
    checkpoint = Checkpoint(root)
    checkpoint.acquire(topology)
    try:
        owners.claim(topology, checkpoint)
    except BaseException:
        checkpoint.release()
        raise
    return checkpoint


class SparkPlane:
    """Runs a job's batches: ``open`` starts Spark, ``follow`` waits for the end of the run, ``close`` ends Spark."""

    def __init__(self, job: Job, checkpoint: Checkpoint, log: Path, executors: Executors, stop: threading.Event) -> None:
        """``log``: the file for Spark's output. ``executors`` get the cluster of every session."""
        self._job, self._checkpoint, self._log, self._executors, self._stop = job, checkpoint, log, executors, stop
        self._options = job.options.spark
        self._cluster = contextlib.ExitStack()  # ends the threads of the cluster in use
        self._driver: BatchPlane | None = None

    @property
    def hashing(self) -> str:
        """Identifies the hash of keys: groupings discard what they learned with another one."""
        return hashing_mark(routing_seed(self._checkpoint.secret()))

    @property
    def actuators(self) -> list[Actuator]:
        return [SourceActuator(self._checkpoint, self._job.topology)]

    def serve(self, plans: Plans) -> None:
        """Take plans from ``plans``, and report to it. Refuses a checkpoint whose state is incomplete."""
        self._driver = BatchPlane(
            self._job.topology, self._checkpoint, plans, self._job.groupings, self._new_session, self._stop,
            opened=self._employ, state=self._job.state, stall_after_s=self._job.options.stall_after_s,
        )  # fmt: skip

    def open(self) -> None:
        """Start Spark. An error names its cause in a line, and the file with Spark's output."""
        assert self._driver is not None
        try:
            self._driver.open()
        except SpringtideError:
            raise
        except Exception as error:
            raise RunError(f"Spark did not start: {cause_of(error)} ({self._log} has more)") from error

    def follow(self) -> RunOutcome:
        assert self._driver is not None
        return self._driver.run(self._job.options.ending)

    def close(self) -> None:
        """End the cluster's threads and the query, and the session unless it is the caller's."""
        assert self._driver is not None
        with contextlib.ExitStack() as endings:  # the last first, each even if another fails
            endings.callback(self._driver.close, stop_session=self._options.spark is None)
            endings.callback(self._cluster.close)

    def _new_session(self) -> Any:
        asked = self._options
        if asked.spark is not None:
            return sessions.adopt(asked.spark, asked.dynamic)
        return sessions.create(
            asked.master or sessions.local_master(self._max_slots), f"springtide-{self._job.topology.name}",
            dynamic=asked.dynamic, conf=asked.conf, py_files=asked.py_files, archives=asked.archives, log=self._log,
        )  # fmt: skip

    def _employ(self, session: Any) -> None:
        self._cluster.close()  # the cluster of a session whose driver died
        elastic = self._options.elastic and not clusters.is_local(session)
        cores = clusters.cores_each(session) if elastic else 1
        limits = Limits(self._options.min_executors, math.ceil(self._max_slots / cores), cores)
        caching = bool(self._job.topology.stateful) and store.is_uri(self._checkpoint.state_root())
        cluster = clusters.cluster_of(session, elastic)
        self._cluster.callback(cluster.close)
        self._executors.employ(cluster, limits, elastic, caching)

    @property
    def _max_slots(self) -> int:
        return self._job.options.goals.bounds.max_slots
