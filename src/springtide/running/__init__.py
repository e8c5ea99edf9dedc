"""``springtide.run``: run a topology on Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from springtide import options
from springtide.errors import TopologyError
from springtide.model.topology import Topology
from springtide.options import RunOptions
from springtide.policy.shard import Sharder
from springtide.running.execution import execute
from springtide.running.result import Result
from springtide.running.watching import Watch

__all__ = ["Result", "Watch", "execute", "run"]


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
    """Run a topology on Spark until it ends, ``duration`` or ``batches`` are reached, or SIGTERM or Ctrl-C arrives.

    ``policy`` with its ``settings`` decides the degrees every ``interval``. ``grouping`` applies to operators that name none,
    and ``grouping_settings`` wherever it is chosen. ``target`` is the latency target for the size of batches, ``trigger`` the
    minimum time between batches. A later run resumes from ``checkpoint`` (default: in the run's folder). ``guards`` limit what
    the policy requests; a ``dry_run`` records the requests and changes nothing. ``shed_after`` drops records that are older
    than that when their batch starts, ``queue_limit`` the oldest when more than this wait; ``rows_shed`` counts them.
    ``executors`` of a cluster are ``elastic`` (they follow the granted slots; ``min_executors`` at least), ``fixed``, or left
    to ``spark``'s dynamic allocation. The default is elastic, but fixed in a session that is passed in.
    ``grant``: hierarchical control, in which every operator has a manager that asks the policy, and this granting policy, such
    as ``token-bucket``, grants or refuses the requests; ``managers``: their times, such as ``operators=10s, settle=30s``.
    ``sharding`` assigns shards of stateful operators to tasks: ``balance``, such as ``balance:theta=1.1``, or ``fixed``.
    ``state``: the permanent location of state, a URI such as ``s3://bucket/folder`` (default: in the checkpoint).
    ``stall_after``: warn of a task without progress for this time, with its operator and record.
    All options are checked before Spark starts.
    """
    if not isinstance(topology, Topology):
        raise TopologyError(
            f"run({topology!r}): that is {type(topology).__name__}, not a topology; end it with .to(sink).named(...)"
        )
    asked = RunOptions(
        policy=options.spec(policy, settings, guards, options.operators_of(topology), seed, grant, managers),
        goals=options.goals(target, trigger, interval, max_slots),
        routing=options.RoutingOptions(grouping, grouping_settings, sharding),
        ending=options.ending(duration, batches, available_now),
        places=options.places(checkpoint, runs, state),
        spark=options.SparkOptions(spark, master, conf, py_files, archives, executors, min_executors),
        shedding=options.shedding(shed_after, queue_limit),
        dry_run=dry_run,
        stall_after_s=options.stall_limit(stall_after),
    )
    return execute(topology, asked, watch, stop)
