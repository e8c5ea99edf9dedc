"""The checks of a run, before anything changes."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide import options
from springtide.errors import OptionError, SetupError
from springtide.model.lookup import LookupUnavailable
from springtide.model.publisher import PublishedSink, SinkUnavailable
from springtide.model.source import Source, SourceUnavailable
from springtide.model.topology import Operator, Topology
from springtide.options import RunOptions
from springtide.policy.chosen import Chosen
from springtide.policy.group import Grouping
from springtide.policy.shard import Sharder
from springtide.processors.lookup import LookupJoin

log = logging.getLogger("springtide")

LEAST_FLOOR_S = 0.05
"""Minimum time of a batch, s: none on Spark was measured to take less. A run measures its topology's own floor."""


@dataclass(frozen=True)
class Job:
    """A checked run: the topology, the options, and the plug-ins that they name. ``state``: the location of state."""

    topology: Topology
    options: RunOptions
    scaler: Chosen
    groupings: Mapping[str, Grouping]
    sharder: Sharder
    state: str | None


def checked(topology: Topology, asked: RunOptions) -> Job:
    scaler, groupings = options.scaler(asked.policy), asked.routing.groupings(topology)
    if asked.shedding is not None:
        options.check_shedding(asked.shedding, topology)
    sharder = asked.routing.sharder()
    if importlib.util.find_spec("pyspark") is None:
        raise SetupError("pyspark is not installed; pip install 'springtide[spark]'")
    from springtide.running import spark

    spark.check_session(topology, asked.spark)
    check_sources(topology)
    check_lookups(topology)
    check_sinks(topology)
    check_target(asked.goals.target_s, None)
    if asked.goals.target_s is not None:
        warn_of_fixed_limits(topology)
    return Job(topology, asked, scaler, groupings, sharder, spark.checked_state(topology, asked.places))


def check_sources(topology: Topology) -> None:
    """Refuse sources that cannot be read as they are declared. The run will wait for those that cannot be reached now."""
    for operator in topology.sources:
        if not isinstance(operator.source, Source):
            continue
        try:
            operator.source.check()
        except SourceUnavailable as error:
            log.warning("source %r cannot be reached (%s); the run will wait for it", operator.name, error)


def has_read_limit(operator: Operator) -> bool:
    """Whether a plan can change how much a batch reads of a source; of those that Spark reads, it cannot."""
    return isinstance(operator.source, Source)


def warn_of_fixed_limits(topology: Topology) -> None:
    """Say that a target does not bound the batches of sources that Spark reads."""
    fixed = ", ".join(repr(operator.name) for operator in topology.sources if not has_read_limit(operator))
    if fixed:
        log.warning(
            "read limit: fixed at start for the dataframe source %s: a batch takes what the DataFrame's own options allow"
            " (maxOffsetsPerTrigger, maxFilesPerTrigger), whatever the target; st.source.kafka and st.source.files take a new"
            " limit in every batch", fixed,
        )  # fmt: skip


def check_lookups(topology: Topology) -> None:
    """Refuse lookups that do not have what their operators want. Tasks will wait for tables that cannot be reached now."""
    for operator in topology:
        if not isinstance(operator.function, LookupJoin):
            continue
        try:
            operator.function.lookup.check(operator.function.looked_up)
        except LookupUnavailable as error:
            log.warning("the table of lookup %r cannot be reached (%s); its tasks will wait for it", operator.name, error)


def check_sinks(topology: Topology) -> None:
    """Refuse sinks that cannot be written as they are declared. The run will wait for those that cannot be reached now."""
    for operator in topology.sinks:
        if not isinstance(operator.sink, PublishedSink):
            continue
        try:
            operator.sink.check(topology.input_schema(operator))
        except SinkUnavailable as error:
            log.warning("sink %r cannot be reached (%s); the run will wait for it", operator.name, error)


def check_target(target_s: float | None, measured: Mapping[str, Any] | None) -> None:
    """Refuse a target that no batch can meet. ``measured``: the floor that earlier runs of the checkpoint found."""
    if target_s is None:
        return
    floor = float(measured["floor_s"]) if measured else LEAST_FLOOR_S
    if target_s < floor:
        origin = "as measured in this checkpoint" if measured else "the least that Spark was ever measured at"
        raise OptionError(
            f"target {target_s * 1000:.0f} ms is below the floor of a batch, {floor * 1000:.0f} ms, {origin}; raise the target"
        )
