"""Closing batches: they advance the time of a bounded run to its last watermark.

The times of a batch's records take effect in the next batch, and one batch later behind each stateful operator. When no
more records come, windows that the last records close would stay open. So batches without records follow the query's last
batch until nothing is due: usually one, and one more for each stateful operator in a row.

A closing batch takes the steps that Spark takes for any batch: the offsets are logged, the batch runs and writes its
manifest, its commit is logged. After a crash in between, Spark finds offsets without a commit and repeats that batch.
"""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from springtide.model.state import moment
from springtide.processors.aggregating import CLOSE
from springtide.processors.processor import Clock
from springtide.spark.driver.batch import BatchRefused, BatchRunner
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.last_batch import LastBatch
from springtide.spark.private.query import empty_like
from springtide.spark.state.book import StateBook
from springtide.spark.state.per_key import NEXT
from springtide.spark.state.reading import reading
from springtide.spark.state.stepping import StateLayout
from springtide.spark.task.context import BATCH_PROPERTY

log = logging.getLogger("springtide.spark")

MAX_CLOSING_BATCHES = 1_000
"""Limits the closing batches of a run. A timer that sets its successor fires once a batch: an hourly timer takes 720 batches
after the watermark has jumped by a month, and a timer that is due again at once would never end."""


@dataclass(frozen=True)
class Open:
    """The open windows and timers of an operator. Times are microseconds since 1970."""

    windows: int
    timers: int  # keys with a timer, summed over both clocks
    event: int | None  # the next window or timer in event time
    processing: int | None

    def __bool__(self) -> bool:
        return bool(self.windows or self.timers)

    def is_due(self, watermark: int | None, now: int) -> bool:
        by_event = self.event is not None and watermark is not None and self.event <= watermark
        return by_event or (self.processing is not None and self.processing <= now)

    def to_json(self) -> dict[str, Any]:
        first = self.event if self.event is not None else self.processing
        return {"windows": self.windows, "timers": self.timers, "first": None if first is None else moment(first).isoformat()}


class Closed(NamedTuple):
    """What stays open, by operator; and whether the run ended before time had reached the last watermark."""

    open: dict[str, Open]
    interrupted: bool = False


def close(
    checkpoint: Checkpoint, state: StateBook, timed: Mapping[str, StateLayout], run: Callable[[int], bool], now_us: int,
    stopped: Callable[[], bool],
) -> Closed:  # fmt: skip
    """Run batches without records until nothing is due.

    ``timed``: the operators with timers. ``run`` runs a batch to its manifest; False if it was given up. Processing-time timers
    are due up to ``now_us``, so that a timer that renews itself does not prevent the end of the run.
    """
    before = None
    for ran in itertools.count():
        opened = {name: waiting(checkpoint.root, name, layout, now_us) for name, layout in timed.items()}
        due = [name for name, waits in opened.items() if waits.is_due(state.last_watermark(name), now_us)]
        progress = opened, {name: state.watermark(name) for name in timed}
        manifest = checkpoint.last_manifest()
        if not due or progress == before or manifest is None:
            break
        if stopped():
            return Closed(opened, interrupted=True)
        if checkpoint.logs.has_state or ran == MAX_CLOSING_BATCHES:
            _warn(due, checkpoint.root, ran)
            break
        before = progress
        checkpoint.check_fence(checkpoint.epoch)
        batch = checkpoint.logs.begin_after(int(manifest["batch"]), now_us // 1000)
        if not run(batch):
            return Closed(opened, interrupted=True)
        checkpoint.logs.commit(batch)
    return Closed(opened)


def run(runner: BatchRunner, frame: DataFrame, batch: int, last_batch: LastBatch) -> bool:
    """Run a closing batch; False if it was given up. ``frame``: the input of the query.

    The batch runs in a thread of its own: the caller watches it, because timers may hang, and has its own local properties.
    """
    context, ended, errors = frame.sparkSession.sparkContext, threading.Event(), list[BaseException]()
    tag = f"springtide-closing-{uuid.uuid4().hex[:8]}"

    def close() -> None:
        try:
            context.addJobTag(tag)
            context.setLocalProperty(BATCH_PROPERTY, str(batch))
            runner.close(empty_like(frame), batch)
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=close, name="springtide-closing", daemon=True).start()
    if not last_batch.outwait(runner, lambda: not ended.wait(0.1), lambda: context.cancelJobsWithTag(tag), patient=True):
        return False
    if errors and isinstance(errors[0], BatchRefused):
        return False
    if errors:
        raise errors[0]
    return True


def _warn(due: Sequence[str], root: Path, ran: int) -> None:
    names = ", ".join(map(repr, due))
    if ran == MAX_CLOSING_BATCHES:
        log.warning(
            "after %d batches without records, timers of %s are still due: each sets another. They stay open", ran, names
        )
    else:
        log.warning(
            "windows or timers of %s are due but stay open until more records come: checkpoint %s has state of Spark's own,"
            " with one version for each batch, so Springtide cannot add batches",
            names, root,
        )  # fmt: skip


def waiting(checkpoint: Path, operator: str, layout: StateLayout, now_us: int) -> Open:
    """The open windows and timers of an operator after the last batch. Reads all its state."""
    with reading(checkpoint, operator) as state:
        alarms = state.alarms(None if layout.ttl_us is None else now_us - layout.ttl_us)
    windows = alarms.get(CLOSE)
    event, processing = (alarms.get(NEXT[clock]) for clock in (Clock.EVENT, Clock.PROCESSING))
    by_event = [alarm.first for alarm in (windows, event) if alarm is not None]
    return Open(
        windows.keys if windows is not None else 0,
        sum(alarm.keys for alarm in (event, processing) if alarm is not None),
        min(by_event, default=None),
        processing.first if processing is not None else None,
    )
