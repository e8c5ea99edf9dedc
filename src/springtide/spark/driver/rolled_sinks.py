"""The sinks that roll their files: what waits in the manifest, what a commit rolls, and what becomes due between batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from springtide.errors import CheckpointError
from springtide.model.endpoints import FilesSink, Rolling
from springtide.spark.driver import staged
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.rolling import Part, Rolled, roll
from springtide.spark.driver.staged import Output, StagedFileError
from springtide.spark.shared.program import Staging
from springtide.spark.shared.receipt import Receipt
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out

WAITING, ROLLED = "waiting", "rolled"
"""The fields of a manifest: by sink the parts that wait; and receipts of files that were rolled after the commit."""
AT_ONCE = Rolling(1, 0.0)
"""For what waits of a sink that does not roll any more."""

Located = Callable[[int, Sequence[Mapping[str, Any]]], list[Output]]


@dataclass
class Commit:
    """The output of a batch as its manifest names it. ``spent``: the parts in new files."""

    receipts: list[dict[str, Any]]
    waiting: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    spent: list[Path] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        return {"receipts": self.receipts, **({WAITING: self.waiting} if self.waiting else {})}


class RolledSinks:
    """``located`` gives the staged files of receipts of a batch."""

    def __init__(self, sinks: Mapping[str, FilesSink], places: Mapping[str, Staging], located: Located) -> None:
        self._rolling = {name: sink.rolling for name, sink in sinks.items() if sink.rolling is not None}
        self._places, self._located = places, located
        self._spent: list[Path] = []
        self._due_us: float | None = None  # when the first part is old enough; None: nothing waits

    @property
    def is_used(self) -> bool:
        """Whether a sink rolls, or output waits of one that did."""
        return bool(self._rolling) or self._due_us is not None

    def commit(
        self, batch: int, receipts: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None, epoch: int,
        now: int,
    ) -> Commit:  # fmt: skip
        """What a batch publishes, and what waits after it. ``before``: the last manifest. ``now``: when Spark planned the
        batch, in µs since 1970."""
        held = parts_of(before)
        rolls = self._rolling.keys() | held.keys()
        commit = Commit([dict(receipt) for receipt in receipts if receipt["sink"] not in rolls])
        for sink in sorted(rolls):
            own = [Part(Receipt(**receipt), batch, now) for receipt in receipts if receipt["sink"] == sink]
            self._add(commit, sink, self._roll(sink, [*held.get(sink, ()), *own], epoch, batch, now))
        return commit

    def _roll(
        self, sink: str, parts: Sequence[Part], epoch: int, batch: int, now: int, every: bool = False, first: int = 0
    ) -> Rolled:
        rolling = self._rolling.get(sink, AT_ONCE)
        return roll(parts, rolling, self._places[sink], epoch, batch, now, self._output, every, first)

    def _add(self, commit: Commit, sink: str, rolled: Rolled) -> None:
        commit.receipts += [vars(receipt) for receipt in rolled.receipts]
        commit.spent += [self._output(part).staged for part in rolled.merged]
        if rolled.waiting:
            commit.waiting[sink] = [part.to_json() for part in rolled.waiting]

    def _output(self, part: Part) -> Output:
        return self._located(part.batch, [vars(part.receipt)])[0]

    def committed(self, commit: Commit) -> None:
        """The batch is committed. Parts that it rolled are removed one batch later: its commit may be taken back."""
        for file in self._spent:
            file.unlink(missing_ok=True)
        self._spent = commit.spent
        self._note(commit.waiting)

    def _note(self, waiting: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        dues = [
            int(part["since"]) + self._rolling.get(sink, AT_ONCE).age_s * 1e6
            for sink, parts in waiting.items()
            for part in parts
        ]
        self._due_us = min(dues, default=None)

    # Between batches

    def is_due(self, now: int) -> bool:
        return self._due_us is not None and now >= self._due_us

    def roll_now(self, checkpoint: Checkpoint, now: int, every: bool) -> None:
        """Roll what is due after the last batch, or ``every`` part that waits. Its manifest then names the new files until they
        are visible. Spark has logged the commit of that batch, so that it is never taken back."""
        manifest = checkpoint.last_manifest()
        held = parts_of(manifest)
        if manifest is None or not held:
            return
        checkpoint.check_fence(checkpoint.epoch)
        batch, commit = int(manifest["batch"]), Commit([])
        number = sum("-rolled-" in receipt["name"] for receipt in manifest.get("receipts", ()))
        number += int(manifest.get("rolls", 0))
        for sink, parts in sorted(held.items()):
            rolled = self._roll(sink, parts, checkpoint.epoch, batch, now, every, number)
            number += len(rolled.receipts)
            self._add(commit, sink, rolled)
        self._note(commit.waiting)
        if not commit.receipts:
            return
        rest = {**manifest, WAITING: commit.waiting, "rolls": number}
        checkpoint.manifests.amend({**rest, ROLLED: commit.receipts})
        self.publish(batch, commit.receipts)
        checkpoint.manifests.amend(rest)
        for file in commit.spent:
            file.unlink(missing_ok=True)

    def publish(self, batch: int, receipts: Sequence[Mapping[str, Any]]) -> None:
        """Make files visible that were rolled after a commit."""
        staged.publish_all(self._located(batch, receipts))

    # Starts

    def settle(self, checkpoint: Checkpoint) -> set[Path]:
        """Finish what a crash left between two amendments of the last manifest; returns the parts that wait, each as its task
        wrote it."""
        manifest = checkpoint.last_manifest()
        if manifest is None:
            return set()
        try:
            return self._settled(checkpoint, manifest)
        except ValueError as error:
            file = checkpoint.manifests.file(manifest["batch"])
            raise CheckpointError(f"{file}: {error}. It was changed from outside. {ways_out(PUT_BACK, ANEW)}") from None

    def _settled(self, checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> set[Path]:
        batch = int(manifest["batch"])
        if manifest.get(ROLLED):
            try:
                self.publish(batch, manifest[ROLLED])
            except StagedFileError as damage:
                raise CheckpointError(
                    f"batch {batch} of checkpoint {checkpoint.root} is committed, but {damage}. {ways_out(PUT_BACK, ANEW)}"
                ) from None
            manifest = {name: value for name, value in manifest.items() if name != ROLLED}
            checkpoint.manifests.amend(manifest)
        self._note(manifest.get(WAITING, {}))
        parts = [self._output(part) for parts in parts_of(manifest).values() for part in parts]
        for part in parts:
            staged.check_part(part)
        before = [] if checkpoint.is_finished(batch) else parts_of(checkpoint.manifest(batch - 1) if batch else None).values()
        return {part.staged for part in parts} | {self._output(part).staged for held in before for part in held}


def parts_of(manifest: Mapping[str, Any] | None) -> dict[str, list[Part]]:
    """By sink, the parts that wait after a batch."""
    waiting = {} if manifest is None else manifest.get(WAITING, {})
    return {sink: [Part.of(document) for document in parts] for sink, parts in waiting.items()}
