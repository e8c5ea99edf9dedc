"""Writes the folder of a run while batches are processed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from springtide.model.report import BatchReport
from springtide.record.folder import RunFolder

log = logging.getLogger("springtide")


class Fold(Protocol):
    """Aggregates batches, in memory that does not grow with them."""

    def add(self, report: BatchReport) -> None: ...


class FolderJournal:
    """Writes the run folder in a thread, so that no batch waits for it.

    The same thread adds each batch to ``folds``, so that the end of a run need not read the folder again: a line has 27 kB,
    and a month has millions.
    """

    def __init__(self, folder: RunFolder, *folds: Fold) -> None:
        self._folder, self._folds = folder, folds
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-journal")
        self.recent: deque[tuple[int, float]] = deque(maxlen=1_000)  # records and seconds of batches

    def batch(self, report: BatchReport) -> None:
        self.recent.append((report.rows_in, report.duration_s))
        for fold in self._folds:
            self._write(fold.add, report)
        self._write(self._folder.batch, report)

    def decision(self, entry: Mapping[str, object]) -> None:
        self._write(self._folder.decision, entry)

    def _write(self, write: Callable[[Any], None], entry: object) -> None:
        self._writer.submit(write, entry).add_done_callback(_log_loss)

    def close(self) -> None:
        self._writer.shutdown(wait=True)


def _log_loss(written: Future[None]) -> None:
    if written.exception() is not None:
        log.error("an entry of the run's folder is lost: %s", written.exception())
