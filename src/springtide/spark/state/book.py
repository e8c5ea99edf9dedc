"""Tracks state on the driver: the files that each batch starts from, the files that it writes, and the obsolete files."""

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
from springtide.spark.state.catalog import SUFFIX, Catalog, File, SegmentRun
from springtide.spark.state.compact import newest_by_group
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.state.segment import GONE, HASH, HASH2, keys_in
from springtide.spark.state.stepping import GROUP_BYTES, StateLayout
from springtide.spark.state.store import SegmentStore, store_of

log = logging.getLogger("springtide.spark")

Merge = Callable[[str, Sequence[str], str, bool, int], Mapping[str, Any]]
"""Merges segments of an operator, newest first, into a segment with the given name, in a Spark task."""
RETAINED_COMMITS = 2
"""Remove an obsolete file after this many commits: a speculative or zombie task may still read it."""


class Stored(NamedTuple):
    """A file of an operator's state."""

    operator: str
    name: str


@dataclass
class Merging:
    """A merge that runs in the background."""

    runs: tuple[SegmentRun, ...]
    result: Future[Mapping[str, Any]]
    expiring: int | None  # drops keys whose TTL has passed at this time; None: drops no keys
    revived: int = 0  # expired keys that a batch has written since


class StateBook:
    """The state of all stateful operators during a run, from the last manifest on."""

    def __init__(
        self, topology: Topology, layouts: Mapping[str, StateLayout], epoch: int, manifest: Mapping[str, Any] | None,
        merge: Merge, seed: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``seed``: the catalogs of imported state, by operator. They apply until there is a manifest."""
        self._topology, self._layouts, self._epoch, self._merge = topology, layouts, epoch, merge
        stored = (seed or {}) if manifest is None else manifest.get("state", {})
        self._catalogs = {name: _initial(layout, stored.get(name)) for name, layout in layouts.items()}
        self._times: dict[str, list[int]] = {name: list(times) for name, times in (manifest or {}).get("times", {}).items()}
        self._depth = max((topology.depth(operator) for operator in topology.stateful), default=0)
        self._merging: dict[str, Merging] = {}
        self._merged = 0
        self._unneeded: deque[list[Stored]] = deque()
        self._stores = {name: store_of(layout.folder) for name, layout in layouts.items()}
        self._merge_traffic = {name: Traffic() for name in layouts}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-merge")
        self._remover = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-remove")
        self._now = 0
        self._owners: dict[str, tuple[int, ...]] = {}
        self._in_pieces = Once()
        for name in layouts:
            self._sweep(name)

    def __bool__(self) -> bool:
        return bool(self._layouts)

    def catalog(self, operator: str) -> Catalog:
        return self._catalogs[operator]

    def versions(self, now: int) -> dict[str, dict[str, Any]]:
        """The state that the tasks of a batch at time ``now``, in microseconds, start from. Files are listed newest first."""
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
        """The watermark of an operator. Behind other stateful operators it lags by one batch for each of them."""
        return self._watermark(operator, self._topology.depth(self._topology[operator]))

    def last_watermark(self, operator: str) -> int | None:
        """The watermark that the operator will reach some batches later if no records arrive."""
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
        """The state part of the manifest of a batch. It takes effect in ``committed``."""
        receipts: dict[str, list[StateReceipt]] = {name: [] for name in self._layouts}
        for receipt in (receipt for task in tasks for receipt in task.state):
            receipts[receipt.operator].append(receipt)
        catalogs = {}
        for name, own in receipts.items():
            _check_disjoint(name, own)
            if name in self._merging:
                self._merging[name].revived += sum(receipt.revived for receipt in own)
            before = self._catalogs[name]
            catalogs[name] = self._with_merged(name).after(batch, own)
            if self._catalogs[name] is not before:  # restored: the receipts count keys that are back
                catalogs[name] = self._counted(name, catalogs[name])
        return {
            "state": {name: catalog.to_json() for name, catalog in catalogs.items()},
            "times": {name: self._times_after(name, tasks) for name in self._marks()},
        }

    def committed(self, manifest: Mapping[str, Any]) -> None:
        """Switch to the state of the committed batch, and start merges that are due."""
        before = self._files()
        self._catalogs = {name: Catalog.from_json(document) for name, document in manifest["state"].items()}
        self._times = {name: list(times) for name, times in manifest["times"].items()}
        self._unneeded.append(sorted(before - self._files()))
        while len(self._unneeded) > RETAINED_COMMITS:
            self._remove(self._unneeded.popleft())
        for name, catalog in self._catalogs.items():
            if name not in self._merging and (runs := catalog.merge_due()):
                self._begin_merge(name, runs, catalog)

    def reports(self, plan: Plan, tasks: Iterable[Report]) -> dict[str, StateReport]:
        """Reports what the committed batch did to the state."""
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
                moved=sum(old != new for old, new in zip(before, owner, strict=True)),
                load_s=round(sum(receipt.load_s for receipt in own), 6),
                commit_s=round(sum(receipt.commit_s for receipt in own), 6),
                written_bytes=sum(receipt.file.bytes for receipt in own if receipt.file is not None),
                pieces=self._pieces(name, own), watermark=self.watermark(name), seconds=seconds,
                **vars(self._traffic(name, own)),
            )  # fmt: skip
        return reports

    def _traffic(self, name: str, receipts: Sequence[StateReceipt]) -> Traffic:
        """Cache traffic of the batch's tasks, and of a merge that ended during the batch."""
        total, self._merge_traffic[name] = self._merge_traffic[name], Traffic()
        for receipt in receipts:
            total.add(vars(receipt))
        return total

    def _pieces(self, name: str, receipts: Sequence[StateReceipt]) -> int:
        """The most pieces of any task. Warn once if a lack of memory makes the pieces small."""
        pieces = max((receipt.groups for receipt in receipts), default=0)
        piece_bytes = min((size for receipt in receipts if (size := receipt.piece_bytes) is not None), default=GROUP_BYTES)
        if pieces > 1 and piece_bytes < GROUP_BYTES and self._in_pieces.begins(name):
            log.warning(
                "the state of operator %r, %.0f MB, is too large for its tasks' memory: they work on %.0f MB of it at once, in"
                " %d pieces a batch, which is slower; give Python workers more (spark.executor.pyspark.memory), or more tasks",
                name, self._catalogs[name].bytes / 1e6, piece_bytes / 1e6, pieces,
            )  # fmt: skip
        return pieces

    def mended(self, error: Exception) -> bool:
        """Whether a batch failed because of a damaged file that has now been replaced by the files it was merged from.

        Raises CheckpointError if those are missing or damaged, too.
        """
        path = damaged_state_file(error)
        return path is not None and bool(self._layouts) and self._restore(path)

    def _restore(self, path: str) -> bool:
        for name, catalog in self._catalogs.items():
            for run in catalog.runs:
                if PurePosixPath(path).name not in {file.name for file in run.files}:
                    continue
                if self._is_sound(name, PurePosixPath(path).name):
                    return False  # a temporary read error: the batch is retried like any other
                self._try_earlier(name, run, path)
                self._catalogs[name] = self._counted(name, catalog.restored(run))
                self._merging.pop(name, None)
                log.warning("state file %s is damaged; the files that it was merged from are used instead", path)
                return True
        return False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        far = any(place.slow for place in self._stores.values())  # the next start removes the rest
        self._remover.shutdown(wait=not far, cancel_futures=far)

    def _is_sound(self, name: str, file: str) -> bool:
        try:
            self._stores[name].verify(file)
        except CheckpointError:
            return False
        return True

    def _try_earlier(self, name: str, run: SegmentRun, path: str) -> None:
        lost = f"state file {path} of operator {name!r} is damaged, batches {run.first} to {run.last}"
        if not run.before:
            raise CheckpointError(f"{lost}, and was not merged from others. {ways_out(PUT_BACK, ANEW)}")
        for file in (file for earlier in run.before for file in earlier.files):
            try:
                self._stores[name].verify(file.name)
            except CheckpointError as error:
                raise CheckpointError(
                    f"{lost}; of the files that it was merged from, {error}. {ways_out(EITHER, ANEW)}"
                ) from None

    def _counted(self, name: str, catalog: Catalog) -> Catalog:
        """The catalog with the number of keys counted anew, since keys that the merge had expired are back. Reads all state;
        does nothing if keys of this operator never expire."""
        if self._layouts[name].ttl_us is None:
            return catalog
        names = [file.name for run in catalog.runs for file in run.files]
        try:
            newest = newest_by_group(self._stores[name].segments(names), self._layouts[name].shards, _identities)
            return replace(catalog, keys=sum(rows.column(GONE).false_count for rows in newest))
        except CheckpointError:  # another file is damaged, too: its readers report it, and its restore counts again
            return catalog

    def _marks(self) -> set[str]:
        return {name for operator in self._topology.stateful for name in self._topology.watermarks(operator) or ()}

    def _times_after(self, name: str, tasks: Sequence[Report]) -> list[int]:
        """The latest event times after this batch and the batches before, as far back as stateful operators are chained."""
        seen = self._times.get(name, [])
        latest = max([*seen[:1], *(task.times[name] for task in tasks if name in task.times)], default=None)
        return [] if latest is None else [latest, *seen][: self._depth + 1]

    def _files(self) -> set[Stored]:
        return {Stored(name, file) for name, catalog in self._catalogs.items() for file in catalog.names}

    def _remove(self, files: Iterable[Stored]) -> None:
        """Remove files in the background: the inputs of a merge of 100 MB take 100 ms even on a local disk."""
        for operator, name in files:
            self._remover.submit(_removed, self._stores[operator], name)

    def _begin_merge(self, name: str, runs: tuple[SegmentRun, ...], catalog: Catalog) -> None:
        self._merged += 1
        target = f"{runs[-1].first:08d}-{runs[0].last:08d}-{self._epoch:06d}-m{self._merged}{SUFFIX}"
        names = [file.name for run in runs for file in run.files]
        oldest = catalog.runs[-1] == runs[-1]
        result = self._thread.submit(self._merge, name, names, target, oldest, self._now)
        self._merging[name] = Merging(runs, result, self._now if oldest else None)

    def _with_merged(self, name: str) -> Catalog:
        """The catalog with the result of a merge, if one has ended."""
        catalog, merging = self._catalogs[name], self._merging.get(name)
        if merging is None or not merging.result.done():
            return catalog
        del self._merging[name]
        try:
            result = merging.result.result()
        except Exception as error:  # noqa: BLE001  the state is complete without it; the merge is retried
            if not self.mended(error):
                log.warning("state of operator %r could not be merged: %s", name, error)
            return self._catalogs[name]
        self._merge_traffic[name].add(result["traffic"])
        files = () if result["file"] is None else (File(**result["file"]),)
        return catalog.merged(merging.runs, files, result["expired"] - merging.revived)

    def _sweep(self, name: str) -> None:
        """Remove files that earlier starts wrote and did not commit."""
        place, needed = self._stores[name], self._catalogs[name].names
        found = ((file, re.match(r"\d+-(?:\d{8}-)?(\d{6})-", file)) for file in place.names() if file not in needed)
        place.remove([file for file, epoch in found if epoch is not None and int(epoch[1]) < self._epoch])


def _initial(layout: StateLayout, document: Mapping[str, Any] | None) -> Catalog:
    """The state at the start of a run. A key with another hash would not be found; ``rehash`` has to run before this."""
    catalog = Catalog() if document is None else Catalog.from_json(document)
    if catalog.runs and catalog.hashing != layout.hashing:
        raise CheckpointError(
            f"operator {layout.operator!r}: its keys are hashed as {catalog.hashing!r}, not {layout.hashing!r}"
        )
    return replace(catalog, hashing=layout.hashing)


def _identities(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that identify keys and tell whether they are deleted; all declarations share them."""
    return rows.select([HASH, HASH2, GONE, *keys_in(rows).schema.names])


def _removed(place: SegmentStore, name: str) -> None:
    try:
        place.remove([name])
    except Exception as error:  # noqa: BLE001  any file system; the file is obsolete
        log.warning("state file %s is not needed and could not be removed: %s; the next start tries again", name, error)


def _check_disjoint(operator: str, receipts: Sequence[StateReceipt]) -> None:
    """Raise RunError if two tasks have changed the same shard in one batch."""
    owners: dict[int, int] = {}
    for receipt in receipts:
        for shard in receipt.shards:
            if owners.setdefault(shard, receipt.task) != receipt.task:
                raise RunError(
                    f"operator {operator!r}: tasks {owners[shard]} and {receipt.task} both changed shard {shard} in one"
                    " batch; nothing of it was committed"
                )
