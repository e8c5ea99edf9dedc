"""Checks a query and the options, and starts the attachment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from springtide.control.fleet import Limits
from springtide.control.ports import Clock
from springtide.errors import OptionError, SetupError
from springtide.options import scaler
from springtide.spark.attach import options as reading
from springtide.spark.attach.attachment import Attachment
from springtide.spark.attach.deciding import hosted
from springtide.spark.attach.goal import Goal
from springtide.spark.attach.options import AttachOptions
from springtide.spark.attach.shared import SharedExecutors
from springtide.spark.attach.watch import SparkQuery
from springtide.spark.driver import clusters
from springtide.spark.private import status

SHARED = "_springtide_attached"
"""The attribute of a Spark context with the ``Attached`` of its queries, which thus ends with the context."""

_MAKING = threading.Lock()  # queries may be attached to by several threads


@dataclass
class Attached:
    """Shared by the queries of an application: its executors, and the attachment of each query."""

    executors: SharedExecutors
    by_query: WeakValueDictionary[str, Attachment] = field(default_factory=WeakValueDictionary)
    lock: threading.Lock = field(default_factory=threading.Lock)


def begin(query: Any, given: Mapping[str, Any], clock: Clock) -> Attachment:
    """Check the query and the options, and start an attachment. ``given``: the arguments of ``springtide.attach``.

    They are empty for ``springtide submit``, which attaches to each query unless the application has, and whose attachment ends
    when the application attaches later.
    """
    check_query(query)
    session = status.QuerySession(query)
    attached, key = _attached(session, clock), str(query.runId)
    with attached.lock:
        earlier = attached.by_query.get(key)
        if earlier is not None and earlier.active:
            if not given:
                return earlier
            check_once(query, earlier)
        watched = SparkQuery(query, session)
        conf = dict(session.sparkContext.getConf().getAll())
        options = reading.read({**conf, **session.conf.getAll}, given)
        spec = options.of_query(watched.name)
        policy = scaler(spec)
        goal = _goal(session, conf, options, watched.trigger_s(), attached.executors)
        if earlier is not None:
            earlier.detach()
        host = hosted(spec, policy.policy)
        made = Attachment(watched, host, attached.executors, goal, clock, key, automatic=not given, state=policy.state)
        attached.by_query[key] = made
        return made.start()


def check_once(query: Any, earlier: Attachment) -> None:
    """Refuse a second attachment, which would undo the first one's changes, unless ``springtide submit`` made the first."""
    if not earlier.automatic:
        raise OptionError(
            f"query {query.name or query.id} is attached to already, and two would undo what the other does; call detach() of"
            " what springtide.attach() returned first, and attach then"
        )


def _goal(
    session: Any, conf: Mapping[str, str], options: AttachOptions, trigger_s: float | None, executors: SharedExecutors
) -> Goal:  # fmt: skip
    """The goal; refused if the application cannot reach it."""
    if trigger_s is None:
        raise SetupError("this query has no micro-batches (a continuous or real-time trigger), so none can be measured")
    target_s = reading.target_s(options.target, trigger_s)
    local = clusters.is_local(session)
    if local and not options.dry_run:
        raise SetupError(
            f"the master is {session.sparkContext.master}: one process, with no executors to add or release. Start the"
            " application on a cluster (spark://…, yarn, k8s://…), or attach with dry_run=True to see what would be done"
        )
    if not options.dry_run:
        clusters.check(session)
    cores = 1 if local else clusters.cores_each(session)
    before = begun_with(conf, 0 if local else executors.own())
    limits = Limits(options.min_executors, _most(options, before, local, session.sparkContext.defaultParallelism), cores)
    check_room(conf, limits.most, "min_executors" if options.max_executors is None else "max_executors")
    slots = session.sparkContext.defaultParallelism if local else before * cores
    grows = options.max_executors is None
    return Goal(
        policy=options.policy.policy, target_s=target_s, trigger_s=trigger_s, interval_s=options.interval_s, limits=limits,
        dry_run=options.dry_run, before=before, slots=slots, grows=grows,
    )  # fmt: skip


def check_query(query: Any) -> None:
    """Refuse an object that is not an active query of classic Spark."""
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
    """The number of executors that the application has, or requested at its start and will get."""
    room = _room(conf)
    return max(1, int(conf.get("spark.executor.instances", "0")) if room is None else room, there)


def check_room(conf: Mapping[str, str], most: int, option: str) -> None:
    """Refuse more executors than the application may have. ``option``: the option that requests them."""
    room = _room(conf)
    if room is not None and most > room:
        each = conf["spark.executor.cores"]
        raise OptionError(
            f"{option}={most} executors of {each} cores each take {most * int(each)} cores, and spark.cores.max="
            f"{conf['spark.cores.max']} lets the application have no more than that; lower {option}, or raise spark.cores.max"
        )


def _room(conf: Mapping[str, str]) -> int | None:
    """The limit of a standalone cluster on the application's executors; None without a limit, as on other clusters."""
    allowed, each = conf.get("spark.cores.max"), conf.get("spark.executor.cores")
    if not allowed or not each or conf.get("spark.master", "").startswith(("yarn", "k8s")):
        return None
    return int(allowed) // int(each)


def _most(options: AttachOptions, before: int, local: bool, parallelism: int) -> int:
    if options.max_executors is not None:
        return options.max_executors
    return max(options.min_executors, parallelism if local else before)


def _attached(session: Any, clock: Clock) -> Attached:
    context = session.sparkContext
    with _MAKING:
        found = getattr(context, SHARED, None)
        if not isinstance(found, Attached):
            found = Attached(SharedExecutors(clusters.cluster_of(session, warm=False), clock))
            setattr(context, SHARED, found)
        return found
