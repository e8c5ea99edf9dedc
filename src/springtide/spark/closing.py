"""Closing batches: they bring the time of a bounded run to its last watermark.

The times of a batch's records count from the next batch on, and one batch later behind each stateful operator. When no
more records come, windows that the last of them have closed would stay open. So batches without records follow the query's
last one, as many as it takes until nothing is due: as a rule one, and one more for each stateful operator in a row.

A closing batch is a batch like any other. Its steps are those of Spark: the offsets are logged, the batch runs and writes its
manifest, its commit is logged. After a crash in between, Spark finds offsets without a commit and runs that batch again.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from springtide.model.state import moment
from springtide.processors.aggregating import CLOSE
from springtide.processors.processor import Clock
from springtide.spark.checkpoint import Checkpoint
from springtide.spark.durable import write_whole
from springtide.spark.state.book import StateBook
from springtide.spark.state.per_key import NEXT
from springtide.spark.state.reading import reading
from springtide.spark.state.stepping import Kept

log = logging.getLogger("springtide.spark")

MOST_BATCHES = 1_000
"""Limits the closing batches of a run. A timer that sets its successor is called once a batch: an hourly one takes 720 batches
where the watermark has jumped by a month, and one that sets itself again at once would never end."""
FIRST_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark logs for the commit of a batch, where the query has no watermark of Spark's own."""


@dataclass(frozen=True)
class Open:
    """What an operator still waits for. Times are microseconds since 1970, None where there is nothing."""

    windows: int
    timers: int  # keys that have one, by each clock
    event: int | None
    processing: int | None

    def __bool__(self) -> bool:
        return bool(self.windows or self.timers)

    def is_due(self, watermark: int | None, now: int) -> bool:
        by_event = self.event is not None and watermark is not None and self.event <= watermark
        return by_event or (self.processing is not None and self.processing <= now)

    def to_json(self) -> dict[str, Any]:
        first = self.event if self.event is not None else self.processing
        return {
            "windows": self.windows,
            "timers": self.timers,
            "first": None if first is None else moment(first).isoformat(),
        }


class SparkLogs:
    """Spark's logs of offsets and of commits: a text file for each batch, named by its number."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._root = checkpoint.root / "spark"

    @property
    def has_state(self) -> bool:
        """Whether Spark has state of its own, as of a DataFrame with an aggregation: each batch has a version of it."""
        return (self._root / "state").is_dir()

    def begin(self, after: int, at_ms: int) -> int:
        """Log the offsets of the batch after a committed one: the same offsets, at a later time. Returns its number.

        A query that was stopped may lack the commit of its last batch, and may have begun one more.
        """
        self._checkpoint.check_fence(self._checkpoint.epoch)
        self.commit(after)
        batch = after + 1
        if self._checkpoint.begun() < batch:
            version, metadata, *offsets = self._file("offsets", after).read_text(encoding="utf-8").split("\n")
            described = json.loads(metadata)
            described["batchTimestampMs"] = max(at_ms, described["batchTimestampMs"] + 1)  # no two batches have one time
            text = [version, json.dumps(described, separators=(",", ":")), *offsets]
            write_whole(self._file("offsets", batch), "\n".join(text))
        return batch

    def commit(self, batch: int) -> None:
        """Log the commit of a batch, as that of the batch before, unless that was done."""
        file, before = self._file("commits", batch), self._file("commits", batch - 1)
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_whole(file, before.read_text(encoding="utf-8") if before.exists() else FIRST_COMMIT)

    def _file(self, log: str, batch: int) -> Path:
        return self._root / log / str(batch)


class Closed(NamedTuple):
    """What stays open, by operator; and whether the run was to end before time had come to the last watermark."""

    open: dict[str, Open]
    interrupted: bool = False


def close(
    checkpoint: Checkpoint, state: StateBook, timed: Mapping[str, Kept], run: Callable[[int], None], now_us: int,
    stopped: Callable[[], bool],
) -> Closed:  # fmt: skip
    """Run batches without records until nothing is due.

    ``timed``: the operators with timers. ``run`` runs a batch to its manifest. By the clock, timers are due that come until
    ``now_us``: one that is set again whenever it comes does not keep the run from its end.
    """
    logs, before = SparkLogs(checkpoint), None
    for ran in itertools.count():
        opened = {name: waiting(checkpoint.root, name, kept, now_us) for name, kept in timed.items()}
        due = [name for name, one in opened.items() if one.is_due(state.last_watermark(name), now_us)]
        progress = opened, {name: state.watermark(name) for name in timed}
        manifest = checkpoint.last_manifest()
        if not due or progress == before or manifest is None:
            break
        if stopped():
            return Closed(opened, interrupted=True)
        if logs.has_state or ran == MOST_BATCHES:
            _warn(due, checkpoint.root, ran)
            break
        before = progress
        batch = logs.begin(int(manifest["batch"]), now_us // 1000)
        run(batch)
        logs.commit(batch)
    return Closed(opened)


def _warn(due: Sequence[str], root: Path, ran: int) -> None:
    names = ", ".join(map(repr, due))
    if ran == MOST_BATCHES:
        log.warning(
            "after %d batches without records, timers of %s are still due: each sets another. They stay open", ran, names
        )
    else:
        log.warning(
            "windows or timers of %s are due, and wait for the next records: Spark has state of its own in checkpoint %s, of"
            " which every batch has a version, so that Springtide cannot add batches",
            names, root,
        )  # fmt: skip


def waiting(checkpoint: Path, operator: str, kept: Kept, now_us: int) -> Open:
    """What an operator waits for after the last batch. All its state is read for it."""
    with reading(checkpoint, operator) as state:
        alarms = state.alarms(None if kept.ttl_us is None else now_us - kept.ttl_us)
    windows = alarms.get(CLOSE)
    event, processing = (alarms.get(NEXT[clock]) for clock in (Clock.EVENT, Clock.PROCESSING))
    by_event = [alarm.first for alarm in (windows, event) if alarm is not None]
    return Open(
        windows.keys if windows is not None else 0,
        sum(alarm.keys for alarm in (event, processing) if alarm is not None),
        min(by_event, default=None),
        processing.first if processing is not None else None,
    )
