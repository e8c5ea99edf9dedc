"""``springtide.run``: a topology, a policy, a checkpoint and a run folder, put together."""

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
    """Run a topology on Spark until it ends, ``duration`` or ``batches`` are over, or SIGTERM or Ctrl-C come.

    ``policy`` with its ``settings`` grants degrees, every ``interval``; ``grouping`` serves operators that leave it open, and
    ``grouping_settings`` hold wherever it is chosen;
    ``target`` is the latency that batches are sized for; ``trigger`` the least time between batches; ``checkpoint`` is
    where a later run goes on (default: in the run's folder). ``guards`` stand between the policy and the plan; a ``dry_run``
    records what the policy would do, and does nothing. ``shed_after`` leaves out records that are older than that when their
    batch starts, ``queue_limit`` the oldest when more than this wait; they are counted as ``rows_shed``.
    ``executors`` of a cluster are ``elastic``: asked for and released as slots are granted, ``min_executors`` at least;
    ``fixed``; or left to ``spark``'s own dynamic allocation. The default is elastic, but fixed for a session that is handed in.
    ``grant``: hierarchical control, in which every operator has a manager of its own that asks the policy, and this policy,
    such as ``token-bucket``, says which requests are granted; ``managers``: their times, such as ``operators=10s, settle=30s``.
    ``sharding``: which task has a shard of a stateful operator: ``balance``, such as ``balance:theta=1.1``, or ``fixed``.
    ``state``: where the state of stateful operators lies, for ever: a URI such as ``s3://bucket/folder`` (default: in the
    checkpoint). ``stall_after``: warn of a task that has made no progress for this long, with its operator and record.
    Everything that can be wrong is checked before Spark starts.
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
