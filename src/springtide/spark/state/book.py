"""The driver's book of the state: what each batch begins with, what it leaves, and which files nobody needs any more."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from springtide.errors import CheckpointError, RunError
from springtide.model.plan import Plan
from springtide.model.report import StateReport
from springtide.model.topology import Topology
from springtide.once import Once
from springtide.spark.private.failures import damaged_state_file
from springtide.spark.shared.remedies import ANEW, EITHER, PUT_BACK, ways_out
from springtide.spark.shared.report import Report
from springtide.spark.state.cache import Traffic
from springtide.spark.state.catalog import SUFFIX, Catalog, File, Run
from springtide.spark.state.compact import newest_by_group
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.state.segment import GONE, HASH, HASH2, keys_in
from springtide.spark.state.stepping import GROUP_BYTES, Kept
from springtide.spark.state.store import Place, place_of

log = logging.getLogger("springtide.spark")

Merge = Callable[[str, Sequence[str], str, bool, int], Mapping[str, Any]]
"""Merges segments of an operator, named newest first, into one of a name; in a Spark task."""
KEPT_COMMITS = 2
"""A file that the state no longer needs is removed so many commits later: a task that lost a race may still read it."""


class Stored(NamedTuple):
    """A file of an operator's state."""

    operator: str
    name: str


@dataclass
class Merging:
    """A merge that runs in the background."""

    runs: tuple[Run, ...]
    result: Future[Mapping[str, Any]]
    expiring: int | None  # keys that were kept for long enough by then are let go; None if it lets none go
    revived: int = 0  # of those, how many were written to meanwhile


class StateBook:
    """The state of all stateful operators of a run, from its last manifest on."""

    def __init__(
        self, topology: Topology, kept: Mapping[str, Kept], epoch: int, manifest: Mapping[str, Any] | None, merge: Merge,
        seed: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``seed``: by operator, the catalog of what was imported; it counts as long as there is no manifest."""
        self._topology, self._kept, self._epoch, self._merge = topology, kept, epoch, merge
        stored = (seed or {}) if manifest is None else manifest.get("state", {})
        self._catalogs = {name: _begun(one, stored.get(name)) for name, one in kept.items()}
        self._times: dict[str, list[int]] = {name: list(times) for name, times in (manifest or {}).get("times", {}).items()}
        self._depth = max((topology.depth(operator) for operator in topology.stateful), default=0)
        self._merging: dict[str, Merging] = {}
        self._merged = 0
        self._unneeded: deque[list[Stored]] = deque()
        self._places = {name: place_of(one.folder) for name, one in kept.items()}
        self._merge_traffic = {name: Traffic() for name in kept}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-merge")
        self._remover = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-remove")
        self._now = 0
        self._owners: dict[str, tuple[int, ...]] = {}
        self._in_pieces = Once()
        for name in kept:
            self._sweep(name)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def catalog(self, operator: str) -> Catalog:
        return self._catalogs[operator]

    def versions(self, now: int) -> dict[str, dict[str, Any]]:
        """What the tasks of a batch at this time, in microseconds, have to know: the files, newest first, and the time."""
        self._now = now
        return {
            name: {
                "files": [file.name for run in catalog.runs for file in run.files],
                "now": now,
                "watermark": self.watermark(name),
                "expiring": self._merging[name].expiring if name in self._merging else None,
            }
            for name, catalog in self._catalogs.items()
        }

    def watermark(self, operator: str) -> int | None:
        """No record from before is expected at an operator. What passed other stateful ones is as many batches behind."""
        return self._watermark(operator, self._topology.depth(self._topology[operator]))

    def last_watermark(self, operator: str) -> int | None:
        """The watermark that an operator will have come to some batches later, if no record comes until then."""
        return self._watermark(operator, 0)

    def _watermark(self, operator: str, depth: int) -> int | None:
        setting = self._topology.watermarks(self._topology[operator])
        if setting is None:
            return None
        marks = []
        for name in setting:
            seen, event_time = self._times.get(name, []), self._topology[name].event_time
            if len(seen) <= depth or event_time is None:
                return None
            marks.append(seen[depth] - round(event_time.delay_s * 1e6))
        return min(marks)

    def after(self, batch: int, tasks: Sequence[Report]) -> dict[str, Any]:
        """What the manifest shall say once a batch is committed; ``committed`` makes it so."""
        receipts: dict[str, list[StateReceipt]] = {name: [] for name in self._kept}
        for receipt in (one for task in tasks for one in task.state):
            receipts[receipt.operator].append(receipt)
        catalogs = {}
        for name, own in receipts.items():
            _check_disjoint(name, own)
            if name in self._merging:
                self._merging[name].revived += sum(receipt.revived for receipt in own)
            before = self._catalogs[name]
            catalogs[name] = self._with_merged(name).after(batch, own)
            if self._catalogs[name] is not before:  # it was mended, and the receipts tell of keys that were not there before
                catalogs[name] = self._counted(name, catalogs[name])
        return {
            "state": {name: catalog.to_json() for name, catalog in catalogs.items()},
            "times": {name: self._times_after(name, tasks) for name in self._marks()},
        }

    def committed(self, manifest: Mapping[str, Any]) -> None:
        """A batch is committed: its state is the state now. Begin what is due in the background."""
        before = self._files()
        self._catalogs = {name: Catalog.from_json(document) for name, document in manifest["state"].items()}
        self._times = {name: list(times) for name, times in manifest["times"].items()}
        self._unneeded.append(sorted(before - self._files()))
        while len(self._unneeded) > KEPT_COMMITS:
            self._remove(self._unneeded.popleft())
        for name, catalog in self._catalogs.items():
            if name not in self._merging and (runs := catalog.merge_due()):
                self._begin_merge(name, runs, catalog)

    def reports(self, plan: Plan, tasks: Iterable[Report]) -> dict[str, StateReport]:
        """What the batch that was just committed did to the state."""
        reports = {}
        receipts = [receipt for task in tasks for receipt in task.state]
        for name, catalog in self._catalogs.items():
            own = [receipt for receipt in receipts if receipt.operator == name]
            seconds = {shard: took for receipt in own for shard, took in receipt.seconds.items()}
            owner = plan.shards.get(name, ())
            before, self._owners[name] = self._owners.get(name, owner), owner
            reports[name] = StateReport(
                catalog.keys, catalog.bytes, sum(len(run.files) for run in catalog.runs),
                added=sum(receipt.added for receipt in own), removed=sum(receipt.removed for receipt in own),
                late=sum(receipt.late for receipt in own),
                moved=sum(one != other for one, other in zip(before, owner, strict=True)),
                load_s=round(sum(receipt.load_s for receipt in own), 6),
                commit_s=round(sum(receipt.commit_s for receipt in own), 6),
                written_bytes=sum(receipt.file.bytes for receipt in own if receipt.file is not None),
                pieces=self._pieces(name, own), watermark=self.watermark(name), seconds=seconds,
                **vars(self._traffic(name, own)),
            )  # fmt: skip
        return reports

    def _traffic(self, name: str, receipts: Sequence[StateReceipt]) -> Traffic:
        """What the tasks of a batch, and a merge that ended in it, had of the nodes' caches."""
        total, self._merge_traffic[name] = self._merge_traffic[name], Traffic()
        for receipt in receipts:
            total.add(vars(receipt))
        return total

    def _pieces(self, name: str, receipts: Sequence[StateReceipt]) -> int:
        """In how many pieces a task worked at most; that they are small for want of memory is told, once."""
        pieces = max((receipt.groups for receipt in receipts), default=0)
        piece_bytes = min((one.piece_bytes for one in receipts if one.piece_bytes is not None), default=GROUP_BYTES)
        if pieces > 1 and piece_bytes < GROUP_BYTES and self._in_pieces.begins(name):
            log.warning(
                "the state of operator %r, %.0f MB, is too large for its tasks' memory: they work on %.0f MB of it at once, in"
                " %d pieces a batch, which is slower; give Python workers more (spark.executor.pyspark.memory), or more tasks",
                name, self._catalogs[name].bytes / 1e6, piece_bytes / 1e6, pieces,
            )  # fmt: skip
        return pieces

    def mended(self, error: Exception) -> bool:
        """Whether a batch failed because of a damaged file, and the state is whole now without it.

        It is if the file was merged from others, and those are there and whole. If they are not, that is an error.
        """
        path = damaged_state_file(error)
        return path is not None and bool(self._kept) and self._restore(path)

    def _restore(self, path: str) -> bool:
        for name, catalog in self._catalogs.items():
            for run in catalog.runs:
                if PurePosixPath(path).name not in {file.name for file in run.files}:
                    continue
                if self._is_sound(name, PurePosixPath(path).name):
                    return False  # it was away for a while, or half of it came: the batch is tried again as any other
                self._try_earlier(name, run, path)
                self._catalogs[name] = self._counted(name, catalog.restored(run))
                self._merging.pop(name, None)
                log.warning("state file %s is damaged; the files that it was merged from are used instead", path)
                return True
        return False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        far = any(place.slow for place in self._places.values())  # what is left there is removed at the next start
        self._remover.shutdown(wait=not far, cancel_futures=far)

    def _is_sound(self, name: str, file: str) -> bool:
        try:
            self._places[name].verify(file)
        except CheckpointError:
            return False
        return True

    def _try_earlier(self, name: str, run: Run, path: str) -> None:
        lost = f"state file {path} of operator {name!r} is damaged, batches {run.first} to {run.last}"
        if not run.before:
            raise CheckpointError(f"{lost}, and was not merged from others. {ways_out(PUT_BACK, ANEW)}")
        for file in (file for one in run.before for file in one.files):
            try:
                self._places[name].verify(file.name)
            except CheckpointError as error:
                raise CheckpointError(
                    f"{lost}; of the files that it was merged from, {error}. {ways_out(EITHER, ANEW)}"
                ) from None

    def _counted(self, name: str, catalog: Catalog) -> Catalog:
        """With the number of keys that there are: those that a merge let go are there again, and some may have come anew
        since. All state is read for it, and only where keys expire at all."""
        if self._kept[name].ttl_us is None:
            return catalog
        names = [file.name for run in catalog.runs for file in run.files]
        try:
            newest = newest_by_group(self._places[name].segments(names), self._kept[name].shards, _identities)
            return replace(catalog, keys=sum(rows.column(GONE).false_count for rows in newest))
        except (
            CheckpointError
        ):  # another one is damaged: whoever needs it says so, and if it can be mended, keys are counted then
            return catalog

    def _marks(self) -> set[str]:
        return {name for operator in self._topology.stateful for name in self._topology.watermarks(operator) or ()}

    def _times_after(self, name: str, tasks: Sequence[Report]) -> list[int]:
        """The latest times after this batch, and after as many batches before it as there are stateful operators in a row."""
        seen = self._times.get(name, [])
        latest = max([*seen[:1], *(task.times[name] for task in tasks if name in task.times)], default=None)
        return [] if latest is None else [latest, *seen][: self._depth + 1]

    def _files(self) -> set[Stored]:
        return {Stored(name, file) for name, catalog in self._catalogs.items() for file in catalog.names}

    def _remove(self, files: Iterable[Stored]) -> None:
        """No batch waits for it: to remove what a merge of 100 MB was made of takes 100 ms where the disk is local, too."""
        for operator, name in files:
            self._remover.submit(_removed, self._places[operator], name)

    def _begin_merge(self, name: str, runs: tuple[Run, ...], catalog: Catalog) -> None:
        self._merged += 1
        target = f"{runs[-1].first:08d}-{runs[0].last:08d}-{self._epoch:06d}-m{self._merged}{SUFFIX}"
        names = [file.name for run in runs for file in run.files]
        oldest = catalog.runs[-1] == runs[-1]
        result = self._thread.submit(self._merge, name, names, target, oldest, self._now)
        self._merging[name] = Merging(runs, result, self._now if oldest else None)

    def _with_merged(self, name: str) -> Catalog:
        """The catalog with the merge that has ended, if one has."""
        catalog, merging = self._catalogs[name], self._merging.get(name)
        if merging is None or not merging.result.done():
            return catalog
        del self._merging[name]
        try:
            result = merging.result.result()
        except Exception as error:  # noqa: BLE001  the state is whole without it; it is tried again
            if not self.mended(error):
                log.warning("state of operator %r could not be merged: %s", name, error)
            return self._catalogs[name]
        self._merge_traffic[name].add(result["traffic"])
        files = () if result["file"] is None else (File(**result["file"]),)
        return catalog.merged(merging.runs, files, result["expired"] - merging.revived)

    def _sweep(self, name: str) -> None:
        """Remove what earlier starts wrote and nobody committed."""
        place, needed = self._places[name], self._catalogs[name].names
        found = ((file, re.match(r"\d+-(?:\d{8}-)?(\d{6})-", file)) for file in place.names() if file not in needed)
        place.remove([file for file, epoch in found if epoch is not None and int(epoch[1]) < self._epoch])


def _begun(kept: Kept, document: Mapping[str, Any] | None) -> Catalog:
    """The state that a run begins with. Keys that are hashed otherwise would not be found: ``rehash`` comes before."""
    catalog = Catalog() if document is None else Catalog.from_json(document)
    if catalog.runs and catalog.hashing != kept.hashing:
        raise CheckpointError(f"operator {kept.operator!r}: its keys are hashed as {catalog.hashing!r}, not {kept.hashing!r}")
    return replace(catalog, hashing=kept.hashing)


def _identities(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What tells keys apart, and whether they are there; the same in all declarations."""
    return rows.select([HASH, HASH2, GONE, *keys_in(rows).schema.names])


def _removed(place: Place, name: str) -> None:
    try:
        place.remove([name])
    except Exception as error:  # noqa: BLE001  whatever a file system raises, nobody needs that file
        log.warning("state file %s is not needed and could not be removed: %s; the next start tries again", name, error)


def _check_disjoint(operator: str, receipts: Sequence[StateReceipt]) -> None:
    """No two tasks have changed the same shard in one batch."""
    owners: dict[int, int] = {}
    for receipt in receipts:
        for shard in receipt.shards:
            if owners.setdefault(shard, receipt.task) != receipt.task:
                raise RunError(
                    f"operator {operator!r}: tasks {owners[shard]} and {receipt.task} both changed shard {shard} in one"
                    " batch; nothing of it was committed"
                )
