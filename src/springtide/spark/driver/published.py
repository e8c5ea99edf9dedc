"""Publishes committed batches to the sinks of ``model/publisher.py``, and waits for those that cannot be reached.

A sink stores a mark of how far it is published. ``disagreement`` decides at a start whether the mark fits the checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from springtide.errors import CheckpointError
from springtide.model.publisher import Guarantee, Mark, Part, PublishedSink, Publisher, SinkUnavailable
from springtide.model.topology import Topology
from springtide.once import Once
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.staged import Output, check_waiting
from springtide.spark.shared.remedies import ANEW, ways_out

log = logging.getLogger("springtide.spark")

RETRY_S = 1.0
"""The pause before a sink that could not be reached is tried again."""
GRACE_S = 4.0
"""A publication that has begun may go on for this time after the run has to end. Less than half of the ten seconds after which
a batch without progress is given up."""

T = TypeVar("T")


class Unpublished(Exception):
    """The run has to end while a sink cannot be reached. The next start publishes the batch."""


@dataclass(frozen=True)
class Expected:
    """What a checkpoint knows of a sink: the ``last`` committed batch, and whether Spark has logged its commit (``finished``),
    by which it was published; the last batch ``at`` which the sink had output, and the last one ``before`` the last batch,
    -1 for none and None if it is not known. ``replayed``: the batch that Spark will repeat as it was, if any."""

    last: int
    finished: bool
    at: int
    before: int | None
    replayed: int | None

    @property
    def is_settled(self) -> bool:
        """Whether the sink has all output of the committed batches."""
        return self.finished or self.at < self.last


def disagreement(mark: Mark | None, expected: Expected) -> str | None:
    """What is wrong with the mark of a sink; None if it fits. A mark that is missing is only wrong if the checkpoint does not
    know by itself whether its last batch was published."""
    if mark is None:
        unsure = f"the commit of batch {expected.last} is not finished, and the mark would say whether the sink has that batch"
        return None if expected.is_settled else f"is gone: {unsure}"
    if mark.batch > expected.last:
        if mark.batch == expected.replayed:  # its commit was taken back after it was published
            return None
        return f"is at batch {mark.batch}, but the last batch of the checkpoint is {expected.last}: the checkpoint is older"
    allowed = {Mark(expected.at)}
    if not expected.is_settled:
        allowed |= {Mark(expected.at, complete=False), Mark(mark.batch if expected.before is None else expected.before)}
    if mark in allowed:
        return None
    part = "" if mark.complete else "a part of "
    return f"is at {part}batch {mark.batch}, but the checkpoint has published batch {expected.at}: the sink lost output"


@dataclass
class Target:
    """A published sink of the topology."""

    name: str
    sink: PublishedSink
    schema: pa.Schema
    publisher: Publisher | None = None
    done: int = -1  # the last batch that is published completely
    away: Once = field(default_factory=Once)


class Publications:
    """The published sinks of a run. ``over``: whether the run has to end now, even if records wait."""

    def __init__(self, topology: Topology, over: Callable[[], bool]) -> None:
        self._over, self._over_since = over, 0.0
        self._targets = {
            operator.name: Target(operator.name, operator.sink, topology.input_schema(operator))
            for operator in topology.sinks
            if isinstance(operator.sink, PublishedSink)
        }
        self._outdated: list[Output] = []  # published files of the last batch
        self.unpublished: int | None = None  # the committed batch that a sink does not have at the end of the run
        self._fence: Callable[[], None] = lambda: None

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Make publishers that fence all earlier ones, and check their marks. Waits for sinks that cannot be reached."""
        epoch = checkpoint.epoch
        self._fence = lambda: checkpoint.check_fence(epoch)
        self._outdated = []
        for target in self._targets.values():
            self._close(target)
            identity = f"{checkpoint.identity}-{target.name}"
            target.publisher = publisher = target.sink.publisher(identity, target.schema, self._is_hopeless)
            mark = self._reached(target, publisher.prepare)
            self._agree(target, publisher, mark, _expected(checkpoint, target.name))

    def _agree(self, target: Target, publisher: Publisher, mark: Mark | None, expected: Expected) -> None:
        if target.sink.guarantee is not Guarantee.EXACTLY_ONCE:
            target.done = expected.last if expected.is_settled else expected.last - 1
            return
        wrong = disagreement(mark, expected)
        if wrong is not None:
            raise CheckpointError(
                f"sink {target.name!r}: its mark, {publisher.place}, {wrong}; output could be lost or repeated."
                f" {ways_out(*_remedies(mark, expected, publisher.place), ANEW)}"
            )
        if mark is None:
            if expected.at >= 0:
                log.warning(
                    "sink %r: its mark, %s, is gone; it is made anew, as the checkpoint knows that batch %d is published",
                    target.name, publisher.place, expected.last,
                )  # fmt: skip
            self._reached(target, lambda: publisher.begin(expected.at))
            mark = Mark(expected.at)
        target.done = mark.batch if mark.complete else mark.batch - 1

    def in_tasks(self) -> dict[str, PublishedSink]:
        """The declarations as tasks get them."""
        return {t.name: t.publisher.in_tasks(t.sink) for t in self._targets.values() if t.publisher is not None}

    def check(self, batch: int, outputs: Sequence[Output]) -> None:
        """Fail if a file that has to be published differs from its receipt."""
        for output in outputs:
            target = self._targets.get(output.receipt.sink)
            if target is not None and target.done < batch:
                check_waiting(output)

    def publish(self, batch: int, outputs: Sequence[Output]) -> None:
        """Publish a committed batch. Its files stay until the next one, as Spark logs the commit only after this call."""
        for output in self._outdated:
            output.staged.unlink(missing_ok=True)
        self._outdated = []
        for target in self._targets.values():
            own = sorted((o for o in outputs if o.receipt.sink == target.name), key=lambda output: output.receipt.name)
            if own and target.done < batch:
                parts = [Part(n, o.staged, o.receipt.rows, o.receipt.crc32 or 0) for n, o in enumerate(own)]
                self._publish(target, batch, parts)
            target.done = max(target.done, batch)
            self._outdated += own

    def _publish(self, target: Target, batch: int, parts: Sequence[Part]) -> None:
        assert target.publisher is not None
        publisher = target.publisher
        try:
            self._reached(target, lambda: publisher.publish(batch, parts))
        except Unpublished:
            self.unpublished = batch
            log.warning(
                "batch %d is committed, and sink %r does not have all of it, because it cannot be reached; the next start"
                " publishes the rest", batch, target.name,
            )  # fmt: skip
            raise

    def _reached(self, target: Target, call: Callable[[], T]) -> T:
        """Repeat a call until the sink can be reached. Unpublished if the run has to end before."""
        while True:
            try:
                found = call()
                break
            except SinkUnavailable as error:
                if target.away.begins():
                    log.warning("sink %r cannot be reached (%s); the run waits for it, nothing is lost", target.name, error)
            until = time.monotonic() + RETRY_S
            while time.monotonic() < until:
                if self._over():
                    raise Unpublished(target.name)
                time.sleep(0.05)
            self._fence()  # another driver may have taken over meanwhile
        if target.away:
            target.away.end()
            log.warning("sink %r can be reached again", target.name)
        return found

    def _is_hopeless(self) -> bool:
        """Whether a publisher that waits should give up."""
        if not self._over():
            self._over_since = 0.0
            return False
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() - self._over_since >= GRACE_S

    def close(self) -> None:
        for target in self._targets.values():
            self._close(target)

    def _close(self, target: Target) -> None:
        if target.publisher is not None:
            target.publisher.close()
            target.publisher = None


def _remedies(mark: Mark | None, expected: Expected, place: str) -> list[str]:
    if mark is not None and mark.batch > expected.last:
        return ["put back a newer copy of the checkpoint"]
    return [
        "put the sink back as it was",
        f"remove {place}, and start once with the guarantee 'at least once': the last batch may be repeated there, and the"
        " next start can be exactly once again",
    ]


def _expected(checkpoint: Checkpoint, name: str) -> Expected:
    manifest = checkpoint.last_manifest() or {}
    last, begun = manifest.get("batch", -1), (checkpoint.recall("begun") or {}).get("batch")
    return Expected(
        last,
        last < 0 or checkpoint.is_finished(last),
        manifest.get("published", {}).get(name, -1),
        _before(checkpoint, last, name),
        last + 1 if last + 1 == begun == checkpoint.begun() else None,
    )


def _before(checkpoint: Checkpoint, last: int, name: str) -> int | None:
    """The last batch with output for a sink before the last batch."""
    if last <= 0:
        return -1
    earlier: Mapping[str, Any] | None = next((m for m in checkpoint.manifests.readable() if m["batch"] == last - 1), None)
    return None if earlier is None else int(earlier.get("published", {}).get(name, -1))
