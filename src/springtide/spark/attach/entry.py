"""Everything that is checked before a query is attached to, and what is put together then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from springtide.control.fleet import Limits
from springtide.control.ports import Clock
from springtide.errors import OptionError, SetupError
from springtide.spark import clusters, internals
from springtide.spark.attach import options as asked
from springtide.spark.attach.attachment import Attachment
from springtide.spark.attach.goal import Goal
from springtide.spark.attach.shared import SharedExecutors
from springtide.spark.attach.watch import SparkQuery

SHARED = "_springtide_executors"
"""Where a context keeps the executors that its queries share: they live as long as it does, and no longer."""


def begin(query: Any, given: Mapping[str, Any], clock: Clock) -> Attachment:
    """Check, put together and start."""
    check_query(query)
    session = internals.QuerySession(query)
    conf = dict(session.sparkContext.getConf().getAll())
    options = asked.read({**conf, **session.conf.getAll}, given)
    watched = SparkQuery(query, session)
    scaler = asked.scaler(options, watched.name)
    trigger_s = watched.trigger_s()
    if trigger_s is None:
        raise SetupError("this query has no micro-batches (a continuous or real-time trigger), so none can be measured")
    target_s = asked.target_s(options.target, trigger_s)
    local = clusters.is_local(session)
    if local and not options.dry_run:
        raise SetupError(
            f"the master is {session.sparkContext.master}: one process, with no executors to add or release. Start the"
            " application on a cluster (spark://…, yarn, k8s://…), or attach with dry_run=True to see what would be done"
        )
    if not options.dry_run:
        clusters.check(session)
    cores = 1 if local else clusters.cores_each(session)
    executors = _shared(session, clock)
    before = begun_with(conf, 0 if local else len(executors.cluster.executors()))
    limits = Limits(options.min_executors, _most(options, before, local, session.sparkContext.defaultParallelism), cores)
    check_room(conf, limits.most)
    slots = session.sparkContext.defaultParallelism if local else before * cores
    goal = Goal(options.policy, target_s, trigger_s, options.interval_s, limits, options.dry_run, before, slots)
    return Attachment(watched, scaler, executors, goal, clock, key=str(query.runId)).start()


def check_query(query: Any) -> None:
    """Refuse what is no classic query, or has ended."""
    if "connect" in type(query).__module__:
        raise SetupError(
            "this query runs on Spark Connect, which does not let a client ask for executors; attach where the driver runs,"
            " in an application of the classic kind: unset SPARK_REMOTE and spark.remote"
        )
    if not hasattr(query, "isActive") or not hasattr(query, "runId"):
        raise OptionError(
            f"attach({query!r}): that is {type(query).__name__}, not a streaming query; pass what .start() returned"
        )
    if not query.isActive:
        raise SetupError(f"query {query.name or query.id} is not active: it has ended or failed; start it, and attach then")


def begun_with(conf: Mapping[str, str], there: int) -> int:
    """How many executors the application has, or was promised when it started and will get."""
    promised = int(conf.get("spark.executor.instances", "0"))
    if conf.get("spark.cores.max") and conf.get("spark.executor.cores"):
        promised = max(promised, int(conf["spark.cores.max"]) // int(conf["spark.executor.cores"]))
    return max(1, promised, there)


def check_room(conf: Mapping[str, str], most: int) -> None:
    """Refuse more executors than the application may ever have."""
    allowed, each = conf.get("spark.cores.max"), conf.get("spark.executor.cores")
    if allowed and each and most * int(each) > int(allowed):
        raise OptionError(
            f"max_executors={most} of {each} cores each take {most * int(each)} cores, and spark.cores.max={allowed} lets the"
            " application have no more than that; raise spark.cores.max, or leave it out"
        )


def _most(options: asked.Options, before: int, local: bool, parallelism: int) -> int:
    if options.max_executors is not None:
        return options.max_executors
    return max(options.min_executors, parallelism if local else before)


def _shared(session: Any, clock: Clock) -> SharedExecutors:
    context = session.sparkContext
    found = getattr(context, SHARED, None)
    if not isinstance(found, SharedExecutors):
        cpus = int(context.getConf().get("spark.task.cpus", "1") or 1)
        found = SharedExecutors(clusters.cluster_of(session, warm=False), clock, cpus)
        setattr(context, SHARED, found)
    return found
