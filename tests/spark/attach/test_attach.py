"""``springtide.attach`` without Spark: progress documents by hand, a remembered cluster, a stepped clock."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import springtide
from springtide.apps import tweets
from springtide.cli import submit as submitting
from springtide.control.decider import InThread
from springtide.control.executors import COLD_BATCHES
from springtide.control.fleet import Limits
from springtide.control.memory import MemoryCluster
from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plane.spec import Spec
from springtide.errors import OptionError, SetupError
from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.options import scaler, spec
from springtide.policy.chosen import chosen
from springtide.policy.scale import State
from springtide.spark import launch
from springtide.spark.attach import entry, options
from springtide.spark.attach.advice import advise
from springtide.spark.attach.attachment import Attachment
from springtide.spark.attach.batches import (
    BatchStage,
    Limit,
    QueryBatch,
    Use,
    from_progress,
    learned_limit,
    union_s,
    useful_slots,
)
from springtide.spark.attach.deciding import hosted
from springtide.spark.attach.entry import begin, begun_with, check_query, check_room
from springtide.spark.attach.goal import Goal
from springtide.spark.attach.measure import fixed_s, latency, snapshot
from springtide.spark.attach.shared import SharedExecutors
from springtide.spark.attach.watch import SparkQuery
from springtide.spark.driver import clusters
from springtide.spark.driver.lag import unread_in
from springtide.spark.private import status
from springtide.spark.private.status import SparkJob

T0 = 1_800_000_000.0


def document(number: int = 7, second: float = 0.0, took_ms: int = 800, rows: int = 600, **more: Any) -> dict[str, Any]:
    """A progress document as Spark 4 writes it, cut to what is read."""
    moment = datetime.fromtimestamp(T0 + second, UTC)
    return {
        "batchId": number,
        "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "batchDuration": took_ms,
        "durationMs": {"addBatch": took_ms - 100, "triggerExecution": took_ms},
        "stateOperators": [],
        "sources": [
            {"description": "RateStreamV2[…]", "startOffset": 3, "endOffset": 4, "latestOffset": 4, "numInputRows": rows}
        ],
        "sink": {"description": "MemorySink", "numOutputRows": -1},
        **more,
    }


def kafka(end: dict[str, int], latest: dict[str, int], rows: int = 10) -> dict[str, Any]:
    return {
        "description": "KafkaV2[Subscribe[orders]]", "numInputRows": rows,
        "endOffset": {"orders": end}, "latestOffset": {"orders": latest},
    }  # fmt: skip


def test_a_batch_is_read_from_its_progress() -> None:
    batch = from_progress(document(second=2.5))
    assert (batch.number, batch.started, batch.duration_s, batch.rows) == (7, T0 + 2.5, 0.8, 600)
    assert batch.rows_out is None  # -1: the memory sink does not count
    assert batch.unread == 0  # the rate source read up to its latest offset
    assert batch.state_partitions is None and batch.stages is None and batch.busy_s is None


def test_the_fewest_partitions_of_state_and_the_rows_of_all_sources_count() -> None:
    sources = [kafka({"0": 5}, {"0": 9}, rows=10), {"description": "File", "endOffset": {"logOffset": 3}, "numInputRows": 4}]
    state = [{"numShufflePartitions": 8}, {"numShufflePartitions": 4}]
    batch = from_progress(document(sources=sources, stateOperators=state, sink={"numOutputRows": 12}))
    assert (batch.rows, batch.rows_out, batch.state_partitions) == (14, 12, 4)
    assert batch.unread is None  # 4 wait in Kafka, and of the files nobody knows


def test_what_kafka_holds_back_is_the_difference_of_the_offsets() -> None:
    # 20-15 of partition 0, none of 1, and all 7 of the new partition 2
    assert unread_in(kafka({"0": 15, "1": 8}, {"0": 20, "1": 8, "2": 7})) == 12
    assert unread_in(kafka({"0": 15, "1": 8}, {"0": 20, "1": 8, "2": 7}), {"orders": {"0": 18, "1": 8, "2": 7}}) == 2, (
        "of a later batch"
    )
    assert unread_in({"description": "Mine", "endOffset": {"a": 1}, "latestOffset": {"a": 3}}) is None  # of unknown unit
    assert unread_in({"description": "File", "endOffset": {"logOffset": 1}, "latestOffset": None}) is None


def test_useful_slots_are_those_of_the_stage_where_the_work_is() -> None:
    assert useful_slots([BatchStage(6, 3.0)]) == 6
    assert useful_slots([BatchStage(1, 3.0)]) == 1
    # 2 tasks of 5 s, and 200 small ones of 2 s in all: 5 + 2/n s, at best 5.01; within a twentieth (5.2605) from n = 8 on
    assert useful_slots([BatchStage(2, 10.0), BatchStage(200, 2.0)]) == 8
    # the longest of 10 tasks takes 4 s of 6.7 in all, the median 0.3: 2 slots finish as soon as 10 do
    assert useful_slots([BatchStage(10, 6.7, longest_s=4.0, median_s=0.3)]) == 2
    assert useful_slots([]) is None and useful_slots([BatchStage(4, 0.0)]) is None


def test_a_limit_is_learned_when_there_were_slots_to_spare_and_forgotten_when_a_batch_can_use_more() -> None:
    assert learned_limit(None, [Use(2, 2, 1.0), Use(2, 2, 1.0)]) is None  # a file source has as many tasks as there are slots
    assert learned_limit(None, [Use(2, 6, 3.0), Use(1, 6, 1.0)]) == Limit(2, 3.0)
    assert learned_limit(Limit(2, 3.0), [Use(2, 2, 3.0)]) == Limit(2, 3.0)  # going back to 2 slots is no reason to try 6 again
    assert learned_limit(Limit(2, 3.0), [Use(3, 2, 1.0)]) is None
    assert learned_limit(Limit(5, 3.0), []) == Limit(5, 3.0)


def test_a_limit_learned_at_little_work_is_forgotten_at_twice_as_much() -> None:
    few = Limit(2, 3.0)
    assert learned_limit(few, [Use(2, 2, 1.0), Use(2, 2, 5.9)]) == few
    assert learned_limit(few, [Use(2, 2, 1.0), Use(2, 2, 6.0)]) is None  # 2 · 3 s, by all slots that are there
    assert learned_limit(few, [Use(1, 2, 60.0)]) == Limit(1, 60.0)  # one slot was to spare at that: it is known
    assert learned_limit(few, [Use(2, 4, 60.0), Use(2, 2, 1.0)]) == few  # two slots were to spare at 60 s
    # seen at 9 s that 2 are enough, then at 1 s: what was seen at 9 s holds on
    assert learned_limit(learned_limit(few, [Use(2, 6, 9.0)]), [Use(2, 6, 1.0)]) == Limit(2, 9.0)
    assert learned_limit(Limit(4, 9.0), [Use(2, 6, 1.0)]) == Limit(2, 1.0)  # that 2 are enough was seen at 1 s only


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 50), st.floats(0, 20), st.floats(0.01, 5)), min_size=1, max_size=5)
)
def test_more_slots_than_useful_shorten_nothing_by_more_than_a_twentieth(parts: list[tuple[int, float, float, float]]) -> None:
    stages = [BatchStage(tasks, work, min(longest, work), median) for tasks, work, longest, median in parts]
    useful = useful_slots(stages)
    assert useful is not None and 1 <= useful <= max(stage.tasks for stage in stages)

    def span(slots: int) -> float:
        return sum(stage.span_s(slots) for stage in stages)

    assert span(useful) <= 1.05 * span(10_000) + 1e-9
    assert useful == 1 or span(useful - 1) > 1.05 * span(10_000) - 1e-9


def test_the_time_in_jobs_counts_what_overlaps_once() -> None:
    assert union_s([]) == 0.0
    assert union_s([(0.0, 5.0), (1.0, 2.0), (4.0, 6.0), (8.0, 9.0)]) == 7.0


# ---- snapshots


def batch(number: int, second: float, took: float, rows: int, **more: Any) -> QueryBatch:
    """One stage of 4 tasks that worked for 2 s, unless given otherwise."""
    return QueryBatch(
        number, T0 + second, took, rows, **{"unread": 0, "stages": (BatchStage(4, 2.0),), "in_jobs_s": took / 2, **more}
    )


def shot(batches: list[QueryBatch], **more: Any) -> Snapshot:
    known: dict[str, Any] = {
        "at": 9.0, "degree": 4, "there": 2, "limit": None, "trigger_s": 0.0, "target_s": 60.0, "most": 8, "starting_s": 5.0
    }  # fmt: skip
    return snapshot("q", batches, **(known | more))


def test_a_snapshot_counts_from_start_to_start() -> None:
    # batches that start at 0, 2 and 5: 300 records came in [0, 2] and 600 in [2, 5], and made 2 s of work each
    found = shot([batch(1, 0, 2, 99), batch(2, 2, 3, 300), batch(3, 5, 4, 600)])
    operator = found["q"]
    assert found.interval_s == 5.0
    assert found.rate == operator.rate == 180.0  # 900/5
    assert operator.busy_s == 4.0 and operator.cost_s == pytest.approx(4 / 900)
    assert operator.utilisation == pytest.approx(4 / (4 * 5))
    assert found.batches == ((300, 3.0), (600, 4.0))
    assert found.plan.slots == 2 and operator.degree == 4 and operator.width == 4
    assert found.backlog == operator.backlog == 0
    assert found.sources[0].arrivals == (150.0, 150.0, 200.0, 200.0, 200.0)
    assert operator.latency_ms == 1750.0  # jobs ran for 1.5 and for 2 s


def test_what_a_source_left_unread_has_arrived_too() -> None:
    # in [0, 2] 300 were read and 100 more were left, in [2, 5] 600 were read, 60 of them of those that were left
    found = shot([batch(1, 0, 2, 99), batch(2, 2, 3, 300, unread=100), batch(3, 5, 4, 600, unread=40)])
    (source,) = found.sources
    assert (source.rows, source.backlog) == (900, 40)
    assert source.arrivals == (200.0, 200.0, 180.0, 180.0, 180.0)
    assert source.arrival_rate == 188.0  # 940/5
    # of one batch it is unknown what it left: then what was read is known, and not what arrived
    (source,) = shot([batch(1, 0, 2, 99), batch(2, 2, 3, 300, unread=None), batch(3, 5, 4, 600, unread=40)]).sources
    assert source.arrivals == (150.0, 150.0, 200.0, 200.0, 200.0)
    assert (source.arrival_rate, source.backlog) == (None, 40)


def test_latency_is_the_wait_for_the_batch_and_the_batch() -> None:
    # records were gathered for 2 s and take 0 to 2 s until the batch starts, then 3: 4 in the mean, 4.9 at 95 %
    found = latency([batch(1, 0, 2, 9), batch(2, 2, 3, 100)], trigger_s=0.0)
    assert found is not None and found.mean == 4000.0 and found.p95 == 4900.0
    # nothing came for 100 s: a record starts a batch at once, after the trigger interval of 1 s at most
    quiet = latency([batch(1, 0, 0.2, 9), batch(2, 100, 3, 100)], trigger_s=1.0)
    assert quiet is not None and quiet.mean == 3500.0
    # 500 are unread in a source that is read at 100 in 2 s: 10 s more
    behind = latency([batch(1, 0, 2, 9), batch(2, 2, 3, 100, unread=500)], trigger_s=0.0)
    assert behind is not None and behind.mean == 14000.0
    assert latency([batch(1, 0, 2, 9), batch(2, 2, 3, 0)], trigger_s=0.0) is None


def test_what_is_not_known_is_none() -> None:
    found = shot([batch(1, 0, 1, 9), batch(2, 1, 1, 10, stages=None, in_jobs_s=None, unread=None)])
    operator = found["q"]
    assert operator.busy_s is None and operator.utilisation is None and operator.latency_ms is None
    assert found.backlog is None and operator.backlog is None and operator.rows_out is None
    # of one batch the stages are forgotten: 2 s for 100 records, so 6 s for 300
    partly = shot([batch(1, 0, 1, 9), batch(2, 1, 1, 100), batch(3, 2, 1, 200, stages=None)])
    assert partly["q"].busy_s == 6.0


def test_the_fixed_part_of_a_batch_is_handed_on_and_the_target_stays() -> None:
    # 2 s of work on 2 slots take 1 of the 3 s; the other 2 are fixed
    late = [batch(1, 0, 3, 9), batch(2, 3, 3, 300)]
    assert fixed_s(late, 2) == 2.0
    assert shot(late, target_s=1.0).target_s == 1.0 and shot(late, target_s=1.0).batch_overhead_s == 2.0
    # one slot did the 2 s of work, and the second came when the batch was nearly over: 1 s is fixed
    assert fixed_s([batch(2, 3, 3, 300, slots=1)], 2) == 1.0


def test_a_batch_counts_with_the_slots_that_were_there_while_it_ran() -> None:
    world = World(6).warm()
    world.step()  # asks for two more, which take 2 s
    began = world.now - T0
    world.now += 0.5
    world.attachment.cycle()
    world.now += 2.5
    world.query.batches.append(batch(world.number, began, 3.0, 100))
    world.number += 1
    world.attachment.cycle()
    assert world.executors.count == 6 and world.policy.seen[-1].plan.slots == 4  # most of it ran on four
    world.step()
    assert world.policy.seen[-1].plan.slots == 6


# ---- advice


def advised(batches: list[QueryBatch], most: int = 6, target_s: float = 2.0, fixed: float = 0.0) -> dict[str, str]:
    return {one.kind: one.text for one in advise(batches, most, target_s, fixed)}


def test_nothing_is_advised_for_batches_that_scale() -> None:
    assert advised([batch(n, 3 * n, 2, 100, in_jobs_s=1.8) for n in range(5)]) == {}
    assert advised([]) == {}


@pytest.mark.parametrize(
    ("kind", "more", "numbers"),
    [
        ("skew", {"stages": (BatchStage(8, 3.0, longest_s=1.7, median_s=0.2),)}, ("8 tasks", "1.70 s", "0.20 s")),
        ("partitions", {"stages": (BatchStage(1, 1.5), BatchStage(200, 0.5))}, ("1.50 s", "2.00 s", "minPartitions")),
        ("driver", {"in_jobs_s": 0.6}, ("1.40 s", "2.00 s", "longer trigger")),
        ("state", {"state_partitions": 4}, ("4 partitions", "6 slots", "spark.sql.shuffle.partitions")),
    ],
)
def test_each_kind_of_advice_has_its_numbers(kind: str, more: dict[str, Any], numbers: tuple[str, ...]) -> None:
    plain = {"in_jobs_s": 1.8, **more}
    found = advised([batch(n, 3 * n, 2, 100, **plain) for n in range(3)])
    assert list(found) == [kind]
    assert all(number in found[kind] for number in numbers), found[kind]
    assert advised([batch(n, 3 * n, 2, 100, **plain) for n in range(2)]) == {}  # twice may be chance
    mixed = [batch(n, 3 * n, 2, 100, **(plain if n < 2 else {"in_jobs_s": 1.8})) for n in range(5)]
    assert advised(mixed) == {}
    assert advised([batch(n, 3 * n, 2, 100, **plain) for n in range(3)], target_s=60.0) == {}  # nobody waits for 2 s of 60


def test_what_is_near_a_bound_is_not_reported() -> None:
    def plain(**more: Any) -> dict[str, str]:
        return advised([batch(n, 3 * n, 2, 100, **{"in_jobs_s": 1.8, **more}) for n in range(5)])

    assert plain(stages=(BatchStage(8, 3.0, longest_s=1.7, median_s=0.6),)) == {}  # 2.8 times the median
    assert plain(stages=(BatchStage(8, 0.6, longest_s=0.4, median_s=0.02),)) == {}  # a fifth of the batch
    assert plain(stages=(BatchStage(2, 1.5),)) == {} and plain(stages=(BatchStage(1, 0.4), BatchStage(200, 0.5))) == {}
    assert plain(in_jobs_s=1.1) == {} and plain(in_jobs_s=None) == {} and plain(stages=None) == {}
    assert plain(state_partitions=6) == {}


def test_a_target_out_of_reach_is_reported() -> None:
    # 1.5 · 1.6 = 2.4 s is more than 2
    fine = [batch(n, 3 * n, 2, 100, in_jobs_s=1.9) for n in range(3)]
    assert list(advised(fine, fixed=1.6)) == ["target"] and "2.40 s" in advised(fine, fixed=1.6)["target"]
    assert advised(fine, fixed=1.3) == {}


# ---- options


def test_settings_of_spark_serve_where_arguments_are_silent() -> None:
    conf = {
        "spark.springtide.policy": "ds2", "spark.springtide.policy.margin": "0.2", "spark.springtide.target": "trigger",
        "spark.springtide.min-executors": "2", "spark.springtide.max-executors": "9", "spark.springtide.interval": "500ms",
        "spark.springtide.dry-run": "true", "spark.springtide.guards": "bounds:most=4; cooldown", "spark.app.name": "x",
    }  # fmt: skip
    found = options.read(conf, {})
    assert (found.policy.policy, found.policy.settings, found.target) == ("ds2", {"margin": "0.2"}, "trigger")
    assert (found.min_executors, found.max_executors, found.interval_s, found.dry_run) == (2, 9, 0.5, True)
    assert found.policy.guards == ("bounds:most=4", "cooldown")
    over = options.read(
        conf, {"max_executors": 3, "dry_run": False, "target": "2s", "settings": {"activation": 2}, "policy": None}
    )
    assert (over.max_executors, over.dry_run, over.target) == (3, False, "2s")
    assert over.policy.settings == {"margin": "0.2", "activation": 2}
    assert options.read(conf, {"policy": "tide"}).policy.settings == {}  # ds2's margin is nothing to tide
    assert options.read({}, {}) == options.AttachOptions()


@pytest.mark.parametrize(
    ("conf", "arguments", "words"),
    [
        ({"spark.springtide.polcy": "tide"}, {}, ("polcy", "policy")),
        ({"spark.springtide.dry-run": "maybe"}, {}, ("maybe",)),
        ({}, {"interval": 0}, ("interval", "above 0")),
        ({}, {"min_executors": 0}, ("min_executors=0", "at least 1")),
        ({}, {"max_executors": "many"}, ("'many'", "whole number")),
    ],
)
def test_wrong_options_are_refused_in_words(conf: dict[str, str], arguments: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as caught:
        options.read(conf, arguments)
    assert all(word in str(caught.value) for word in words)


def test_targets() -> None:
    assert options.target_s("2s", 0.0) == 2.0
    assert options.target_s("trigger", 4.0) == options.target_s(None, 4.0) == 6.0  # a batch of 4 s: records take one and a half
    assert options.target_s(None, 0.0) == 5.0
    with pytest.raises(OptionError, match="needs a query with a trigger interval"):
        options.target_s("trigger", 0.0)
    with pytest.raises(OptionError, match="above 0"):
        options.target_s("0s", 0.0)


def test_policies_that_cannot_be_asked_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'tide'"):
        scaler(spec("tiide", operators=["q"]))
    with pytest.raises(OptionError, match="knows the future"):
        scaler(spec("clairvoyant", operators=["q"]))
    with pytest.raises(OptionError, match="knows the future"):
        springtide.run(tweets.topology(), policy="clairvoyant", grouping="none")  # which is refused later, before Spark starts


@pytest.mark.parametrize(("word", "expected"), [("Yes", True), (" ON ", True), ("1", True), ("Off", False), ("no", False)])
def test_yes_and_no_are_what_they_are_for_parameters(word: str, expected: bool) -> None:
    assert options.read({"spark.springtide.dry-run": word}, {}).dry_run is expected


# ---- refusals that need no Spark


def test_queries_that_cannot_be_attached_to() -> None:
    ended = SimpleNamespace(isActive=False, runId="r", name="late", id="i")
    with pytest.raises(SetupError, match="late is not active"):
        check_query(ended)
    with pytest.raises(OptionError, match="not a streaming query"):
        check_query(42)
    connect = type("StreamingQuery", (), {"__module__": "pyspark.sql.connect.streaming.query"})()
    with pytest.raises(SetupError, match="Spark Connect"):
        check_query(connect)


def test_the_executors_of_the_application_are_those_there_or_promised() -> None:
    assert begun_with({}, 3) == 3
    assert begun_with({"spark.executor.instances": "5"}, 2) == 5
    assert begun_with({"spark.cores.max": "8", "spark.executor.cores": "2"}, 1) == 4
    assert begun_with({}, 0) == 1
    room = {"spark.cores.max": "8", "spark.executor.cores": "2"}
    check_room(room, 4, "max_executors")
    with pytest.raises(OptionError, match=r"take 10 cores, and spark\.cores\.max=8"):
        check_room(room, 5, "max_executors")
    elsewhere = {**room, "spark.master": "yarn", "spark.executor.instances": "5"}  # where that limit is none
    assert begun_with(elsewhere, 1) == 5
    check_room(elsewhere, 5, "max_executors")


# ---- the attachment


@dataclass
class MadeUpQuery:
    """A query whose batches are handed in."""

    name: str = "q"
    batches: list[QueryBatch] = field(default_factory=list)
    end: str | None = None
    quiet: bool = False

    def trigger_s(self) -> float | None:
        return 0.0

    def ended(self) -> str | None:
        return self.end

    def new_batches(self) -> list[QueryBatch]:
        taken, self.batches = self.batches, []
        return taken

    def idle(self) -> bool:
        return self.quiet


@dataclass(frozen=True)
class Wants:
    """A policy that requests a given number, and stores its snapshots."""

    name: ClassVar[str] = "wants"
    degrees: list[int] = field(default_factory=list)
    seen: list[Snapshot] = field(default_factory=list)

    def initial(self) -> State:
        return {}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        self.seen.append(snapshot)
        if not self.degrees:
            return state, ()
        degree = self.degrees.pop(0)
        if degree < 0:
            raise ValueError("broken")
        return state, (Request("q", degree, f"because {degree}"),)


class World:
    """An attachment on a remembered cluster of four executors, and the hand of its clock."""

    def __init__(
        self, *degrees: int, dry_run: bool = False, most: int | None = 8, cores: int = 1, starting_s: float = 2.0,
        there: int = 4, kind: type[MemoryCluster] = MemoryCluster, policy: Any = None,
    ) -> None:  # fmt: skip
        """``most``: None if nobody gave it."""
        self.now, self.number = T0, 0
        self.cluster = kind(lambda: self.now, starting_s=starting_s, cores=cores)
        for _ in range(there):
            self.cluster.add()
        self.executors = SharedExecutors(self.cluster, lambda: self.now)
        self.goal = Goal(
            "wants",
            2.0,
            0.0,
            1.0,
            Limits(1, most or there, cores),
            dry_run,
            before=there,
            slots=there * cores,
            grows=most is None,
        )
        self.attach(*degrees, policy=policy)

    def attach(self, *degrees: int, policy: Any = None) -> None:
        """To a new query."""
        self.query, self.policy = MadeUpQuery(), Wants(list(degrees))
        self.goal = replace(self.goal, before=self.executors.own(), slots=self.executors.own() * self.goal.limits.cores)
        host = policy if hasattr(policy, "forget") else InThread(policy or self.policy)
        self.attachment = Attachment(self.query, host, self.executors, self.goal, lambda: self.now)

    def step(self, seconds: float = 1.0, rows: int = 100, **more: Any) -> None:
        """A batch of so long ends, and is seen."""
        self.query.batches.append(batch(self.number, self.now - T0, seconds, rows, **more))
        self.number, self.now = self.number + 1, self.now + seconds
        self.attachment.cycle()

    def warm(self) -> World:
        for _ in range(COLD_BATCHES + 1):  # the first tells when time begins, the next ones are cold
            self.step()
        assert not self.policy.seen
        return self

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.cluster.executors()]


def test_executors_follow_what_the_policy_wants() -> None:
    world = World(6, 6, 6, 6, 2).warm()
    assert world.cluster.asked == []
    world.step()
    assert world.cluster.asked == [6] and world.attachment.wanted == 6
    world.step(2.0)
    world.step()
    assert len(world.names) == 6
    world.step()
    world.step()  # wants 2; four too many stay as long as a start takes
    assert len(world.names) == 6 and world.attachment.wanted == 2
    for _ in range(20):
        world.step()
    assert len(world.names) == 2 and world.cluster.asked[-1] == 2


def test_degrees_are_slots_and_executors_have_several() -> None:
    world = World(7, most=8, cores=2).warm()
    world.step()
    assert world.attachment.wanted == 4 and world.cluster.asked == []  # 7 slots are 4 executors of 2, which are there
    world.policy.degrees.append(100)
    world.step()
    assert world.cluster.asked == [8]  # no more than may be


def test_snapshots_have_granted_and_available_slots() -> None:
    world = World(6).warm()
    world.step()
    world.step(rows=300)
    found = world.policy.seen[-1]
    assert found["q"].degree == 6 and found.plan.slots == 4 and found.slots == 8
    assert found.rate == 300.0 and found.nodes[0].cores == 4 and found.starting_s == world.executors.starting_s


def test_a_query_that_finds_nothing_tells_a_rate_of_zero() -> None:
    world = World().warm()
    world.now += 0.5
    world.query.quiet = True
    world.attachment.cycle()
    assert not world.policy.seen  # half a second of nothing is nothing yet
    world.now += 4.5
    world.attachment.cycle()
    found = world.policy.seen[-1]
    assert found.rate == 0.0 and found.batches == ((0, 0.0),) and found["q"].busy_s == 0.0
    assert found.interval_s == 6.0  # since the last batch began, which took 1 s
    world.query.quiet = False
    world.now += 5
    world.attachment.cycle()
    assert len(world.policy.seen) == 1  # a batch is running: nothing is known


def test_time_begins_at_the_first_batch_that_is_seen_where_others_were_missed() -> None:
    """20 batches of 60 are looked at. Of 100 to 102, which begin at 40, 41 and 43 s, 900 records came in the 3 s since 40."""
    world = World().warm()  # up to number 2, which began at 2 s
    world.query.batches += [batch(100, 40, 1, 500), batch(101, 41, 2, 300), batch(102, 43, 1, 600)]
    world.attachment.cycle()
    found = world.policy.seen[-1]
    assert found.interval_s == 3.0 and found.rate == 300.0 and found.batches == ((300, 2.0), (600, 1.0))
    assert found["q"].busy_s == 4.0 and found["q"].utilisation == pytest.approx(4 / (4 * 3))
    world.query.batches.append(batch(110, 50, 1, 100))
    world.attachment.cycle()
    assert len(world.policy.seen) == 1  # one alone tells of no time
    world.query.batches.append(batch(111, 52, 1, 100))
    world.attachment.cycle()
    assert world.policy.seen[-1].rate == 50.0  # 100 in the 2 s from 50 to 52


@dataclass
class SparkStatus:
    """What Spark tells of a query: its status, and its progress and jobs as its status store knows them."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    known: dict[int, SparkJob] = field(default_factory=dict)
    status: dict[str, bool] = field(default_factory=lambda: {"isDataAvailable": False, "isTriggerActive": False})
    after_progress: Callable[[], None] = lambda: None
    name: str = "q"
    id: str = "1"

    def progress(self, after: int | None, most: int) -> list[dict[str, Any]]:
        found = [one for one in self.documents if after is None or one["batchId"] > after][-most:]
        self.after_progress()
        return found

    def jobs(self) -> list[int]:
        return sorted(self.known)

    def job(self, number: int) -> SparkJob | None:
        return self.known.get(number)

    def stage(self, number: int) -> list[tuple[tuple[int, int], int, float]]:
        return [((number, 0), 1, 2.0)]


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[World, SparkStatus]:
    """A world whose query is read from what Spark tells; three batches of 1 s each were seen."""
    spark = SparkStatus()
    monkeypatch.setattr(status, "QueryLook", lambda *_: spark)
    world = World()
    world.attachment._plans.query = SparkQuery(spark, None)
    for number in range(COLD_BATCHES + 1):
        spark.documents.append(document(number, number, 1000))
        spark.known[number] = SparkJob(T0 + number, T0 + number + 0.5, (number,))
        world.now = T0 + number + 1
        world.attachment.cycle()
    assert not world.policy.seen
    return world, spark


def test_a_deferred_batch_is_no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 records came in the 6 s from 2 to 8, in a batch whose job the status store does not know of at first."""
    world, spark = watched(monkeypatch)
    spark.documents.append(document(3, 8.0, 1000))
    world.now = T0 + 9
    world.attachment.cycle()
    assert not world.policy.seen
    spark.known[3] = SparkJob(T0 + 8, T0 + 8.5, (3,))
    world.now = T0 + 10
    world.attachment.cycle()
    (found,) = world.policy.seen
    assert found.interval_s == 6.0 and found.rate == 100.0 and found["q"].busy_s == 2.0
    world.now = T0 + 14
    world.attachment.cycle()
    assert world.policy.seen[-1].rate == 0.0 and world.policy.seen[-1].interval_s == 6.0  # nothing since 8 s


def test_a_batch_that_ends_while_it_is_looked_for_is_no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, spark = watched(monkeypatch)
    spark.status["isTriggerActive"] = True

    def ends() -> None:
        spark.status = {"isDataAvailable": False, "isTriggerActive": False}
        spark.documents.append(document(3, 8.0, 1000))
        spark.known[3] = SparkJob(T0 + 8, T0 + 8.5, (3,))
        spark.after_progress = lambda: None

    spark.after_progress = ends
    world.now = T0 + 9
    world.attachment.cycle()
    assert not world.policy.seen
    world.attachment.cycle()
    assert [one.rate for one in world.policy.seen] == [100.0]


def test_a_limit_reaches_the_policy() -> None:
    world = World(8).warm()
    for _ in range(25):  # stages of 4 tasks while eight slots are there
        world.step()
    assert len(world.names) == 8 and world.policy.seen[-1]["q"].limit == 4
    assert world.policy.seen[0]["q"].limit is None


def test_a_limit_of_little_load_does_not_hold_under_much() -> None:
    """Two files a batch on six slots, then hundreds, which Spark packs into as many partitions as there are slots."""
    world = World(there=6).warm()
    for _ in range(12):
        world.step(stages=(BatchStage(2, 1.0),))
    assert world.policy.seen[-1]["q"].limit == 2
    world.policy.degrees.append(2)
    for _ in range(15):
        world.step(stages=(BatchStage(2, 1.0),))
    assert len(world.names) == 2 and world.policy.seen[-1]["q"].limit == 2
    world.step(stages=(BatchStage(2, 1.9),))
    assert world.policy.seen[-1]["q"].limit == 2
    world.step(stages=(BatchStage(2, 2.0),))
    assert world.policy.seen[-1]["q"].limit is None


def test_detach_leaves_as_many_executors_as_before_and_may_be_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "springtide.attach")
    world = World(8).warm()
    for _ in range(5):
        world.step()
    assert len(world.names) == 8
    world.attachment.detach()
    assert world.cluster.asked[-1] == 4 and world.names == ["0", "1", "2", "3"] and not world.attachment.active
    asked = list(world.cluster.asked)
    world.attachment.detach()
    assert world.cluster.asked == asked and caplog.messages.count("query q: detached") == 1
    fewer = World(1).warm()
    for _ in range(20):
        fewer.step()
    assert len(fewer.names) == 1
    with fewer.attachment:
        pass
    fewer.now += 10
    assert len(fewer.names) == 4


def test_a_dry_run_changes_nothing_and_tells_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "springtide")
    world = World(6, 6, 6, dry_run=True).warm()
    for _ in range(3):
        world.step()
    assert world.cluster.asked == [] and world.cluster.released == [] and world.attachment.wanted == 6
    assert [message for message in caplog.messages if "dry run" in message] == [
        "query q: dry run: degrees {'q': 4} would change to {'q': 6}: because 6"
    ]
    assert world.policy.seen[-1]["q"].degree == 4
    world.cluster.release(["3"])
    world.step()
    assert world.policy.seen[-1]["q"].degree == 3  # nothing is granted: what is there is what counts
    world.attachment.detach()
    assert world.cluster.asked == []


def test_two_queries_share_the_executors() -> None:
    world = World(3).warm()
    goal = Goal("wants", 2.0, 0.0, 1.0, Limits(2, 8), False, before=4, slots=4)
    other = MadeUpQuery()
    second = Attachment(other, InThread(Wants([5])), world.executors, goal, lambda: world.now, "another")
    world.step()  # 3, and nobody has decided that the second needs more than those that are there
    assert world.cluster.asked == [] and world.executors.there("q") == round(4 * 3 / 7)
    for number in range(COLD_BATCHES + 2):
        assert world.cluster.asked == []
        other.batches.append(batch(number, number, 1.0, 100))
        second.cycle()
    assert world.cluster.asked == [8] and world.executors.there("q") == round(4 * 3 / 8)  # 3 and 5
    second.detach()
    world.attachment.detach()
    assert world.cluster.asked[-1] == 4


def test_what_two_policies_leave_as_it_is_is_added_up() -> None:
    """Each has decided that its query needs all four slots."""
    world = World(4).warm()
    other = MadeUpQuery("p")
    second = Attachment(other, InThread(Wants()), world.executors, world.goal, lambda: world.now)
    world.step()
    for number in range(COLD_BATCHES + 2):
        assert world.cluster.asked == []
        other.batches.append(batch(number, number, 1.0, 100))
        second.cycle()
    assert world.cluster.asked == [8]


def test_a_policy_that_fails_changes_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(-1, -1, 6).warm()
    world.step()
    world.step()
    assert world.cluster.asked == [] and sum("failed" in message for message in caplog.messages) == 1
    world.step()
    assert world.cluster.asked == [6]


def test_advice_is_logged_once_and_retained(caplog: pytest.LogCaptureFixture) -> None:
    world = World().warm()
    for _ in range(6):
        world.step(in_jobs_s=0.1)
    assert [one.kind for one in world.attachment.advice] == ["driver"]
    assert sum("more executors cannot help (driver)" in message for message in caplog.messages) == 1
    for _ in range(5):
        world.step(in_jobs_s=0.9)
    assert world.attachment.advice == ()


def test_history_has_a_line_for_every_batch() -> None:
    world = World(6).warm()
    world.step(rows=300)
    world.query.batches.append(batch(world.number, world.now - T0, 1, 50))
    world.number, world.now = world.number + 1, world.now + 1
    world.step(2.0, rows=70)
    table = world.attachment.history()
    assert list(table["rows"]) == [300, 50, 70]
    assert list(table["reason"]) == ["because 6", "", ""]
    assert list(table["wanted"]) == [6, 6, 6] and table["executors"][0] == 4
    assert list(table["busy_s"]) == [2.0] * 3 and list(table["batch_s"]) == [1.0, 1.0, 2.0]
    assert table["time"][0].timestamp() == T0 + 4


def test_quiet_hours_leave_the_history_as_it_is() -> None:
    world = World().warm()
    world.step(rows=300)
    world.query.quiet = True

    def pass_time(decisions: int) -> None:
        for _ in range(decisions):
            world.now += 10
            world.attachment.cycle()

    pass_time(1_000)
    assert len(world.policy.seen) == 1_001  # it was asked all the time
    assert list(world.attachment.history()["rows"]) == [300]
    world.policy.degrees.append(2)
    pass_time(500)
    table = world.attachment.history()
    assert list(table["rows"]) == [300, 0] and list(table["wanted"]) == [4, 2] and table["reason"][1] == "because 2"
    assert table["time"][1].timestamp() == T0 + 4 + 10 * 1_001


@pytest.mark.parametrize("dry_run", [True, False])
def test_history_counts_executors_and_not_their_slots(dry_run: bool) -> None:
    world = World(cores=3, dry_run=dry_run).warm()
    world.step()
    assert list(world.attachment.history()["executors"]) == [4]


def test_history_without_pandas_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SetupError, match="pip install pandas"):
        World().attachment.history()


def test_it_ends_by_itself_with_the_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "springtide.attach")
    world = World(6).warm()
    world.step()
    caplog.clear()
    world.query.end = "it has failed: no more disk"
    world.attachment._loop._interval_s = 0.0
    world.attachment.start()
    world.attachment._loop._thread.join()
    assert not world.attachment.active and "query q: it has failed: no more disk" in caplog.messages
    assert caplog.messages[0] == "query q: attached, policy wants, target 2 s, 1 to 8 executors"
    assert world.cluster.asked == [6, 4]


# ---- the application's own executors


@pytest.mark.parametrize("waves", [(5,), (2, 3), (1, 1, 1, 1, 1)])
def test_executors_that_come_after_the_attachment_are_the_applications_own(waves: tuple[int, ...]) -> None:
    """A standalone application of six executors, attached to when the first was there: nobody said how many there may be."""
    world = World(most=None, there=1).warm()
    for wave in waves:
        for _ in range(wave):
            world.cluster.add()
        world.step()
    for _ in range(30):  # the policy wants nothing
        world.step()
    assert world.cluster.asked == [] and len(world.names) == 6 and world.attachment.wanted == 6
    seen = world.policy.seen[-1]
    assert (seen["q"].degree, seen.plan.slots, seen.slots) == (6, 6, 6)
    world.attachment.detach()
    assert world.cluster.asked == []  # nothing was changed, and a cluster that was asked for a number brings no more


def test_detach_requests_executors_that_came_after_the_attachment_too() -> None:
    world = World(most=None, there=1).warm()
    for _ in range(5):
        world.cluster.add()
    world.step()
    world.policy.degrees.append(2)
    for _ in range(20):
        world.step()
    assert len(world.names) == 2 and world.cluster.asked[-1] == 2
    world.attachment.detach()
    assert world.cluster.asked[-1] == 6


def test_what_a_policy_has_wanted_stays_when_the_applications_own_come() -> None:
    world = World(1, most=6, there=2).warm()
    world.step()  # wants 1 of 2; before the other goes, four more come
    for _ in range(4):
        world.cluster.add()
    for _ in range(20):
        world.step()
    assert len(world.names) == 1
    world.attachment.detach()
    assert world.cluster.asked[-1] == 6


def test_a_maximum_that_was_given_holds_for_those_that_come() -> None:
    world = World(most=4, there=1).warm()
    for _ in range(5):
        world.cluster.add()
    for _ in range(20):
        world.step()
    assert len(world.names) == 4 and world.policy.seen[-1].slots == 4
    world.attachment.detach()
    assert world.cluster.asked[-1] == 6


def test_what_came_after_a_change_is_not_the_applications_own() -> None:
    world = World(6).warm()
    for _ in range(5):
        world.step()
    world.cluster.add()
    world.step()
    assert len(world.names) == 7
    world.attachment.detach()
    assert world.cluster.asked[-1] == 4 and len(world.names) == 4


def test_a_dry_run_counts_those_that_come_too() -> None:
    world = World(6, dry_run=True, most=None, there=1).warm()
    for _ in range(5):
        world.cluster.add()
    world.step()
    assert world.attachment.wanted == 6 and world.policy.seen[-1].slots == 6


class Slow(MemoryCluster):
    """Lets nobody go yet, as a cluster manager that does not answer."""

    def release(self, names: Sequence[str]) -> None:
        self.released += names


@pytest.mark.parametrize("kind", [MemoryCluster, Slow])
def test_who_attaches_again_counts_neither_those_that_leave_nor_forgets_those_to_come(kind: type[MemoryCluster]) -> None:
    more = World(8, kind=kind).warm()
    for _ in range(5):
        more.step()
    more.policy.degrees.append(6)
    for _ in range(20):
        more.step()
    assert more.cluster.released == ["7", "6"]  # the fleet remembers it, and is to see what the cluster makes of it
    assert not any(one.leaving for one in more.executors.fleet.cluster.executors())
    more.attachment.detach()
    assert more.executors.own() == 4 and more.cluster.released == ["7", "6", "4", "5"]
    more.attach()
    more.warm()
    more.step()
    assert more.executors.count == 4 and more.executors.before == 4
    fewer = World(1, starting_s=30.0).warm()
    for _ in range(60):
        fewer.step()
    fewer.attachment.detach()
    assert len(fewer.names) == 1 and fewer.executors.own() == 4


def test_executors_not_released_at_the_end_are_released_again_by_the_next() -> None:
    world = World(6, kind=Slow).warm()
    for _ in range(5):
        world.step()
    world.attachment.detach()
    assert world.cluster.released == ["4", "5"] and len(world.names) == 6
    world.attach()
    world.warm()
    for _ in range(26):
        world.step()
    assert world.cluster.released == ["4", "5"] and world.executors.count == 4  # for 29 s
    world.step()
    assert sorted(world.cluster.released) == ["4", "4", "5", "5"]


def test_an_application_can_be_attached_to_again() -> None:
    world = World(8).warm()
    for _ in range(5):
        world.step()
    world.attachment.detach()
    assert world.cluster.asked == [8, 4]
    world.attach(8)
    world.warm()
    world.step()
    assert world.cluster.asked == [8, 4, 8] and world.attachment.wanted == 8
    world.attachment.detach()
    assert world.cluster.asked == [8, 4, 8, 4] and world.names == ["0", "1", "2", "3"]


@pytest.mark.parametrize("policy", ["tide", "ds2", "flink", "spark-ratio", "threshold", "queueing"])
def test_real_policies_scale_out_under_load_and_in_after_it(policy: str) -> None:
    """300 then 3,000 then 0 records a second of 2 ms each: 0.6 slots of work, then 6, then none."""
    settings = {"scaling_interval": 5} if policy == "spark-ratio" else {}
    world = World(starting_s=2.0, most=12, policy=chosen(policy, settings, (), ["q"]).policy)
    world.attachment._plans.goal = replace(world.attachment._plans.goal, trigger_s=1.0, target_s=4.0)
    counts = []
    for load in (300, 3_000, 300):
        for _ in range(60):
            slots = max(1, len(world.names))
            took = min(3.0, 0.2 + load * 0.002 / slots)
            world.query.batches.append(batch(world.number, world.now - T0, took, load, stages=(BatchStage(24, load * 0.002),)))
            world.number, world.now = world.number + 1, world.now + 1.0
            world.attachment.cycle()
        counts.append(len(world.names))
    assert counts[1] > counts[0] and counts[2] < counts[1], counts


# ---- the policy's own process


def moody(folder: Path) -> RemotePolicy:
    """Waited for as long as a slow machine takes, and no longer than a second once it is told to hang."""
    spec = Spec("control.plane.policies:Moody", {"folder": str(folder)}, (), ("q",))
    return RemotePolicy(spec, Patience(answer_s=60.0, first_s=60.0, hang_s=60.0, pause_s=0.01, state_s=0.0, end_s=60.0))


def hang(folder: Path) -> None:
    (folder / "mood.part").write_text("hang")
    (folder / "mood.part").rename(folder / "mood")


def until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_policy_that_hangs_is_started_again_and_ends_with_the_attachment(tmp_path: Path) -> None:
    remote = moody(tmp_path)
    world = World(policy=remote).warm()
    world.step()
    assert world.attachment.wanted == 1  # Moody wants as many as it has decided times
    patience = remote._patience
    hang(tmp_path)
    remote._patience = replace(patience, hang_s=1.0)
    world.step()
    until(lambda: remote.restarts > 0)
    assert world.attachment.wanted == 1
    remote._patience = patience
    while world.attachment.wanted == 1:
        world.step()
    assert world.attachment.wanted == 2  # it knows what it had learned
    pid = remote.pid
    assert pid is not None and not gone(pid)
    world.attachment.detach()
    assert gone(pid) and remote.pid is None


APPLICATION = """
import sys
from pathlib import Path
from spark.attach import test_attach as t
folder = Path(sys.argv[1])
world = t.World(policy=t.moody(folder)).warm()
world.step()
t.hang(folder)
world.query.batches.append(t.batch(world.number, world.now - t.T0, 1.0, 100))
world.attachment.start()
t.until(lambda: not (folder / "mood").exists())
print(world.attachment._decider._host.pid)
"""


@pytest.mark.long
def test_an_application_ends_though_its_policy_hangs(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", APPLICATION, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout)
    until(lambda: gone(pid))


def test_what_another_process_cannot_make_decides_in_the_attachments_thread() -> None:
    here: Any = Wants()
    assert isinstance(hosted(Spec("__main__:Mine"), here), InThread)
    assert isinstance(hosted(Spec("static", {"degree": object()}), here), InThread)
    assert not Spec("tide", guards=("bounds:most=2", "__main__:Guard")).movable
    assert Spec("control.plane.policies:Moody", {"degree": 2, "late_price": np.float64(0.5)}, ("bounds:most=2",)).movable


# ---- beginning, with a context and a query that are made up


@dataclass
class Application:
    """A standalone application whose executors are remembered, as far as ``begin`` looks at it."""

    settings: dict[str, str] = field(default_factory=lambda: {"spark.executor.cores": "1"})
    cluster: MemoryCluster = field(default_factory=lambda: MemoryCluster(lambda: T0))
    master: str = "spark://host:7077"
    defaultParallelism: int = 4
    made: list[Attachment] = field(default_factory=list)

    def getConf(self) -> Any:
        return SimpleNamespace(getAll=lambda: list(self.settings.items()), get=self.settings.get)

    def attach(self, query: Any, **given: Any) -> Attachment:
        """As ``springtide.attach`` does, or, with nothing given, as ``springtide submit``."""
        self.made.append(begin(query, given, lambda: T0))
        return self.made[-1]


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    made = Application()
    made.settings["spark.springtide.interval"] = "1h"  # the attachments' threads only wait
    session = SimpleNamespace(sparkContext=made, conf=SimpleNamespace(getAll={}, get=lambda _, default: default))
    monkeypatch.setattr(status, "QuerySession", lambda _: session)
    monkeypatch.setattr(entry, "SparkQuery", lambda query, _: MadeUpQuery(query.name))
    monkeypatch.setattr(clusters, "cluster_of", lambda *_, warm: made.cluster)
    monkeypatch.setattr(entry, "hosted", lambda _, here: InThread(here))
    yield made
    for one in made.made:
        one.detach()


RUNS = itertools.count()


def query(name: str = "theirs") -> Any:
    return SimpleNamespace(name=name, id="1", isActive=True, runId=f"run {next(RUNS)}")


def test_a_query_is_attached_to_once(application: Application) -> None:
    theirs, other = query(), query("other")
    first = application.attach(theirs, max_executors=4)
    with pytest.raises(OptionError, match=r"query theirs is attached to already.*detach\(\)"):
        application.attach(theirs, max_executors=6)
    application.attach(other, max_executors=6)
    assert first.active
    first.detach()
    assert application.attach(theirs, max_executors=6).active


def test_two_threads_that_attach_first_share_the_executors(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def slow(*_: Any, warm: bool) -> MemoryCluster:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # the other thread is here too, unless it is kept out
        return application.cluster

    monkeypatch.setattr(clusters, "cluster_of", slow)
    queries = [query(), query("other")]
    threads = [threading.Thread(target=application.attach, args=(one,), kwargs={"max_executors": 4}) for one in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = application.made
    assert first._executors is second._executors


def test_limits_are_refused_by_the_names_of_the_options(application: Application) -> None:
    with pytest.raises(OptionError, match=r"min_executors=5 is not allowed.* 3: .*raise max_executors"):
        application.attach(query(), min_executors=5, max_executors=3)
    application.settings |= {"spark.cores.max": "8", "spark.executor.cores": "2"}
    with pytest.raises(OptionError, match=r"^min_executors=5 executors of 2 cores each take 10 cores"):
        application.attach(query(), min_executors=5)
    with pytest.raises(OptionError, match=r"^max_executors=5 .*lower max_executors, or raise spark\.cores\.max"):
        application.attach(query(), max_executors=5)
    application.settings["spark.executor.instances"] = "10"  # of which a standalone cluster brings four
    assert application.attach(query(), target="2s")._plans.goal.limits == Limits(1, 4, 2)


def test_what_the_application_attaches_replaces_what_submit_did(application: Application) -> None:
    theirs = query()
    by_submit = application.attach(theirs)
    with pytest.raises(OptionError, match="did you mean 'tide'"):
        application.attach(theirs, policy="tiide")
    assert by_submit.active  # what is refused changes nothing
    own = application.attach(theirs, max_executors=7)
    assert own.active and not by_submit.active
    shared = own._executors
    assert shared is by_submit._executors and shared.fleet.limits.most == 7
    assert application.cluster.asked == []
    with pytest.raises(OptionError, match="already"):
        application.attach(theirs, max_executors=8)


def test_submit_stays_away_from_what_the_application_attached_to(application: Application) -> None:
    theirs = query()
    own = application.attach(theirs, max_executors=7)
    assert application.attach(theirs) is own and own._executors.fleet.limits.most == 7
    own.detach()
    assert application.attach(theirs) is not own


def test_only_a_maximum_that_nobody_gave_grows(application: Application) -> None:
    application.cluster.add()
    first, second = application.attach(query(), target="2s"), application.attach(query(), max_executors=3)
    assert (first._plans.goal.limits.most, first._plans.goal.before) == (1, 1)
    for _ in range(4):
        application.cluster.add()
    first.cycle()
    second.cycle()
    assert (first._plans.goal.limits.most, first._plans.goal.before) == (5, 5)
    assert (second._plans.goal.limits.most, second._plans.goal.before) == (3, 5)


def test_a_policy_decides_in_a_process_of_its_own(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "hosted", hosted)
    attachment = application.attach(query(), policy="tide")
    remote = attachment._decider._host
    assert isinstance(remote, RemotePolicy) and remote.name == "tide"
    until(lambda: remote.pid is not None)
    pid = remote.pid
    attachment.detach()
    assert pid is not None and gone(pid)


# ---- submit


def test_the_command_line_is_taken_apart(tmp_path: Path) -> None:
    parsed = submitting.parse(
        ["--policy", "ds2", "--master=spark://h:1", "-v", "--set", "margin=0.2", "--conf", "spark.decommission.enabled=false",
         "--max-executors=6", "--guard", "cooldown", "--guard", "bounds:most=4", "--dry-run", "--name", "my app", "app.py",
         "--policy", "theirs", "a b"]
    )  # fmt: skip
    assert parsed.settings == {
        "policy": "ds2", "policy.margin": "0.2", "max-executors": "6", "guards": "cooldown; bounds:most=4", "dry-run": "true"
    }  # fmt: skip
    assert parsed.spark == ("--master", "spark://h:1", "-v", "--conf", "spark.decommission.enabled=false", "--name", "my app")
    assert parsed.app == ("app.py", "--policy", "theirs", "a b")
    line = submitting.command(parsed, tmp_path, {"spark.storage.decommission.rddBlocks.enabled": "false"})
    assert line[0] == str(tmp_path / "bin" / "spark-submit") and line[-4:] == list(parsed.app)
    assert Path(line[-5]).name == "launch.py"
    assert "spark.springtide.policy=ds2" in line and "spark.springtide.guards=cooldown; bounds:most=4" in line
    assert "spark.storage.decommission.enabled=true" in line
    assert "spark.decommission.enabled=true" not in line  # the user's own word
    assert not any("rddBlocks" in part for part in line)  # nor what is in the user's defaults


def test_settings_in_a_file_of_properties_are_the_users(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# mine\nspark.decommission.enabled   false\nspark.x=1\n")
    assert submitting.defaults((), tmp_path, {"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.decommission.enabled": "false", "spark.x": "1"
    }  # fmt: skip
    (tmp_path / "own").write_text("spark.y 2\n")
    assert submitting.defaults(("--properties-file", str(tmp_path / "own")), tmp_path, {}) == {"spark.y": "2"}
    assert submitting.defaults((), tmp_path / "nowhere", {}) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--master", "yarn"], "no application"),
        (["--target"], "needs a value"),
        (["app.jar"], "not a Python file"),
        (["missing.py"], "no file"),
        (["--policy", "tiide", "APP"], "did you mean 'tide'"),
        (["--set", "late_prise=3", "APP"], "late_price"),
        (["--target", "soon", "APP"], "not a duration"),
        (["--min-executors", "3", "--max-executors", "2", "APP"], "below --min-executors"),
        (["--deploy-mode", "cluster", "APP"], "springtide.attach(query)"),
        (["--conf", "spark.dynamicAllocation.enabled=True", "APP"], "set it to false"),
        (["--properties-file", "cluster.conf", "APP"], "springtide.attach(query)"),
        (["--properties-file", "dynamic.conf", "APP"], "set it to false"),
    ],
)
def test_submit_refuses_before_spark_starts(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app.py"
    app.write_text("")
    (tmp_path / "cluster.conf").write_text("spark.submit.deployMode cluster\n")
    (tmp_path / "dynamic.conf").write_text("spark.dynamicAllocation.enabled=true\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("Spark was started"))
    done = CliRunner().invoke(submitting.submit, [str(app) if word == "APP" else word for word in arguments])
    assert done.exit_code == 2 and words in done.output, done.output


def test_the_command_line_goes_above_the_file_of_properties(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("")
    line = ["--deploy-mode", "client", "--conf", "spark.dynamicAllocation.enabled=false", str(app)]
    file = {"spark.submit.deployMode": "cluster", "spark.dynamicAllocation.enabled": "true"}
    submitting.check(submitting.parse(line), file)
    with pytest.raises(OptionError, match="deployMode"):
        submitting.check(submitting.parse(line[2:]), file)


def test_submit_becomes_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text("")
    (tmp_path / "app.py").write_text("")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    ran: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *given: ran.append(given))
    done = CliRunner().invoke(submitting.submit, ["--target", "2s", "--master", "yarn", str(tmp_path / "app.py"), "x y"])
    assert done.exit_code == 0, done.output
    program, line, environ = ran[0]
    assert program == line[0] == str(tmp_path / "bin" / "spark-submit") and line[-1] == "x y"
    assert environ["PYSPARK_DRIVER_PYTHON"] == sys.executable and "spark.springtide.target=2s" in line


def test_an_application_runs_as_if_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "app.py").write_text(
        "import sys, beside, builtins\nbuiltins.told = (__name__, __file__, sys.argv, beside.WORD)\nsys.exit(7)\n"
    )
    monkeypatch.setattr(launch, "attach_to_all", lambda: None)
    monkeypatch.setattr(launch, "_log_to_stderr", lambda: None)
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    app = str(tmp_path / "app.py")
    with pytest.raises(SystemExit) as ended:
        launch.launch([app, "--own", "x"])
    assert ended.value.code == 7
    assert builtins.told == ("__main__", app, [app, "--own", "x"], "beside")  # type: ignore[attr-defined]
    del builtins.told  # type: ignore[attr-defined]


def test_a_query_runs_on_when_it_cannot_be_attached_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = SimpleNamespace(name="mine", id="1", isActive=False, runId="r")
    assert launch.attaching(lambda: query)() is query
    assert "mine runs, but is not attached to: query mine is not active" in caplog.text
