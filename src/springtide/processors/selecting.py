"""Functions of whole batches in which single records may fail."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

Failures = list[tuple[int, Exception]]
"""Indices of records in their batch, and their errors."""


class Selecting(ABC):
    """A function for ``map_batches``. Records that fail become dead letters alone; with a plain function, all of a batch do."""

    @abstractmethod
    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        """The output of the records that pass, and those that fail."""

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return self.split(records)[0]
