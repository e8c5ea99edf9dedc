"""Explains why more executors cannot help: the cause, the numbers, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from springtide.policy.scale.tide.replay import BATCH_LATENCY
from springtide.spark.attach.batches import SKEW, QueryBatch

LAST = 5
"""Look at this many recent batches. Advice has to apply to most of them, and to at least three."""
OUTSIDE = 0.5
"""The driver is the bottleneck if at least this part of a batch is outside of jobs."""
SHORT = 0.25
"""Ignore batches that take less than this part of the target."""
MOST_WORK = 0.5
"""Ignore stages with less than this part of the batch's work."""


@dataclass(frozen=True)
class Advice:
    """``kind``: skew, partitions, driver, state or target. ``text``: the numbers, and what to change."""

    kind: str
    text: str


def advise(batches: Sequence[QueryBatch], most_slots: int, target_s: float, fixed_s: float) -> tuple[Advice, ...]:
    """The advice for the last long batches with records. ``fixed_s``: the time that a batch takes beside its work."""
    recent = [batch for batch in batches if batch.rows and batch.duration_s >= SHORT * target_s][-LAST:]
    found = []
    for kind, rule in RULES.items():
        texts = [text for batch in recent if (text := rule(batch, most_slots)) is not None]
        if len(texts) >= 3 and 2 * len(texts) > len(recent):
            found.append(Advice(kind, texts[-1]))
    if len(recent) >= 3 and BATCH_LATENCY * fixed_s > target_s:
        found.append(Advice("target", _target(target_s, fixed_s)))
    return tuple(found)


def _target(target_s: float, fixed_s: float) -> str:
    return (
        f"the target is {target_s:.2f} s, and a batch takes {fixed_s:.2f} s beside its work, so that records take"
        f" {BATCH_LATENCY * fixed_s:.2f} s with any number of executors. Raise the target, or shorten what is fixed: fewer"
        " stages, fewer partitions, a faster checkpoint"
    )


def _skew(batch: QueryBatch, most_slots: int) -> str | None:
    stage = batch.main_stage
    if stage is None or not stage.skewed or stage.longest_s is None or stage.longest_s < SHORT * batch.duration_s:
        return None
    return (
        f"the longest of {stage.tasks} tasks took {stage.longest_s:.2f} s, the median {stage.median_s:.2f} s, in a batch of"
        f" {batch.duration_s:.2f} s: the others wait for it, whatever the number of executors. Some keys or partitions have"
        f" more than {SKEW:g} times the work of others: spread them, such as by a salted key, or repartition() before the work"
    )


def _partitions(batch: QueryBatch, most_slots: int) -> str | None:
    stage = batch.main_stage
    if stage is None or stage.tasks > 1 or most_slots < 2 or stage.work_s < MOST_WORK * (batch.busy_s or 0.0):
        return None
    return (
        f"{stage.work_s:.2f} s of a batch's {batch.busy_s:.2f} s of work were done by a single task, so one executor does it"
        " and the others wait. Give the source more partitions (Kafka: more of the topic's, or minPartitions; files: more or"
        " smaller ones; rate: numPartitions), or repartition() before the work"
    )


def _driver(batch: QueryBatch, most_slots: int) -> str | None:
    if batch.in_jobs_s is None or batch.duration_s - batch.in_jobs_s < OUTSIDE * batch.duration_s:
        return None
    outside = batch.duration_s - batch.in_jobs_s
    return (
        f"{outside:.2f} s of a batch's {batch.duration_s:.2f} s passed outside of jobs, in the driver: planning, listing what"
        " is new, writing the checkpoint. Executors have no part in it: batch less often (a longer trigger), look for slow"
        " checkpoint storage or many small files, or collect less in foreachBatch"
    )


def _state(batch: QueryBatch, most_slots: int) -> str | None:
    partitions = batch.state_partitions
    if partitions is None or partitions >= most_slots:
        return None
    return (
        f"the query's state is in {partitions} partitions, so its stage uses no more than {partitions} of up to {most_slots}"
        " slots. The checkpoint has fixed that number: start from a new checkpoint with a higher spark.sql.shuffle.partitions,"
        " or repartition the state while the query is stopped"
    )


RULES: Mapping[str, Callable[[QueryBatch, int], str | None]] = {
    "skew": _skew,
    "partitions": _partitions,
    "driver": _driver,
    "state": _state,
}
